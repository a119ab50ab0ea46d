"""Who answers `${provider:name}`: env and file are built in; all others are objects of one of two forms,
found by name. Those of other packages have an entry point in the group `mzplan.secrets`; mzplan's are here.

    [project.entry-points."mzplan.secrets"]
    keeper = "mzplan_keeper:provider"        # answers ${keeper:PATH} and ${keeper:PATH#KEY}

- **Remote**: it has `read(path)`. Only runners ask it, and remember what it said (mzplan.secrets.remote).
- **Local**: a callable, name → value or None. Whoever needs the value calls it, commands too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

GROUP = "mzplan.secrets"
OURS = {"vault": "mzplan.secrets.vault:provider", "aws-sm": "mzplan.secrets.aws_secrets:provider"}
"""The providers of mzplan, written as an entry point is. Another package can't take their names."""

Content = str | Mapping[str, Any] | None
"""What lies at a path: a text (which may be a JSON object, and is then named by key, too), texts by key, or
nothing."""


class ProviderError(Exception):
    """Why a provider gives nothing, and what to do about it: sentences for people, without any secret."""

    def __init__(self, why: str, fix: str):
        super().__init__(why)
        self.why, self.fix = why, fix


class NotReachableError(ProviderError):
    """The provider can't be asked now: it is down, sealed or slow. What was read before is used meanwhile."""


class RefusedError(ProviderError):
    """The provider was asked, and does not give the secret."""


@runtime_checkable
class RemoteProvider(Protocol):
    """What keeps secrets elsewhere. Where that is, and how it is signed in to, comes from the environment of
    the process: never from a configuration."""

    def read(self, path: str) -> Content:
        """What lies there, in at most some seconds; None where nothing does. Raises NotReachableError or
        RefusedError; the text of any other exception is shown to nobody."""


@runtime_checkable
class _Ours(RemoteProvider, Protocol):
    def fault_of(self, name: str) -> str | None:
        """See fault_of_name."""


LocalProvider = Callable[[str], str | None]
Provider = RemoteProvider | LocalProvider


def find_provider(name: str) -> Provider | None:
    """The provider of that name; None where no package brings it. Raises whatever its import does."""
    from importlib.metadata import EntryPoint, entry_points

    if name in OURS:
        loaded: Provider = EntryPoint(name=name, value=OURS[name], group=GROUP).load()
        return loaded
    entries = list(entry_points(group=GROUP, name=name))
    if not entries:
        return None
    loaded = entries[0].load()
    assert callable(loaded) or isinstance(loaded, RemoteProvider), f"{entries[0].value} is no provider"
    return loaded


def has_provider(name: str) -> bool:
    """Whether there is one, without importing it."""
    from importlib.metadata import entry_points

    return name in OURS or bool(entry_points(group=GROUP, name=name))


def fault_of_name(provider: str, name: str) -> str | None:
    """What is wrong with the name of a secret of one of mzplan's providers, as a sentence; None for no
    fault, and for the providers of others: none of their code runs for it."""
    known = find_provider(provider) if provider in OURS else None
    return known.fault_of(name) if isinstance(known, _Ours) else None
