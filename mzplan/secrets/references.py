"""Secret references: `${env:NAME}` and `${file:PATH}`, resolved as late as possible and never stored.

Providers come by entry point `mzplan.secrets` (a callable: name → value); env and file are built in.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mzplan.model.diagnostics import error

REFERENCE = re.compile(r"\$\{(?P<provider>[a-z][a-z0-9_-]*):(?P<name>[^{}]+)\}")
Provider = Callable[[str], str | None]


def is_reference(value: object) -> bool:
    """Whether the whole value is one secret reference."""
    return isinstance(value, str) and REFERENCE.fullmatch(value) is not None


def has_login(value: object) -> bool:
    """Whether it is a URL that contains a user, and so perhaps a password."""
    return isinstance(value, str) and re.search(r"://[^/\s]*@", value) is not None


def references_in(value: Any) -> Iterator[str]:
    """Every secret reference in a value, at any depth, as written."""
    if isinstance(value, str):
        yield from (match.group(0) for match in REFERENCE.finditer(value))
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from references_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from references_in(inner)


class Secrets:
    """Resolves references. `environment` is read at each use, so that a runner can receive changed values."""

    def __init__(self, directory: str, environment: Mapping[str, str] | None = None):
        self.directory = Path(directory)
        self.environment: dict[str, str] = dict(os.environ if environment is None else environment)

    def resolve(self, reference: str) -> str:
        """`"${env:X}"` → its value. Raises MzplanError MZ056, which names the reference, never a value."""
        match = REFERENCE.fullmatch(reference)
        value = self._lookup(match["provider"], match["name"]) if match else None
        if value is None:
            raise error(
                "MZ056",
                f"Secret {reference} has no value here",
                "The process that runs the query must be able to resolve it: an environment variable of "
                "the runner, or a file that it can read.",
                _hint(reference),
            )
        return value

    def fill(self, value: Any) -> Any:
        """A copy of the value with every reference replaced by its value. Raises MzplanError MZ056."""
        if isinstance(value, str):
            return REFERENCE.sub(lambda match: self.resolve(match.group(0)), value)
        if isinstance(value, Mapping):
            return {key: self.fill(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.fill(inner) for inner in value]
        return value

    def _lookup(self, provider: str, name: str) -> str | None:
        if provider == "env":
            return self.environment.get(name)
        if provider == "file":
            try:
                return (self.directory / name).read_text(encoding="utf-8").rstrip("\r\n")
            except (OSError, UnicodeDecodeError):
                return None
        found = _plugin(provider)
        if found is None:
            return None
        try:
            value = found(name)
        except Exception:  # its text may contain anything; it counts as no value
            return None
        return value if isinstance(value, str) else None


def _hint(reference: str) -> str:
    match = REFERENCE.fullmatch(reference)
    if match and match["provider"] == "env":
        return f"export {match['name']} where mzplan runs, then apply again."
    if match and match["provider"] == "file":
        return f"write the secret to {match['name']}, readable by the runner."
    return "write ${env:NAME} or ${file:PATH}."


def _plugin(provider: str) -> Provider | None:
    from importlib.metadata import entry_points

    for entry in entry_points(group="mzplan.secrets", name=provider):
        loaded: Provider = entry.load()
        return loaded
    return None
