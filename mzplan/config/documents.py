"""The content of files before it is checked: a parsed file, and a resource as declared in one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mzplan.config.findings import Location, Path, SourceFile
from mzplan.config.project_files import SECTION_OF, SECTIONS
from mzplan.model.address import Address, is_valid_name
from mzplan.model.words import shown
from mzplan.schema.properties import value_at

Given = tuple[SourceFile, Path, Mapping[str, Any]]
"""Defaults of a resource: their file, the path of their block in it, and the defaults by key."""
_NOTHING = object()
MAX_NODES = 8_000_000  # keys and values of all files of a project


@dataclass(slots=True)
class Document:
    """A parsed file.

    - `references`: the places of text with `${`, as (container, key or index).
    - `repeats`: some text of its sources, views or sinks has `${each`.
    """

    file: SourceFile
    data: Any = None
    references: list[tuple[Any, Any]] = field(default_factory=list)
    repeats: bool = False
    _unrepeated: set[int] | None = None
    _above: dict[int, tuple[Any, Any]] | None = None

    def may_repeat(self, container: Any) -> bool:
        """Return whether a mapping or list is part of queries only, where `${each` is allowed.

        If so, the method also sets `repeats`, because the caller has found `${each` in the container.
        """
        if self._unrepeated is None:
            data = self.data if isinstance(self.data, dict) else {}
            self._unrepeated = containers_below(
                value for key, value in data.items() if SECTIONS.get(key, "connection") == "connection"
            )
        may = container is not self.data and id(container) not in self._unrepeated
        self.repeats = self.repeats or may
        return may

    def path_of(self, container: Any, key: Any) -> Path:
        """Return the path of keys to `container[key]`, for messages.

        The first call is slow: it walks through the whole document.
        """
        if self._above is None:
            self._above = _containers_above(self.data)
        path = [key]
        while container is not self.data:
            if id(container) not in self._above:  # the document itself is a scalar
                return ()
            container, key = self._above[id(container)]
            path.append(key)
        return tuple(reversed(path))


def containers_below(roots: Iterable[Any]) -> set[int]:
    """Return `id()` of each mapping and list in these values, at any depth."""
    containers: set[int] = set()
    below = list(roots)
    while below:
        container = below.pop()
        if isinstance(container, dict | list) and id(container) not in containers:
            containers.add(id(container))
            below.extend(container.values() if isinstance(container, dict) else container)
    return containers


def size_of(value: Any) -> int:
    """Return how many keys and values a mapping or a list has, at any depth."""
    number, below = 0, [value]
    while below:
        container = below.pop()
        number += len(container)
        inner = container.values() if isinstance(container, dict) else container
        below += [child for child in inner if isinstance(child, dict | list)]
    return number


def _containers_above(data: Any) -> dict[int, tuple[Any, Any]]:
    """Return the container of each mapping and list, and its key there, by `id()`.

    A value that aliases repeat has several containers; the first one counts.
    """
    above: dict[int, tuple[Any, Any]] = {}
    below = [data]
    while below:
        container = below.pop()
        for key, value in container.items() if isinstance(container, dict) else enumerate(container):
            if isinstance(value, dict | list) and id(value) not in above:
                above[id(value)] = (container, key)
                below.append(value)
    return above


@dataclass(slots=True)
class Declaration:
    """A resource with its body as written.

    - `type`: None if it can't be known; if it is known, the body is a mapping.
    - `at`: the path of the declaration, if the resource isn't declared under its own name: a connection
      written inside a source or sink, or a resource from a `for_each`.
    - `key`, `template`: for a resource from a `for_each`, its key, and the body before the key was filled in.
    - `given`: the defaults that were filled into the body; if several set a value, the first one wins.
    - `own`: the body without defaults.
    - `derived`: for a property that the file doesn't set (`from`, `reads[0]`), the path and offset of the
      text that it follows from.
    - `files`: for a property whose text is in a file of its own, that file, and a function from an offset in
      the text to the offset in the file.
    """

    address: Address
    body: Any
    file: SourceFile
    type: str | None = None
    at: Path = ()
    key: str | None = None
    template: Any = None
    given: tuple[Given, ...] = ()
    own: Any = None
    derived: dict[str, tuple[Path, int]] = field(default_factory=dict)
    files: dict[str, tuple[Location, Callable[[int], int]]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Return the address for messages, also if the name is invalid."""
        return f"{self.address.kind}.{shown(self.address.name, quote=False)}"

    @property
    def valid_address(self) -> Address | None:
        return self.address if is_valid_name(self.address.name) else None

    @property
    def place(self) -> Path:
        return self.at or (SECTION_OF[self.address.kind], self.address.name)

    @property
    def template_name(self) -> str:
        """Return the `for_each` that makes the resource, such as `sources.shop`; "" if none does."""
        return f"{self.place[0]}.{self.place[1]}" if self.key is not None else ""

    @property
    def origin(self) -> str:
        """Return how the resource is declared; messages append the position."""
        return "declared at" if self.key is None else f"created by for_each for the key {shown(self.key)}, at"

    def location(
        self, path: Path = (), at_key: bool = False, offset: int | None = None, length: int = 1
    ) -> Location:
        role = f"{path[0]}[{path[1]}]" if len(path) > 1 else ""
        if path and (role in self.derived or path[0] in self.derived):
            path, offset = self.derived.get(role) or self.derived[str(path[0])]
        if path and path[0] in self.files:
            where, written = self.files[str(path[0])]
            return replace(where, offset=written(offset or 0), length=length)
        at_key = at_key or not path
        own = self.own if self.given else self.body
        is_own = not path or value_at(own, path, _NOTHING) is not _NOTHING
        for file, place, given in () if is_own else self.given:
            if value_at(given, path, _NOTHING) is not _NOTHING:
                whole = (*place, *path)
                return Location(file, whole, at_key, offset, length, self.valid_address, shared=True)
        whole = (*self.place, *path)
        if self.key is None:
            once = self.at[:1] == ("defaults",)
            return Location(self.file, whole, at_key, offset, length, self.valid_address, once)
        alike = at_key or value_at(own, path) is value_at(self.template, path)
        note = f"{self._for_each_note}{', and others the same way' if alike else ''}."
        return Location(self.file, whole, at_key, offset, length, self.valid_address, alike, note)

    def own_location(self) -> Location:
        """Return the location of an error that other resources from the same `for_each` don't have."""
        note = f"{self._for_each_note}." if self.key is not None else ""
        return replace(self.location(), shared=False, note=note)

    @property
    def _for_each_note(self) -> str:
        return f"for_each creates it for the key {shown(self.key)}"


def texts_in(value: Any, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Yield every text of a value, at any depth, with its path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from texts_in(inner, (*path, key))
