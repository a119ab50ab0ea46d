"""Secret references: `${env:NAME}`, `${file:PATH}`, and references to a provider (mzplan.secrets.providers).

References are resolved as late as possible, and their values are never stored. mzplan.secrets.resolved
remembers each value, to hide it in all text that leaves the process.
"""

from __future__ import annotations

import copy
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from mzplan.model.diagnostics import MzplanError, error
from mzplan.secrets.files import read_secret
from mzplan.secrets.logins import require_no_login
from mzplan.secrets.providers import Provider, RemoteProvider, find_provider
from mzplan.secrets.resolved import remember

if TYPE_CHECKING:
    from mzplan.secrets.providers import RemoteSecrets

REFERENCE = re.compile(r"\$\{(?P<provider>[a-z][a-z0-9_-]*):(?P<name>[^{}]+)\}")
log = logging.getLogger("mzplan.secrets")
ValuePath = tuple[str | int, ...]
"""The position of a value in a body: keys and indexes, outermost first."""


def is_reference(value: object) -> bool:
    """Return whether the whole value is a single secret reference."""
    return isinstance(value, str) and REFERENCE.fullmatch(value) is not None


def references_in(value: Any) -> Iterator[str]:
    """Yield every secret reference in a value, at any depth, as written."""
    return (reference for _, reference in placed_references(value))


def placed_references(value: Any, place: ValuePath = ()) -> Iterator[tuple[ValuePath, str]]:
    """Yield every secret reference in a value, at any depth, with its position."""
    if isinstance(value, str):
        if "${" in value:
            yield from ((place, match.group(0)) for match in REFERENCE.finditer(value))
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from placed_references(inner, (*place, key))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from placed_references(inner, (*place, index))


def format_place(place: ValuePath) -> str:
    """Format a position: `("sasl", "password")` → `sasl.password`, `("brokers", 0)` → `brokers[0]`."""
    parts = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in place)
    return "".join(parts).removeprefix(".")


def misplaced_error(owner: str, place: ValuePath, reference: str) -> MzplanError:
    """Return MZ102 for a reference in a property of `owner` that must not contain one."""
    return error(
        "MZ102.secret-reference-not", owner=owner, format_place=format_place(place), reference=reference
    )


class Secrets:
    """Resolves secret references.

    `environment`: read on each use, so a runner can receive changed values.
    `remote`: asks remote providers. It is None in commands, which never do that.
    `are_proposed`: whether they are for descriptions that aren't committed.
    """

    def __init__(
        self,
        directory: str,
        environment: Mapping[str, str] | None = None,
        remote: RemoteSecrets | None = None,
    ):
        self.directory = Path(directory)
        self.remote = remote
        self.environment: dict[str, str] = dict(os.environ if environment is None else environment)
        self.are_proposed = False

    def permit(self, of: object) -> None:
        """Raise MzplanError if this process must not resolve a description's or connection's references.

        This class permits everything, because a command may do what its user may do. Runners use
        connectors.admission.GuardedSecrets.
        """

    def proposed(self, values: Mapping[str, str] | None = None) -> Self:
        """Return a copy for uncommitted descriptions. Only the copy's environment has `values`."""
        other = copy.copy(self)
        other.are_proposed = True
        if values:
            other.environment = {**self.environment, **values}
        return other

    def resolve(self, reference: str, *, current: bool = False) -> str:
        """Return the value of a reference such as `"${env:X}"`.

        With `current`, never returns a cached value of a provider that can't be reached.

        Raises MzplanError, which never contains a value: MZ056 if there is no value, MZ103 if a file can't be
        a secret, MZ263 for a login of the runner. For remote providers: MZ260, MZ261, MZ103, and MZ264 in
        commands.
        """
        match = REFERENCE.fullmatch(reference)
        value = self._find_value(match["provider"], match["name"], current) if match else None
        if value is None:
            raise error("MZ056.secret-no", reference=reference, how=_hint(reference))
        remember(value)
        return value

    def is_watched(self, reference: str) -> bool:
        """Return whether a runner reads this reference repeatedly, to detect a new value.

        It reads files and remote providers. Its environment can't change. A local provider may return another
        value on each call.
        """
        provider = reference[2:].partition(":")[0]
        if provider in ("env", "file"):
            return provider == "file"
        return self.remote is not None and isinstance(_provider(provider), RemoteProvider)

    def fill(self, body: Any, takes: Callable[[ValuePath], bool], owner: str) -> Any:
        """Return a copy of a body with every reference replaced by its value.

        Raises MzplanError MZ102 before it resolves anything, if a reference is in the wrong position. Also
        raises the errors of `resolve`.

        `takes`: returns whether a position may have a reference.
        `owner`: names the body in errors.
        """
        for place, reference in placed_references(body):
            if not takes(place):
                raise misplaced_error(owner, place, reference)
        return self._fill(body)

    def _fill(self, value: Any) -> Any:
        if isinstance(value, str):
            return REFERENCE.sub(lambda match: self.resolve(match.group(0)), value)
        if isinstance(value, Mapping):
            return {key: self._fill(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._fill(inner) for inner in value]
        return value

    def _find_value(self, provider: str, name: str, current: bool) -> str | None:
        require_no_login(provider, name, self.directory)
        if provider == "env":
            return self.environment.get(name)
        if provider == "file":
            return self._file(name)
        loaded = _provider(provider)
        if loaded is None:
            return None
        if isinstance(loaded, RemoteProvider):
            reference = f"${{{provider}:{name}}}"
            if self.remote is None:
                raise _runner_only_error(reference)
            return self.remote.value(reference, provider, loaded, name, current=current)
        try:
            value = loaded(name)
        except Exception:  # its text may contain a secret, so the failure counts as "no value"
            return None
        return value if isinstance(value, str) else None

    def _file(self, name: str) -> str | None:
        return read_secret(self.directory / name, name)


def _provider(name: str) -> Provider | None:
    try:
        return find_provider(name)
    except Exception as problem:  # from another package: its text may contain a secret
        log.warning("the provider of ${%s:…} can't be imported: %s", name, type(problem).__name__)
        return None


def _runner_only_error(reference: str) -> MzplanError:
    return error("MZ264.only-runners", reference=reference)


def _hint(reference: str) -> str:
    match = REFERENCE.fullmatch(reference)
    if match and match["provider"] == "env":
        return f"export {match['name']} where mzplan runs, then apply again."
    if match and match["provider"] == "file":
        return f"write the secret to {match['name']}, readable by the runner."
    if match and (path := match["name"].partition("#")[0]):
        return f"store it in {match['provider']} at {path}, or correct the reference."
    return "write ${env:NAME} or ${file:PATH}."
