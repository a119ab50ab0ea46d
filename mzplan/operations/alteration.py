"""alter: a statement edits the files, and the edit is planned and applied; both or neither."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError
from mzplan.model.plan import Plan
from mzplan.model.resources import Configuration
from mzplan.model.state import ResourceState, State
from mzplan.operations.apply import Applied, ApplyOptions, carry_out
from mzplan.operations.key_pairs import NewKeys, PublicKey, public_keys
from mzplan.operations.plan import plan_configuration
from mzplan.operations.project import Project, Reporter, Runners, read_state
from mzplan.operations.statements import Wanted, find_named, in_statement, misused, wanted_by
from mzplan.schema.kinds import resource_kind
from mzplan.sql.parser import parse_statement
from mzplan.sql.statements import Statement, ValidateConnection

if TYPE_CHECKING:
    from mzplan.config.edits import FileEdit
    from mzplan.operations.validation import Reach


@dataclass(frozen=True, slots=True, kw_only=True)
class Altered:
    """The result of a statement. `edit`: None where nothing is edited; `plan`: of that edit, also when it was
    not applied; `applied`: the result of applying it. `keys`: the public keys, where keys were rotated."""

    edit: FileEdit | None = None
    plan: Plan | None = None
    applied: Applied | None = None
    reached: tuple[Reach, ...] = ()
    keys: tuple[PublicKey, ...] = ()
    notices: tuple[Diagnostic, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        return self.applied.exit_code if self.applied is not None else ExitCode.OK


def alter(
    project: Project,
    runners: Runners,
    reporter: Reporter,
    text: str,
    approve: Callable[[Plan, FileEdit | None], None],
    options: ApplyOptions,
) -> Altered:
    """Edit, plan, get approval, validate live, commit, and follow. After a MzplanError files and state are as
    they were; after a crash the next command that reads the files finishes or undoes the edit."""
    from mzplan.operations.alter_journal import committing, editing, settle, write

    statement = parse_statement(text)
    if isinstance(statement, ValidateConnection):
        return validate_connection(project, runners, reporter, text, statement)
    directory = project.settings.directory
    wanted = wanted_by(project.configuration(), statement, text, options.live, directory)
    if isinstance(wanted, Diagnostic):
        return Altered(notices=(wanted,))
    edit: FileEdit | None = None
    keys = NewKeys(directory)

    def planned(state: State) -> Plan:
        # Read again, now that the locks are held: another command's edit is kept.
        nonlocal edit, wanted
        wanted = _existing(project, statement, text, options.live)
        edit, plan = _plan(project, reporter, state, wanted, options.canary)
        if edit is not None and plan.is_empty and not _errors(plan):
            approve(plan, edit)
            write(edit)  # it changes nothing in the state, so nothing is committed
        return plan

    def approved(plan: Plan) -> None:
        approve(plan, edit)
        if wanted.rotates:
            keys.make(wanted.edits)
            making.callback(keys.discard)

    @contextlib.contextmanager
    def around(new: State) -> Iterator[None]:
        making.pop_all()  # from here on a commit may refer to them
        with (
            contextlib.nullcontext()
            if edit is None
            else committing(directory, project.store, edit, text, new)
        ):
            yield
        editor.close()  # others may edit while this command follows what it has committed

    with contextlib.ExitStack() as editor, contextlib.ExitStack() as making:
        editor.enter_context(editing(directory))
        if done := settle(directory, project.store):
            reporter.detail(done)
        carried = replace(options, live=wanted.live)
        applied = carry_out(project, runners, reporter, "alter", planned, approved, carried, around)
    return Altered(edit=edit, plan=applied.plan, applied=applied, keys=_keys(project, wanted))


def preview(
    project: Project,
    runners: Runners,
    reporter: Reporter,
    text: str,
    live: bool | None = None,
    canary: float | None = None,
) -> Altered:
    """The edit of a statement, and its plan. Changes nothing. With `live`, it is validated too."""
    from mzplan.operations.validation import queries_to_validate, reach
    from mzplan.plan import apply_changes

    statement = parse_statement(text)
    if isinstance(statement, ValidateConnection):
        return validate_connection(project, runners, reporter, text, statement)
    wanted = wanted_by(project.configuration(), statement, text, live, project.settings.directory)
    if isinstance(wanted, Diagnostic):
        return Altered(notices=(wanted,))
    state = read_state(project.store, reporter)
    edit, plan = _plan(project, reporter, state, wanted, canary)
    if live and not _errors(plan):
        new = apply_changes(state, plan)
        found = reach(project, runners, reporter, new, queries_to_validate(plan, new), from_here=True)
        plan = replace(plan, diagnostics=(*plan.diagnostics, *found))
    return Altered(edit=edit, plan=plan)


def edit_only(project: Project, reporter: Reporter, text: str) -> Altered:
    """Edit the file and nothing else, for a review. The static checks hold as for `alter`."""
    from mzplan.operations.alter_journal import editing, settle, write

    statement = parse_statement(text)
    if isinstance(statement, ValidateConnection):
        raise MzplanError(misused(text, "VALIDATE edits nothing", "leave --no-apply out."))
    with editing(project.settings.directory):
        settle(project.settings.directory, project.store)
        wanted = wanted_by(project.configuration(), statement, text, None, project.settings.directory)
        if isinstance(wanted, Diagnostic):
            return Altered(notices=(wanted,))
        edit = _edit(project, wanted)
        if edit is None:
            return Altered()
        _checked(project, wanted, edit)
        keys = NewKeys(project.settings.directory)
        try:
            if wanted.rotates:
                keys.make(wanted.edits)
            write(edit)
        except BaseException:
            keys.discard()
            raise
    return Altered(edit=edit, notices=edit.notices, keys=_keys(project, wanted))


def validate_connection(
    project: Project, runners: Runners, reporter: Reporter, text: str, statement: ValidateConnection
) -> Altered:
    """Reach a connection, as the files declare it, through every source and sink that uses it, at any depth;
    by itself where none does. Changes nothing. Raises MzplanError with every problem."""
    from mzplan.operations.validation import reach, reach_alone, reached
    from mzplan.plan import apply_changes, build_plan

    configuration = project.configuration()
    address = find_named(configuration, text, "connection", statement.name).address
    state = read_state(project.store, reporter)
    wanted = apply_changes(state, build_plan(configuration, state))
    users = _users(wanted, address)
    if users:
        found = reach(project, runners, reporter, wanted, users, from_here=True)
    else:
        found = reach_alone(project, reporter, wanted, [address])
    if any(d.severity == "error" for d in found):
        raise MzplanError(found)
    shown = tuple(r for r in reached(wanted, users) if r.address == address)
    return Altered(reached=shown, notices=tuple(found))


def _users(state: State, connection: Address) -> list[ResourceState]:
    """The queries that use a connection through connections alone, not through a collection."""
    found = {connection}
    grew = True
    while grew:
        using = {
            r.address
            for r in state.resources.values()
            if any(target.kind == "connection" and target in found for target in r.references.values())
        }
        grew = not using <= found
        found |= using
    return [state.resources[a] for a in sorted(found) if a.kind != "connection"]


def _plan(
    project: Project, reporter: Reporter, state: State, wanted: Wanted, canary: float | None
) -> tuple[FileEdit | None, Plan]:
    """The edit (None: the files need none), and the plan of that resource and what depends on it."""
    from mzplan.operations.validation import reach_alone
    from mzplan.plan import apply_changes

    edit = _edit(project, wanted)
    configuration = project.configuration() if edit is None else _checked(project, wanted, edit)
    plan = plan_configuration(project, reporter, state, [wanted.address], (), configuration, canary=canary)
    found = list(edit.notices) if edit is not None else []
    if wanted.live and wanted.address.kind == "connection" and not _errors(plan):
        new = apply_changes(state, plan)
        if not _users(new, wanted.address):
            found += reach_alone(project, reporter, new, [wanted.address])
    return edit, replace(plan, diagnostics=(*plan.diagnostics, *found))


def _edit(project: Project, wanted: Wanted) -> FileEdit | None:
    from mzplan.config.edits import edit_resource

    if not wanted.edits:
        return None
    edit = edit_resource(project.settings.directory, wanted.address, wanted.edits)
    return edit if edit.after != edit.before else None


def _checked(project: Project, wanted: Wanted, edit: FileEdit) -> Configuration:
    """The configuration with the edit, checked as a new resource is. Mistakes in the edited properties are
    reported at their location in the statement."""
    from mzplan.config.edits import places_of

    try:
        return project.configuration(edited={edit.location: edit.after})
    except MzplanError as problem:
        at = places_of(edit, wanted.address, [e.path for e in wanted.edits])
        moved = [in_statement(diagnostic, wanted, edit, at) for diagnostic in problem.diagnostics]
        raise MzplanError(moved) from None


def _keys(project: Project, wanted: Wanted) -> tuple[PublicKey, ...]:
    """After a rotation: the public keys that the server has to know."""
    if not wanted.rotates:
        return ()
    resource = project.configuration().resources[wanted.address]
    kind = resource_kind("connection", resource.type)
    return public_keys(resource.body, kind, project.settings.directory)


def _existing(project: Project, statement: Statement, text: str, live: bool | None) -> Wanted:
    wanted = wanted_by(project.configuration(), statement, text, live, project.settings.directory)
    if isinstance(wanted, Diagnostic):  # gone since a moment ago, and IF EXISTS
        raise MzplanError(replace(wanted, severity="error"))
    return wanted


def _errors(plan: Plan) -> bool:
    return any(d.severity == "error" for d in plan.diagnostics)
