"""alter: statements edit the files, and exactly these edits are planned and applied; all of it or nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mzplan.features.alter.key_pairs import NewKeys, PublicKey, public_keys
from mzplan.features.alter.requests import find_named, misused
from mzplan.features.alter.sql.parser import parse_statements
from mzplan.features.alter.sql.statements import Edit, ValidateConnection
from mzplan.features.alter.transactions import Transaction, left_out_notice, transaction
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError
from mzplan.model.plan import Plan
from mzplan.model.state import State
from mzplan.operations.apply import Applied, ApplyOptions, carry_out
from mzplan.operations.checks_here import by_cause, guard_to_look
from mzplan.operations.plan import plan_configuration, validated
from mzplan.operations.project import Project, Reporter, Runners, read_state
from mzplan.operations.reached import Reach, nothing_reached, reached, users_of
from mzplan.operations.validation import reach, reach_alone
from mzplan.schema.kinds import resource_kind
from mzplan.secrets.policy import Guard

if TYPE_CHECKING:
    from mzplan.config.edits import FileEdit


@dataclass(frozen=True, slots=True, kw_only=True)
class Altered:
    """The result of statements. `edits`: of the files, those that need any; `plan`: of the statements, also
    when it was not applied; `applied`: the result of applying it; `left_out`: what else of the files is not
    committed. `keys`: the public keys, where keys were rotated."""

    edits: tuple[FileEdit, ...] = ()
    plan: Plan | None = None
    applied: Applied | None = None
    left_out: tuple[Address, ...] = ()
    reached: tuple[Reach, ...] = ()
    keys: tuple[PublicKey, ...] = ()
    notices: tuple[Diagnostic, ...] = ()

    @property
    def edit(self) -> FileEdit | None:
        """The first of the edits."""
        return self.edits[0] if self.edits else None

    @property
    def exit_code(self) -> ExitCode:
        return self.applied.exit_code if self.applied is not None else ExitCode.OK


def alter(
    project: Project,
    runners: Runners,
    reporter: Reporter,
    text: str,
    approve: Callable[[Plan, Sequence[FileEdit]], None],
    options: ApplyOptions,
) -> Altered:
    """Edit, plan, get approval, validate live, commit, and follow. After a MzplanError files and state are as
    they were; after a crash the next command that reads the files finishes or undoes the edit."""
    from mzplan.operations.alter_journal import committing, editing, settle, write

    statements = parse_statements(text)
    if isinstance(statements[0], ValidateConnection):
        return _validate(project, runners, reporter, text, statements[0], options.chosen)
    edits = _edits_of(statements)
    directory = project.settings.directory
    wanted = transaction(project, read_state(project.store, reporter), edits, text, options.live)
    if not wanted.wanted:
        return Altered(notices=wanted.notices)
    left_out: tuple[Address, ...] = ()
    keys = NewKeys(directory)

    def planned(state: State) -> Plan:
        # Read again, now that the locks are held: another command's edit is kept.
        nonlocal wanted, left_out
        wanted = transaction(project, state, edits, text, options.live)
        plan, left_out = _plan(project, reporter, state, wanted, options.canary)
        if wanted.edits and plan.is_empty and not _errors(plan):
            approved(plan)
            write(wanted.edits)  # they change nothing in the state, so nothing is committed
            making.pop_all()
        return plan

    def approved(plan: Plan) -> None:
        approve(plan, wanted.edits)
        if wanted.rotated:
            making.callback(keys.discard)
            keys.make(wanted.rotated)

    @contextlib.contextmanager
    def around(new: State) -> Iterator[None]:
        making.pop_all()  # from here on a commit may refer to them
        with (
            committing(directory, project.store, wanted.edits, text, new)
            if wanted.edits
            else contextlib.nullcontext()
        ):
            yield
        editor.close()  # others may edit while this command follows what it has committed

    with contextlib.ExitStack() as editor, contextlib.ExitStack() as making:
        editor.enter_context(editing(directory))
        if done := settle(directory, project.store):
            reporter.detail(done)
        carried = replace(options, live=wanted.live)
        applied = carry_out(project, runners, reporter, "alter", planned, approved, carried, around)
    return Altered(
        edits=wanted.edits,
        plan=applied.plan,
        applied=applied,
        left_out=left_out,
        keys=_keys(project, wanted),
    )


def preview(
    project: Project,
    runners: Runners,
    reporter: Reporter,
    text: str,
    live: bool | None = None,
    canary: float | None = None,
    chosen: Guard | None = None,
) -> Altered:
    """The edits of statements, and their plan. Changes nothing. Where `live`, or a statement, says so, it is
    validated too, from here with the secrets that `chosen` lets it send."""
    statements = parse_statements(text)
    if isinstance(statements[0], ValidateConnection):
        return _validate(project, runners, reporter, text, statements[0], chosen)
    state = read_state(project.store, reporter)
    wanted = transaction(project, state, _edits_of(statements), text, live)
    if not wanted.wanted:
        return Altered(notices=wanted.notices)
    plan, left_out = _plan(project, reporter, state, wanted, canary)
    if wanted.live and wanted.rotated:
        reporter.stage("Nothing is validated: the new keys are made only when the change is applied")
    elif wanted.live:
        plan = validated(project, runners, reporter, state, plan, chosen)
    return Altered(edits=wanted.edits, plan=plan, left_out=left_out)


def edit_only(project: Project, reporter: Reporter, text: str) -> Altered:
    """Edit the files and nothing else, for a review. The static checks hold as for `alter`."""
    from mzplan.operations.alter_journal import editing, settle, write

    statements = parse_statements(text)
    if isinstance(statements[0], ValidateConnection):
        raise MzplanError(misused(text, "VALIDATE edits nothing", "leave --no-apply out."))
    directory = project.settings.directory
    with editing(directory):
        settle(directory, project.store)
        state = read_state(project.store, reporter)
        wanted = transaction(project, state, _edits_of(statements), text, None)
        notices = tuple(n for n in wanted.notices if n.code != "MZ144")  # nothing is applied anyway
        if not wanted.edits:
            return Altered(notices=notices)
        keys = NewKeys(directory)
        try:
            keys.make(wanted.rotated)
            write(wanted.edits)
        except BaseException:
            keys.discard()
            raise
    return Altered(edits=wanted.edits, notices=notices, keys=_keys(project, wanted))


def _validate(
    project: Project,
    runners: Runners,
    reporter: Reporter,
    text: str,
    statement: ValidateConnection,
    chosen: Guard | None,
) -> Altered:
    from mzplan.features.alter.alteration import validate_connection

    reached, notices = validate_connection(project, runners, reporter, text, statement, chosen)
    return Altered(reached=reached, notices=notices)


def _edits_of(statements: Sequence[Edit | ValidateConnection]) -> list[Edit]:
    return [one for one in statements if not isinstance(one, ValidateConnection)]


def _plan(
    project: Project, reporter: Reporter, state: State, wanted: Transaction, canary: float | None
) -> tuple[Plan, tuple[Address, ...]]:
    """The plan of the transaction, and what else of the files it leaves out."""
    from mzplan.plan import apply_changes, build_plan

    if wanted.targets:
        plan = plan_configuration(
            project, reporter, state, wanted.targets, (), wanted.committed, canary=canary
        )
    else:
        plan = build_plan(wanted.committed, state)
    found = list(wanted.notices)
    left_out = wanted.left_out(apply_changes(state, plan))
    if left_out:
        found.append(left_out_notice(left_out))
    return replace(plan, diagnostics=(*plan.diagnostics, *found)), left_out


def _keys(project: Project, wanted: Transaction) -> tuple[PublicKey, ...]:
    """After a rotation: the public keys that the server has to know."""
    found: list[PublicKey] = []
    for one in wanted.wanted:
        resources = {**wanted.committed.resources, **wanted.files.resources}
        if one.rotates and (resource := resources.get(one.after)) is not None:
            kind = resource_kind("connection", resource.type)
            found += public_keys(resource.body, kind, project.settings.directory)
    return tuple(found)


def _errors(plan: Plan) -> bool:
    return any(d.severity == "error" for d in plan.diagnostics)


def validate_connection(
    project: Project,
    runners: Runners,
    reporter: Reporter,
    text: str,
    statement: ValidateConnection,
    chosen: Guard | None = None,
) -> tuple[tuple[Reach, ...], tuple[Diagnostic, ...]]:
    """Reach a connection through every source and sink that uses it, at any depth; by itself where none
    does. Changes nothing. `chosen`: see operations.checks_here. Returns what was reached, and warnings.
    Raises MzplanError with every problem, and MZ143 (exit 7) where nothing could be reached."""
    from mzplan.plan import apply_changes, build_plan

    configuration = project.configuration()
    address = find_named(configuration.resources, text, "connection", statement.name).address
    state = read_state(project.store, reporter)
    wanted = apply_changes(state, build_plan(configuration, state))
    users = users_of(wanted, address)
    here = guard_to_look(project, state, chosen, "error")
    if users:
        found = reach(project, runners, reporter, wanted, users, here=here)
    else:
        found = reach_alone(project, runners, reporter, wanted, [address], here=here)
    if any(d.severity == "error" for d in found):
        raise MzplanError(by_cause(found))
    shown = tuple(r for r in reached(wanted, users) if r.address == address)
    if all(one.why for one in shown):
        raise MzplanError(nothing_reached(shown))
    return shown, tuple(by_cause(found))
