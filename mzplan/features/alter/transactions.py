"""Statements as one transaction: the edited files, and the committed resources with the edits.

Other uncommitted content of the files is somebody's draft. It is neither planned nor waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mzplan.config.edits import Edits, places_of
from mzplan.config.loader import check_bodies
from mzplan.features.alter.requested_change import (
    RequestedChange,
    apply_change,
    at_location,
    default_error,
    locate_in_statement,
    moved_from,
    same_value,
    strongest_live,
)
from mzplan.features.alter.requests import requested_change
from mzplan.features.alter.sql.statements import At, Edit, point
from mzplan.model.address import Address, natural
from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.model.graph import DependencyGraph
from mzplan.model.resources import Configuration, PropertyEdit, Resource, RunnerSettings
from mzplan.model.state import State
from mzplan.model.words import count
from mzplan.operations.project import Project
from mzplan.plan.difference import find_difference
from mzplan.schema.kinds import resource_kind
from mzplan.schema.properties import value_at
from mzplan.schema.sql.view_query import referring_to

if TYPE_CHECKING:
    from mzplan.config import FilesRead
    from mzplan.config.edits import FileEdit


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The changes that statements request.

    - `committed`: the committed resources with the edits.
    - `files`: the files with the edits, as far as they can be read.
    - `live`: how to validate (see ApplyOptions).
    """

    changes: tuple[RequestedChange, ...]
    edits: tuple[FileEdit, ...]
    committed: Configuration
    files: FilesRead
    live: bool | None
    notices: tuple[Diagnostic, ...]

    @property
    def targets(self) -> list[Address]:
        """The changed resources that are committed, so that they are planned."""
        return [w.new_address for w in self.changes if w.new_address in self.committed.resources]

    @property
    def uncommitted(self) -> list[Address]:
        """The changed resources that only the files have. They are edited but not planned."""
        return [w.new_address for w in self.changes if w.new_address not in self.committed.resources]

    @property
    def rotated(self) -> tuple[PropertyEdit, ...]:
        """The edits that name key files which don't exist yet."""
        return tuple(edit for w in self.changes if w.rotates for edit in w.edits)

    def other_changes(self, new: State) -> tuple[Address, ...]:
        """Return the resources whose files still differ from the state after this transaction."""
        committed = (
            {} if self.files.is_whole else {a: resource.declared for a, resource in new.resources.items()}
        )
        differing = find_difference({**committed, **self.files.resources}, new.resources).addresses
        remaining = (differing | self.files.mistaken) - set(self.uncommitted)  # see MZ145
        return tuple(sorted(remaining, key=natural))


def read_transaction(
    project: Project, state: State, statements: Sequence[Edit], text: str, live: bool | None
) -> Transaction:
    """Return the requested changes. A statement sees the changes of the earlier statements.

    Raises MzplanError with every mistake.
    """
    return _TransactionReader(project, state, text).read(statements, live)


class _TransactionReader:
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
        self.resources: dict[Address, Resource] = {
            address: resource
            for address, resource in self.committed.items()
            if not self.files.is_whole or address in self.files.mistaken
        } | dict(self.files.resources)
        self.changes: list[RequestedChange] = []
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
            change = requested_change(self.resources, statement, self.text, live, self.directory)
            if isinstance(change, Diagnostic):
                self.notices.append(change)
                continue
            self.changes.append(change)
            self._check_references(change)
            self._edit_files(change)
            self.resources = apply_change(self.resources, change, moves=False)
            if change.address in self.committed:
                self.committed = apply_change(self.committed, change, moves=True)
            else:
                self.notices.append(_uncommitted_notice(change.address))
        files = self._checked_files()
        return Transaction(
            changes=tuple(self.changes),
            edits=self.edits.file_edits,
            committed=self._checked_committed(),
            files=files,
            live=strongest_live(self.changes),
            notices=(*self.notices, *(n for edit in self.edits.file_edits for n in edit.notices)),
        )

    def _check_references(self, change: RequestedChange) -> None:
        kind = resource_kind(change.address.kind, self.resources[change.address].type)
        roles = {(reference.property,): reference for reference in kind.references}
        for edit, at in zip(change.edits, change.locations, strict=True):
            if edit.path in roles and isinstance(edit.value, str):
                self._ensure_readable(roles[edit.path].address(edit.value, self.resources), at)

    def _ensure_readable(self, address: Address, at: At) -> None:
        """Raise MzplanError MZ146 if unreadable files may declare the resource."""
        if address in self.resources or (self.files.is_whole and address not in self.files.mistaken):
            return
        mistakes = self.files.mistakes
        first = next((mistake for mistake in mistakes if mistake.address == address), mistakes[0])
        raise MzplanError(
            point(
                self.text,
                at,
                "MZ146",
                f"The declaration of {address} can't be read",
                f"It is not committed, and the files have {count(len(mistakes), 'mistake')}: {first.summary} "
                f"({first.range}){', and others' if len(mistakes) > 1 else ''}.",
                "correct them (`mzplan validate` shows all), then give the statement again.",
                address=address,
            )
        )

    def _edit_files(self, change: RequestedChange) -> None:
        address = change.address
        edits = [edit for edit in change.edits if not same_value(self.resources[address], edit)]
        try:
            if edits:
                self.edits.edit(address, edits, self.resources[address].body)
            if change.new_address != address:
                self._rename(address, change.new_address)
        except MzplanError:
            if self.files.mistakes:  # perhaps the file that declares it can't be parsed
                raise MzplanError(self.files.mistakes) from None
            raise

    def _rename(self, old: Address, new: Address) -> None:
        if old in self.committed:
            self.edits.edit(old, [moved_from(old)])
        self.edits.rename(old, new.name)
        for user, resource in self.resources.items():
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

        A mistake in an edited property is reported at its location in the statements. Mistakes that the files
        had before aren't errors.
        """
        after = self.files
        if self.edits.contents:
            try:
                after = self._files(self.edits.contents)
            except MzplanError as problem:
                raise MzplanError(self._relocated(problem.diagnostics)) from None
        before = {_identity(diagnostic) for diagnostic in self.files.mistakes}
        if new := [d for d in after.mistakes if _identity(d) not in before]:
            raise MzplanError(self._relocated(new))
        self._check_removed(after)
        if after.mistakes:
            self.notices.append(_mistakes_notice(after.mistakes))
        return after

    def _check_removed(self, after: FilesRead) -> None:
        """Raise MzplanError MZ075 if `defaults` still set a property that a statement removes.

        The next apply would bring it back.
        """
        problems = []
        for change in self.changes:
            resource = after.resources.get(change.new_address)
            if resource is None:
                continue
            for edit, at in zip(change.edits, change.locations, strict=True):
                value = value_at(resource.body, edit.path) if edit.remove else None
                if value is not None and edit.path not in resource.assumed:
                    problems.append(at_location(default_error(change.new_address, edit.path), change, at))
        if problems:
            raise MzplanError(problems)

    def _relocated(self, diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
        edits = {edit.path: edit for edit in self.edits.file_edits}

        def relocated(diagnostic: Diagnostic) -> Diagnostic:
            edit = edits.get(diagnostic.range.path) if diagnostic.range is not None else None
            if edit is None:
                return diagnostic
            for change in self.changes:
                spans = places_of(edit, change.new_address, [e.path for e in change.edits])
                if located := locate_in_statement(diagnostic, change, edit, spans):
                    return located
            return diagnostic

        return [relocated(diagnostic) for diagnostic in diagnostics]

    def _checked_committed(self) -> Configuration:
        """Return the committed resources with the edits, and uncommitted resources that these name.

        The edited resources, their dependents and their requirements are checked like a new configuration.
        """
        resources = {**self.committed}
        changed = [w.new_address for w in self.changes if w.new_address in resources]
        for address in changed:
            self._add_needed(resources, address)
        if changed:
            graph = DependencyGraph.of(resources)
            affected = {*changed, *graph.all_dependents(changed)}
            bodies = {
                a: resources[a].body for a in sorted(affected | graph.requirements(affected), key=natural)
            }
            checked, mistakes = check_bodies(bodies, self.state.instances)
            if mistakes:
                raise MzplanError([self._at_edit(*mistake) for mistake in mistakes])
            resources |= {a: r for a, r in checked.items() if a in changed or a not in self.committed}
        return Configuration(
            project=self.project.settings.project,
            warehouse=self.state.warehouse,
            instances=self.state.instances,
            resources=resources,
            settings=self.state.settings or RunnerSettings(),
        )

    def _add_needed(self, resources: dict[Address, Resource], address: Address) -> None:
        for target in resources[address].references.values():
            if target not in resources and target in self.resources:
                resources[target] = self.resources[target]
                self._add_needed(resources, target)

    def _at_edit(self, diagnostic: Diagnostic, path: tuple[str | int, ...]) -> Diagnostic:
        change = next((w for w in self.changes if w.new_address == diagnostic.address), None)
        if change is None:
            return diagnostic
        pairs = zip(change.edits, change.locations, strict=True)
        location = next((at for e, at in pairs if not e.remove and path[: len(e.path)] == e.path), None)
        return at_location(diagnostic, change, location)


def _identity(diagnostic: Diagnostic) -> tuple[Any, ...]:
    return (diagnostic.code, diagnostic.summary, diagnostic.detail, diagnostic.address)


def _named_by_view(user: Address, through: Sequence[str], read: Address) -> MzplanError:
    views = ", ".join(f"view.{name}" for name in through)
    return error("MZ304.sql-uses", address=read, views=views, name=read.name, user=user)


def _uncommitted_notice(address: Address) -> Diagnostic:
    return Diagnostic.of("MZ145.not-committed", address=address)


def _mistakes_notice(mistakes: Sequence[Diagnostic]) -> Diagnostic:
    first = mistakes[0]
    return Diagnostic.of("MZ146.files-outside", number=len(mistakes), what=first.summary, place=first.range)
