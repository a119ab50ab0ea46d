"""A resource as declared, before anything of it is known to be right: its body, and where that is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mzplan.config.files import SECTIONS
from mzplan.config.findings import Location, Path, SourceFile, shown
from mzplan.model.address import Address, is_valid_name

_BY_KIND = {kind: section for section, kind in SECTIONS.items()}
Given = tuple[SourceFile, Path, Mapping[str, Any]]
"""Defaults that a resource got: the file and the place of the block that they are in, and they."""
_NOTHING = object()


@dataclass(slots=True)
class Declared:
    """A resource with its body as written. `type` is None where it can't be known. `at`: the path of what
    declares it, where that is not under its name: of a connection inside its only user, or of a `for_each`;
    then `key` is that one's, and `template` the body before anything of the key was filled in. `given`: the
    defaults in the body, those that win first; `own`: the body without them."""

    address: Address
    body: Any
    file: SourceFile
    type: str | None = None
    at: Path = ()
    key: str | None = None
    template: Any = None
    given: tuple[Given, ...] = ()
    own: Any = None

    @property
    def label(self) -> str:
        """The address as messages show it, whatever the name is."""
        return f"{self.address.kind}.{shown(self.address.name, quote=False)}"

    @property
    def valid_address(self) -> Address | None:
        return self.address if is_valid_name(self.address.name) else None

    @property
    def place(self) -> Path:
        return self.at or (_BY_KIND[self.address.kind], self.address.name)

    @property
    def template_name(self) -> str:
        """Where the `for_each` is that makes it, as `sources.shop`; "" where none does."""
        return f"{self.place[0]}.{self.place[1]}" if self.key is not None else ""

    @property
    def origin(self) -> str:
        """How it is declared, before the position of that."""
        return "declared at" if self.key is None else f"made by for_each, for the key {shown(self.key)}, at"

    def location(
        self, path: Path = (), at_key: bool = False, offset: int | None = None, length: int = 1
    ) -> Location:
        at_key = at_key or not path
        own = self.own if self.given else self.body
        for file, place, given in self.given:
            if path and _inner(own, path) is _NOTHING and _inner(given, path) is not _NOTHING:
                whole = (*place, *path)
                return Location(file, whole, at_key, offset, length, self.valid_address, shared=True)
        whole = (*self.place, *path)
        if self.key is None:
            once = self.at[:1] == ("defaults",)
            return Location(self.file, whole, at_key, offset, length, self.valid_address, once)
        alike = at_key or _inner(own, path) is _inner(self.template, path)
        note = f"{self._made}{', and the others alike' if alike else ''}."
        return Location(self.file, whole, at_key, offset, length, self.valid_address, alike, note)

    def own_location(self) -> Location:
        """Where it is declared, for what is wrong with none of the others that its `for_each` makes."""
        note = f"{self._made}." if self.key is not None else ""
        return replace(self.location(), shared=False, note=note)

    @property
    def _made(self) -> str:
        return f"for_each makes it for the key {shown(self.key)}"


def _inner(body: Any, path: Path) -> Any:
    """The value at a path, through lists too; _NOTHING where there is none."""
    for key in path:
        try:
            body = body[key]
        except (KeyError, IndexError, TypeError):
            return _NOTHING
    return body


def value_at(body: Any, path: Path) -> Any:
    """The value at a path of keys; None where there is none."""
    for key in path:
        if not isinstance(body, dict):
            return None
        body = body.get(key)
    return body
