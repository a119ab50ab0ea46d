"""Statements as one transaction: edits of the files, and committed resources with exactly these edits.

Other uncommitted content of the files is somebody's draft. It is neither planned nor waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mzplan.config.edits import Edits, places_of
from mzplan.config.loader import check_bodies
from mzplan.features.alter.requests import wanted_by
from mzplan.features.alter.sql.statements import At, Edit, point
from mzplan.features.alter.wanted import (
    Requested,
    carried_out,
    in_statement,
    live_of,
    moved_from,
    of_defaults,
    pointed,
    same_value,
)
from mzplan.model.address import Address, natural
from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.model.graph import DependencyGraph
from mzplan.model.resources import Configuration, PropertyEdit, Resource, RunnerSettings
from mzplan.model.state import State
from mzplan.model.words import count
from mzplan.operations.project import Project
from mzplan.plan.difference import find_difference
from mzplan.schema.kinds import resource_kind
from mzplan.schema.view_query import referring_to

if TYPE_CHECKING:
    from mzplan.config import FilesRead
    from mzplan.config.edits import FileEdit


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The changes that statements request.

    `committed`: the committed resources with the edits. `files`: the files with the edits, as far as they can
    be read. `live`: as in `apply`."""

    wanted: tuple[Requested, ...]
    edits: tuple[FileEdit, ...]
    committed: Configuration
    files: FilesRead
    live: bool | None
    notices: tuple[Diagnostic, ...]

    @property
    def targets(self) -> list[Address]:
        """The addresses that it plans."""
        return [w.after for w in self.wanted if w.after in self.committed.resources]

    @property
    def uncommitted(self) -> list[Address]:
        """The addresses that only the files have. They are edited but not planned."""
        return [w.after for w in self.wanted if w.after not in self.committed.resources]

    @property
    def rotated(self) -> tuple[PropertyEdit, ...]:
        """The edits that name key files which don't exist yet."""
        return tuple(edit for w in self.wanted if w.rotates for edit in w.edits)

    def left_out(self, new: State) -> tuple[Address, ...]:
        """Return the resources whose declaration still differs from the state after this transaction."""
        committed = (
            {} if self.files.is_whole else {a: resource.declared for a, resource in new.resources.items()}
        )
        differing = find_difference({**committed, **self.files.resources}, new.resources).all
        left = (differing | self.files.mistaken) - set(self.uncommitted)  # MZ145 reports these separately
        return tuple(sorted(left, key=natural))


def transaction(
    project: Project, state: State, statements: Sequence[Edit], text: str, live: bool | None
) -> Transaction:
    """Return the changes that the statements request. Each sees the effect of earlier ones.

    Raises MzplanError with every mistake."""
    return _Reading(project, state, text).read(statements, live)


class _Reading:
    def __init__(self, project: Project, state: State, text: str):
        self.project, self.state, self.text = project, state, text
        self.directory = project.settings.directory
        self.committed = {address: record.declared for address, record in state.resources.items()}
        self.files = self._files()
        templates = {
            address: resource.template
            for address, resource in self.files.resources.items()
            if resource.template
        }
        self.edits: Edits = Edits(self.directory, templates, project.settings.environment)
        self.named: dict[Address, Resource] = {
            address: resource
            for address, resource in self.committed.items()
            if not self.files.is_whole or address in self.files.mistaken
        } | dict(self.files.resources)
        self.wanted: list[Requested] = []
        self.notices: list[Diagnostic] = []

    def _files(self, contents: Mapping[str, bytes] = MappingProxyType({})) -> FilesRead:
        """Read the files. Mistakes in them don't stop an edit of a committed resource."""
        files = self.project.files(contents)
        if files.mistakes and (not self.state.resources or any(d.range is None for d in files.mistakes)):
            raise MzplanError(files.mistakes)
        return files

    def read(self, statements: Sequence[Edit], live: bool | None) -> Transaction:
        for statement in statements:
            for kind, name in statement.names:
                self._ensure_readable(Address(kind, name.text), name.at)
            wanted = wanted_by(self.named, statement, self.text, live, self.directory)
            if isinstance(wanted, Diagnostic):
                self.notices.append(wanted)
                continue
            self.wanted.append(wanted)
            self._check_references(wanted)
            self._edit_files(wanted)
            self.named = carried_out(self.named, wanted, moves=False)
            if wanted.address in self.committed:
                self.committed = carried_out(self.committed, wanted, moves=True)
            else:
                self.notices.append(_uncommitted(wanted.address))
        files = self._checked_files()
        return Transaction(
            wanted=tuple(self.wanted),
            edits=self.edits.made,
            committed=self._checked_committed(),
            files=files,
            live=live_of(self.wanted),
            notices=(*self.notices, *(n for edit in self.edits.made for n in edit.notices)),
        )

    def _check_references(self, wanted: Requested) -> None:
        kind = resource_kind(wanted.address.kind, self.named[wanted.address].type)
        roles = {(reference.property,): reference for reference in kind.references}
        for edit, at in zip(wanted.edits, wanted.locations, strict=True):
            if edit.path in roles and isinstance(edit.value, str):
                self._ensure_readable(roles[edit.path].address(edit.value, self.named), at)

    def _ensure_readable(self, address: Address, at: At) -> None:
        """Raise MzplanError MZ146 if unreadable files may declare the resource."""
        if address in self.named or (self.files.is_whole and address not in self.files.mistaken):
            return
        mistakes = self.files.mistakes
        first = next((mistake for mistake in mistakes if mistake.address == address), mistakes[0])
        raise MzplanError(
            point(
                self.text,
                at,
                "MZ146",
                f"What the files say of {address} can't be read",
                f"It is not committed, and the files have {count(len(mistakes), 'mistake')}: {first.summary} "
                f"({first.range}){', and others' if len(mistakes) > 1 else ''}.",
                "correct them (`mzplan validate` shows all), then give the statement again.",
                address=address,
            )
        )

    def _edit_files(self, wanted: Requested) -> None:
        address = wanted.address
        kept = [edit for edit in wanted.edits if not same_value(self.named[address], edit)]
        try:
            if kept:
                self.edits.edit(address, kept, self.named[address].body)
            if wanted.after != address:
                self._rename(address, wanted.after)
        except MzplanError:
            if self.files.mistakes:  # perhaps the file that declares it can't be parsed
                raise MzplanError(self.files.mistakes) from None
            raise

    def _rename(self, old: Address, new: Address) -> None:
        if old in self.committed:
            self.edits.edit(old, [moved_from(old)])
        self.edits.rename(old, new.name)
        for user, resource in self.named.items():
            names = {role: new.name for role, target in resource.references.items() if target == old}
            if names and resource.through:
                raise _named_by_view(user, resource.through, old)
            if names:
                kind = resource_kind(user.kind, resource.type)
                properties = kind.schema["properties"]
                self.edits.edit(
                    user,
                    [
                        PropertyEdit(path=(name,), value=value)
                        for name, value in sorted(referring_to(kind, resource.body, names).items())
                        if value != resource.body.get(name) and not properties[name].get("x-derived")
                    ],
                )

    def _checked_files(self) -> FilesRead:
        """Return the files with the edits, checked as usual.

        Mistakes in edited properties are reported at their location in the statements. If the files had
        mistakes before, only new ones are reported."""
        after = self.files
        if self.edits.contents:
            try:
                after = self._files(self.edits.contents)
            except MzplanError as problem:
                raise MzplanError(self._moved(problem.diagnostics)) from None
        before = {_same(diagnostic) for diagnostic in self.files.mistakes}
        if new := [d for d in after.mistakes if _same(d) not in before]:
            raise MzplanError(self._moved(new))
        self._check_removed(after)
        if after.mistakes:
            self.notices.append(_mistaken(after.mistakes))
        return after

    def _check_removed(self, after: FilesRead) -> None:
        """Raise MzplanError MZ075 if `defaults` still set a property that a statement removes.

        The next apply would bring it back."""
        problems = []
        for wanted in self.wanted:
            now = after.resources.get(wanted.after)
            if now is None:
                continue
            for edit, at in zip(wanted.edits, wanted.locations, strict=True):
                value = _value_at(now.body, edit.path) if edit.remove else None
                if value is not None and edit.path not in now.assumed:
                    problems.append(pointed(of_defaults(wanted.after, edit.path), wanted, at))
        if problems:
            raise MzplanError(problems)

    def _moved(self, found: Iterable[Diagnostic]) -> list[Diagnostic]:
        edits = {edit.path: edit for edit in self.edits.made}

        def moved(diagnostic: Diagnostic) -> Diagnostic:
            edit = edits.get(diagnostic.range.path) if diagnostic.range is not None else None
            if edit is None:
                return diagnostic
            for wanted in self.wanted:
                spans = places_of(edit, wanted.after, [e.path for e in wanted.edits])
                if located := in_statement(diagnostic, wanted, edit, spans):
                    return located
            return diagnostic

        return [moved(diagnostic) for diagnostic in found]

    def _checked_committed(self) -> Configuration:
        """Return the committed resources with the edits, and uncommitted resources that these name.

        Resources within reach of the edits are checked like a new configuration."""
        resources = {**self.committed}
        touched = [w.after for w in self.wanted if w.after in resources]
        for address in touched:
            self._add_needed(resources, address)
        if touched:
            graph = DependencyGraph.of(resources)
            reached = {*touched, *graph.reach(touched)}
            bodies = {
                a: resources[a].body for a in sorted(reached | graph.requirements(reached), key=natural)
            }
            checked, mistakes = check_bodies(bodies, self.state.instances)
            if mistakes:
                raise MzplanError([self._at_edit(*mistake) for mistake in mistakes])
            resources |= {a: r for a, r in checked.items() if a in touched or a not in self.committed}
        return Configuration(
            project=self.project.settings.project,
            warehouse=self.state.warehouse,
            instances=self.state.instances,
            resources=resources,
            settings=self.state.settings or RunnerSettings(),
        )

    def _add_needed(self, resources: dict[Address, Resource], address: Address) -> None:
        for target in resources[address].references.values():
            if target not in resources and target in self.named:
                resources[target] = self.named[target]
                self._add_needed(resources, target)

    def _at_edit(self, diagnostic: Diagnostic, path: tuple[str | int, ...]) -> Diagnostic:
        wanted = next((w for w in self.wanted if w.after == diagnostic.address), None)
        if wanted is None:
            return diagnostic
        pairs = zip(wanted.edits, wanted.locations, strict=True)
        location = next((at for e, at in pairs if not e.remove and path[: len(e.path)] == e.path), None)
        return pointed(diagnostic, wanted, location)


def _same(diagnostic: Diagnostic) -> tuple[Any, ...]:
    return (diagnostic.code, diagnostic.summary, diagnostic.detail, diagnostic.address)


def _named_by_view(user: Address, through: Sequence[str], read: Address) -> MzplanError:
    views = ", ".join(f"view.{name}" for name in through)
    return error(
        "MZ304",
        f"The SQL of {views} names {read.name}",
        f"{user} reads {read} by that SQL (materialize: false), and ALTER does not edit it.",
        f"rename it in the files, with `lifecycle: {{moved_from: {read.name}}}`; then mzplan apply.",
        address=read,
    )


def _uncommitted(address: Address) -> Diagnostic:
    return Diagnostic(
        severity="notice",
        code="MZ145",
        kind="uncommitted",
        summary=f"{address} is not committed yet",
        detail="So there is nothing to apply the statement to: only the file is edited.",
        hint="`mzplan apply` creates it.",
        address=address,
    )


def _value_at(body: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = body
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _mistaken(found: Sequence[Diagnostic]) -> Diagnostic:
    first = found[0]
    return Diagnostic(
        severity="notice",
        code="MZ146",
        summary=f"The files have {count(len(found), 'mistake')}, and the statement is applied without them",
        detail=f"The statement doesn't need them. The first mistake: {first.summary} ({first.range}).",
        hint="`mzplan validate` shows them all; `mzplan apply` waits until they are corrected.",
    )
