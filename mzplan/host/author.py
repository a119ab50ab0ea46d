"""The author of a commit: the user, the host, and the person that a CI system names."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from mzplan.model.words import one_line

# The variable that identifies a CI system, our name for it, and its variable for the person who started the
# job. Forgejo and Gitea set GitHub's variables.
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
    """The author of a commit. `actor` is the person who started the CI job, if the CI system names one."""

    user: str
    host: str
    ci: str | None = None
    actor: str | None = None


def author(environment: Mapping[str, str] = os.environ) -> Author:
    """Return the author of the commits of this process. The text is safe to print."""
    ci, actor = next(
        ((name, environment.get(variable)) for mark, name, variable in _CIS if environment.get(mark)),
        (None, None),
    )
    return Author(
        user=one_line(user()),
        host=one_line(socket.gethostname()),
        ci=ci,
        actor=one_line(actor) if actor else None,
    )


def user() -> str:
    """Return the name of the user, or the user id if there is no name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may have no entry for the user
        return str(os.getuid())
