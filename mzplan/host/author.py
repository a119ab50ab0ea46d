"""Who runs this process: the user and the host, and whom a CI names."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from mzplan.model.words import one_line

# What a CI sets that it is one, its name here, and where it names who started the run. Forgejo and Gitea
# call themselves GitHub here.
_CIS = (
    ("GITHUB_ACTIONS", "github", "GITHUB_ACTOR"),
    ("GITLAB_CI", "gitlab", "GITLAB_USER_LOGIN"),
    ("BUILDKITE", "buildkite", "BUILDKITE_BUILD_CREATOR"),
    ("CIRCLECI", "circleci", "CIRCLE_USERNAME"),
    ("TF_BUILD", "azure", "BUILD_REQUESTEDFOR"),
    ("JENKINS_URL", "jenkins", "BUILD_USER_ID"),
    ("BITBUCKET_BUILD_NUMBER", "bitbucket", "BITBUCKET_STEP_TRIGGERER_UUID"),
    ("DRONE", "drone", "DRONE_COMMIT_AUTHOR"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """`actor`: whom the CI names as the one who started it; None outside of one, or where it names nobody."""

    user: str
    host: str
    ci: str | None = None
    actor: str | None = None


def author(environment: Mapping[str, str] = os.environ) -> Author:
    """Who runs this process; all text is safe to print."""
    ci, actor = next(
        ((name, environment.get(who)) for mark, name, who in _CIS if environment.get(mark)), (None, None)
    )
    return Author(
        user=one_line(user()),
        host=one_line(socket.gethostname()),
        ci=ci,
        actor=one_line(actor) if actor else None,
    )


def user() -> str:
    """The name of the user, or the number where there is no name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no such user in a container
        return str(os.getuid())
