"""Finds the provider that answers `${provider:name}`.

env and file are built in. mzplan's other providers are listed here. Other packages register a provider as an
entry point in the group `mzplan.secrets`:

    [project.entry-points."mzplan.secrets"]
    keeper = "mzplan_keeper:provider"        # answers ${keeper:PATH} and ${keeper:PATH#KEY}

A provider is one of these:

- **Remote**: an object with `read(path)`. Only runners call it, and cache the result (mzplan.secrets.remote).
- **Local**: a callable from name to value or None. Runners and commands call it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

GROUP = "mzplan.secrets"
OWN_PROVIDERS = {"vault": "mzplan.secrets.vault:provider", "aws-sm": "mzplan.secrets.aws_secrets:provider"}
"""The providers of mzplan, written like entry points. Another package can't take their names."""

Content = str | Mapping[str, Any] | None
"""The content at a path: text, texts by key, or None. `#KEY` also selects a key of a text that is a JSON
object."""


class ProviderError(Exception):
    """A provider returns no value. `why` and `fix` are sentences for people, without any secret."""

    def __init__(self, why: str, fix: str):
        super().__init__(why)
        self.why, self.fix = why, fix


class NotReachableError(ProviderError):
    """The provider is down, sealed or slow. Cached values stay in use."""


class RefusedError(ProviderError):
    """The provider answered, but refused to return the secret."""


@runtime_checkable
class RemoteProvider(Protocol):
    """Reads secrets from a server. Address and login come from the process's environment only."""

    def read(self, path: str) -> Content:
        """Return the content of a path, or None if there is none. Takes at most some seconds.

        Raises NotReachableError or RefusedError. The text of any other exception is never shown.
        """


LocalProvider = Callable[[str], str | None]
Provider = RemoteProvider | LocalProvider


def find_provider(name: str) -> Provider | None:
    """Return the provider of that name, or None if no package has it. Raises the errors of its import."""
    from importlib.metadata import EntryPoint, entry_points

    if name in OWN_PROVIDERS:
        loaded: Provider = EntryPoint(name=name, value=OWN_PROVIDERS[name], group=GROUP).load()
        return loaded
    entries = list(entry_points(group=GROUP, name=name))
    if not entries:
        return None
    loaded = entries[0].load()
    assert callable(loaded) or isinstance(loaded, RemoteProvider), f"{entries[0].value} is not a provider"
    return loaded


def has_provider(name: str) -> bool:
    """Return whether the provider exists, without importing it."""
    from importlib.metadata import entry_points

    return name in OWN_PROVIDERS or bool(entry_points(group=GROUP, name=name))


def fault_of_name(provider: str, name: str) -> str | None:
    """Return a sentence that says what is wrong with a secret's name, or None.

    Only mzplan's own providers check names. This doesn't run code of other packages.
    """
    if provider not in OWN_PROVIDERS:
        return None
    own: Any = find_provider(provider)
    fault: str | None = own.fault_of(name)
    return fault
