"""Edits a project's files: finds the file that declares a resource, and returns its content after an edit."""

from __future__ import annotations

import codecs
import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from mzplan.config.findings import LINE_BREAK, Findings, SourceFile
from mzplan.config.locations import diagnose, locate
from mzplan.config.project import project_files
from mzplan.config.project_files import (
    SECTION_OF,
    SECTIONS,
    ReadError,
    is_allowed,
    read_bytes,
)
from mzplan.config.variables import VARIABLE
from mzplan.config.yaml.parser import read_text
from mzplan.config.yaml.positions import compose, find
from mzplan.config.yaml.text_edits import CantRewriteError, body_of, rename, rewrite
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.resources import Body, PropertyEdit
from mzplan.model.words import shown
from mzplan.schema.editor import QUERY_FILE
from mzplan.schema.properties import value_at
from mzplan.schema.sql.view_query import parse_view

_NOTHING: Body = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEdit:
    """A file before and after an edit.

    - `location`: the path to open, with links followed. `path`: the path to show.
    - `notices`: further consequences of the edit.
    """

    location: str
    path: str
    before: bytes = field(repr=False)
    after: bytes = field(repr=False)
    notices: tuple[Diagnostic, ...] = ()

    @property
    def diff(self) -> str:
        """Return a unified diff, "" if nothing changes."""
        before, after = (_lines(data) for data in (self.before, self.after))
        return "\n".join(
            difflib.unified_diff(before, after, f"a/{self.path}", f"b/{self.path}", lineterm="", n=2)
        )


class Edits:
    """The edits of a project's files, made one after the other in memory. Writes nothing."""

    def __init__(
        self,
        directory: str,
        templates: Mapping[Address, str] = MappingProxyType({}),
        environment: str = "",
    ):
        """`templates`: by address, the `for_each` of resources that have one. `environment`: the environment
        that the edits are for, in a project with environments."""
        self._directory = directory
        self._templates = templates
        self._environment = environment
        self._file_edits: dict[str, FileEdit] = {}  # by location

    @property
    def file_edits(self) -> tuple[FileEdit, ...]:
        """Return one edit for each file that changes."""
        return tuple(edit for edit in self._file_edits.values() if edit.after != edit.before)

    @property
    def contents(self) -> dict[str, bytes]:
        """Return the contents of the edited files, by real path."""
        return {location: edit.after for location, edit in self._file_edits.items()}

    def edit(self, address: Address, edits: Sequence[PropertyEdit], body: Body = _NOTHING) -> None:
        """Edit the body of a resource; `body` is the current one, with variables filled in.

        Raises MzplanError MZ075 if the edit can't be made in place, or would change other resources, and
        MZ077 if it would change other environments.
        """
        section = SECTION_OF[address.kind]
        file, text, written = self._open(address)
        edits = [
            _with_variables(edit, value_at(written, edit.path), value_at(body, edit.path)) for edit in edits
        ]
        named = value_at(written, (QUERY_FILE,))

        def rewriting() -> str:
            if named is not None and (queries := [edit for edit in edits if edit.path == ("query",)]):
                read = parse_view(str(queries[0].value)).collection.text
                why = f"the SQL in {shown(named)} must read {read}, but mzplan only edits YAML files."
                raise CantRewriteError((QUERY_FILE,), why)
            return rewrite(text, section, address.name, edits)

        after = _rewrite(self._directory, address, file, rewriting)
        replaced = _replaced_variables(self._directory, file, written, address, edits, self._environment)
        if self._environment and replaced:
            raise MzplanError(replaced)
        self._add(file, after, tuple(replaced))

    def rename(self, address: Address, name: str) -> None:
        """Rename a resource in its declaration, but not in references to it. Raises the errors of `edit`."""
        section = SECTION_OF[address.kind]
        file, text, _ = self._open(address)
        after = _rewrite(self._directory, address, file, lambda: rename(text, section, address.name, name))
        self._add(file, after, ())

    def _open(self, address: Address) -> tuple[SourceFile, str, Any]:
        """Return the file that declares a resource, its text, and the resource's body as written.

        Raises MzplanError MZ075 if a `for_each` creates the resource.
        """
        template = self._templates.get(address, "")
        if not template:
            section = SECTION_OF[address.kind]
            file, text = _file_declaring(self._directory, address, self.contents)
            written = body_of(text, section, address.name)
            if value_at(written, ("for_each",)) is None:
                return file, text, written
            template = f"{section}.{address.name}"
        raise MzplanError(_template_error(self._directory, address, template))

    def _add(self, file: SourceFile, after: str, notices: tuple[Diagnostic, ...]) -> None:
        before = file.content or b""
        mark = codecs.BOM_UTF8 if before.startswith(codecs.BOM_UTF8) else b""
        location = os.path.realpath(file.full_path)
        if (earlier := self._file_edits.get(location)) is not None:
            before, notices = earlier.before, (*earlier.notices, *notices)
        self._file_edits[location] = FileEdit(
            location=location, path=file.path, before=before, after=mark + after.encode(), notices=notices
        )


def _with_variables(edit: PropertyEdit, written: Any, now: Any) -> PropertyEdit:
    """Return the edit with the unchanged items of a list as written: `${var.broker}`, not its value."""
    lists = (edit.value, written, now)
    if edit.remove or not all(isinstance(listing, list) for listing in lists) or len(written) != len(now):
        return edit
    texts = [
        isinstance(value, str) and isinstance(text, str) for value, text in zip(now, written, strict=True)
    ]
    written_texts = dict(zip(now, written, strict=True)) if all(texts) else {}
    items = [written_texts.get(value, value) for value in edit.value] if written_texts else edit.value
    return replace(edit, value=items)


def _template_error(directory: str, address: Address, template: str) -> Diagnostic:
    """Return error MZ075: the edited text is written once for several resources."""
    section, _, name = template.partition(".")
    other = Address(SECTIONS[section], name)
    # A connection written inside a resource from a `for_each` is named after that resource.
    is_inner = address.kind != other.kind
    outer = Address(other.kind, address.name.removeprefix(f"{other.kind}_")) if is_inner else address
    inside = ", with this connection inside" if is_inner else ""
    diagnostic = Diagnostic.of(
        "MZ075.created-each",
        address=other,
        resource=address,
        name=name,
        outer=outer,
        section=section,
        inside=inside,
    )
    return replace(locate(directory, diagnostic), address=address)


def _rewrite(directory: str, address: Address, file: SourceFile, rewriting: Callable[[], str]) -> str:
    try:
        return rewriting()
    except CantRewriteError as problem:
        name = ".".join(problem.path)
        subject = f"{name} of {address}" if name else str(address)
        diagnostic = Diagnostic.of(
            "MZ075.cannot-edited-place", address=address, subject=subject, path=file.path, why=problem.detail
        )
        raise MzplanError(locate(directory, diagnostic, problem.path)) from None


def is_project_file(directory: str, location: str) -> bool:
    """Return whether the project's loader reads the file at a real path.

    The loader reads no file outside the project, even through a link, and none in .git or .mzplan.
    """
    files = project_files(directory)
    return any(os.path.realpath(file.full_path) == location and is_allowed(file) for file in files)


Position = tuple[int, int]
"""A line and a column, both from 1."""


def places_of(
    edit: FileEdit, address: Address, paths: Sequence[tuple[str, ...]]
) -> dict[tuple[str, ...], tuple[Position, Position]]:
    """Return the start and end of each property in the edited file, by path.

    The start is the property's key; the end, after its value, is exclusive.
    """
    text = edit.after.decode("utf-8-sig")
    resource = compose(text, SECTION_OF[address.kind], address.name)
    places = {}
    for path in paths:
        entry = resource
        for key in path:
            entry = entry.value.entry(key) if entry is not None and entry.value.kind == "map" else None
        if entry is not None:
            places[path] = (_position(text, entry.start), _position(text, entry.value.end))
    return places


def _position(text: str, at: int) -> Position:
    lines = LINE_BREAK.split(text[:at])
    return len(lines), len(lines[-1]) + 1


def _file_declaring(directory: str, address: Address, edited: Mapping[str, bytes]) -> tuple[SourceFile, str]:
    """Return the file that declares a resource, with its raw content and its text.

    Raises MzplanError: MZ075 if no file declares it, or the read error if a file that may declare it can't
    be read.
    """
    ignored, unread = Findings(), Findings()
    wanted = (SECTION_OF[address.kind], address.name)
    for found_file in project_files(directory):
        file = found_file.as_edited(edited)
        try:  # read once, so that the edit is made in the text that was searched
            file = replace(file, content=read_bytes(file))
        except ReadError as problem:
            unread.report(problem.diagnostics[0])
            continue
        text = read_text(file, ignored)
        if text is not None and address.name in text and wanted in find(text, [wanted]):
            return file, text
    if unread:
        raise MzplanError(diagnose(unread))
    diagnostic = Diagnostic.of("MZ075.cannot-edited", address=address)
    raise MzplanError(diagnostic)


def _variables(value: Any) -> set[str]:
    return set(VARIABLE.findall(str(value)))


def _replaced_variables(
    directory: str,
    file: SourceFile,
    written: Any,
    address: Address,
    edits: Sequence[PropertyEdit],
    environment: str,
) -> list[Diagnostic]:
    """Return MZ077 for each edit that puts a value in place of a variable: an error if the project has
    environments, because the edit would change all of them."""
    found = []
    for edit in edits:
        names = sorted(_variables(value_at(written, edit.path)) - _variables(edit.value))
        if not names:
            continue
        words, name = ", ".join(f"${{var.{name}}}" for name in names), ".".join(edit.path)
        if environment:
            diagnostic = Diagnostic.of(
                "MZ077.comes-variable",
                address=address,
                name=name,
                path=file.path,
                words=words,
                names=names,
                environment=environment,
            )
        else:
            diagnostic = Diagnostic.of(
                "MZ077.no-longer", address=address, name=name, path=file.path, words=words
            )
        found.append(locate(directory, diagnostic, edit.path))
    return found


def _lines(data: bytes) -> list[str]:
    return data.decode("utf-8-sig").splitlines()
