"""Edits the files by statements, then plans and applies exactly these edits, all or nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mzplan.features.alter.key_pairs import NewKeys, PublicKey, public_keys
from mzplan.features.alter.requests import find_named, usage_mistake
from mzplan.features.alter.sql.parser import parse_statements
from mzplan.features.alter.sql.statements import Edit, ValidateConnection
from mzplan.features.alter.transactions import Transaction, read_transaction
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError
from mzplan.model.plan import Plan
from mzplan.model.state import State
from mzplan.model.words import count
from mzplan.operations.alter_journal import committing, editing, finish_edit, write
from mzplan.operations.apply import ApplyOptions, ApplyResult, CommitRequest, carry_out
from mzplan.operations.connections import Reachability, no_connection_reached, reachability_of, users_of
from mzplan.operations.local_checks import by_cause, read_only_guard
from mzplan.operations.planning import plan_configuration, validated
from mzplan.operations.project import Project, Reporter, Workbench, read_state
from mzplan.operations.validation import validate_queries, validate_unused
from mzplan.plan import apply_changes, build_plan
from mzplan.schema.kinds import resource_kind
from mzplan.secrets.policy import Guard

if TYPE_CHECKING:
    from mzplan.config import FilesRead
    from mzplan.config.edits import FileEdit


_MAX_LISTED = 20  # addresses listed in a notice


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterResult:
    """The result of statements.

    - `edits`: the edits of files, if any are needed.
    - `plan`: the statements' plan, even if it wasn't applied; `applied`: the result of applying it.
    - `other_changes`: other changes in the files that aren't committed.
    - `keys`: the public keys of rotated key pairs.
    """

    edits: tuple[FileEdit, ...] = ()
    plan: Plan | None = None
    applied: ApplyResult | None = None
    other_changes: tuple[Address, ...] = ()
    reached: tuple[Reachability, ...] = ()
    keys: tuple[PublicKey, ...] = ()
    notices: tuple[Diagnostic, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        return self.applied.exit_code if self.applied is not None else ExitCode.OK


def alter(
    work: Workbench, text: str, approve: Callable[[Plan, Sequence[FileEdit]], None], options: ApplyOptions
) -> AlterResult:
    """Edit the files, plan, get approval, validate live, commit, and follow the queries.

    After an MzplanError, files and state are unchanged. After a crash, the next command that reads the files
    finishes or undoes the edit.
    """
    statements = parse_statements(text)
    if isinstance(statements[0], ValidateConnection):
        return _validate(work, text, statements[0], options.guard)
    alteration = _Alteration(work, text, _edits_of(statements), approve, options)
    transaction = alteration.transaction
    return alteration.carry_out() if transaction.changes else AlterResult(notices=transaction.notices)


class _Alteration:
    """The work of applying statements. `transaction`: their changes to the state read last."""

    def __init__(
        self,
        work: Workbench,
        text: str,
        statements: Sequence[Edit],
        approve: Callable[[Plan, Sequence[FileEdit]], None],
        options: ApplyOptions,
    ):
        self.work, self.text, self.statements, self.options = work, text, statements, options
        self.approve_plan = approve
        self.keys = NewKeys(work.directory)
        self.lock = contextlib.ExitStack()  # on the files
        self.other_changes: tuple[Address, ...] = ()
        self.transaction = self._read(read_state(work.store, work.reporter))

    def _read(self, state: State) -> Transaction:
        return read_transaction(self.work.project, state, self.statements, self.text, self.options.live)

    def carry_out(self) -> AlterResult:
        work = self.work
        with self.lock:
            self.lock.enter_context(editing(work.directory))
            if done := finish_edit(work.directory, work.store):
                work.reporter.detail(done)
            request = CommitRequest(
                command="alter",
                make_plan=self.make_plan,
                approve=self.approve,
                options=replace(self.options, live=self.transaction.live),
                commit_context=self.commit_context,
            )
            with self.keys:
                applied = carry_out(work, request)
        return AlterResult(
            edits=self.transaction.edits,
            plan=applied.plan,
            applied=applied,
            other_changes=self.other_changes,
            keys=_public_keys(work.project, self.transaction),
        )

    def make_plan(self, state: State) -> Plan:
        """Return the plan. Reads everything again under the locks, to keep another command's edit."""
        self.transaction = self._read(state)
        plan, self.other_changes = _plan(self.work, state, self.transaction, self.options)
        if self.transaction.edits and plan.is_empty and not plan.errors:
            self.approve(plan)
            write(self.transaction.edits)  # the state doesn't change, so nothing is committed
            self.keys.keep()
        return plan

    def approve(self, plan: Plan) -> None:
        self.approve_plan(plan, self.transaction.edits)
        self.keys.make(self.transaction.rotated)

    @contextlib.contextmanager
    def commit_context(self, new: State) -> Iterator[None]:
        """Edit the files if `new` is committed, and leave them alone if it isn't."""
        self.keys.keep()
        if self.transaction.edits:
            with committing(self.work.directory, self.work.store, self.transaction.edits, self.text, new):
                yield
        else:
            yield
        self.lock.close()  # others may edit while this command follows the commit


def preview(work: Workbench, text: str, options: ApplyOptions) -> AlterResult:
    """Return the statements' edits and plan. Changes nothing.

    Validates live if the options or a statement ask for it: from here, with the secrets that the options
    allow.
    """
    statements = parse_statements(text)
    if isinstance(statements[0], ValidateConnection):
        return _validate(work, text, statements[0], options.guard)
    state = read_state(work.store, work.reporter)
    transaction = read_transaction(work.project, state, _edits_of(statements), text, options.live)
    if not transaction.changes:
        return AlterResult(notices=transaction.notices)
    plan, other_changes = _plan(work, state, transaction, options)
    if transaction.live and transaction.rotated:
        work.reporter.stage("Nothing is validated: the new keys are created only when the change is applied")
    elif transaction.live:
        plan = validated(work, state, plan, options.guard)
    return AlterResult(edits=transaction.edits, plan=plan, other_changes=other_changes)


def edit_only(project: Project, reporter: Reporter, text: str) -> AlterResult:
    """Only edit the files, for a review. The static checks are the same as for `alter`."""
    statements = parse_statements(text)
    if isinstance(statements[0], ValidateConnection):
        raise MzplanError(usage_mistake(text, "VALIDATE edits nothing", "leave --no-apply out."))
    directory = project.settings.directory
    with editing(directory):
        finish_edit(directory, project.store)
        state = read_state(project.store, reporter)
        transaction = read_transaction(project, state, _edits_of(statements), text, None)
        # Nothing is applied, so it doesn't matter whether a resource is committed.
        notices = tuple(n for n in transaction.notices if n.kind != "uncommitted")
        if not transaction.edits:
            return AlterResult(notices=notices)
        with NewKeys(directory) as keys:
            keys.make(transaction.rotated)
            write(transaction.edits)
            keys.keep()
    return AlterResult(edits=transaction.edits, notices=notices, keys=_public_keys(project, transaction))


def _validate(work: Workbench, text: str, statement: ValidateConnection, policy: Guard | None) -> AlterResult:
    """Reach a declared connection through the queries that use it, or by itself.

    Changes nothing. `policy`: see operations.local_checks. Raises MzplanError with every problem, and MZ143
    (exit 7) if nothing could be reached.
    """
    configuration = work.project.configuration()
    address = find_named(configuration.resources, text, "connection", statement.name).address
    state = read_state(work.store, work.reporter)
    new = apply_changes(state, build_plan(configuration, state), allow_loss=True)
    users = users_of(new, address)
    problems = _validation_findings(work, state, new, [address], policy)
    if any(d.severity == "error" for d in problems):
        raise MzplanError(problems)
    attempts = tuple(r for r in reachability_of(new, users) if r.address == address)
    if all(attempt.reason for attempt in attempts):
        raise MzplanError(no_connection_reached(attempts))
    return AlterResult(reached=attempts, notices=tuple(problems))


def _file_findings(
    work: Workbench, state: State, files: FilesRead, addresses: Sequence[Address], policy: Guard | None
) -> list[Diagnostic]:
    """Return validation's findings about resources as the files declare them.

    Raises MzplanError for mistakes in the files.
    """
    if files.configuration is None:
        raise MzplanError(files.mistakes)
    new = apply_changes(state, build_plan(files.configuration, state))
    return _validation_findings(work, state, new, addresses, policy)


def _validation_findings(
    work: Workbench, state: State, new: State, addresses: Sequence[Address], policy: Guard | None
) -> list[Diagnostic]:
    """Return validation's findings about resources of an uncommitted state.

    A connection is validated through the queries that use it, or by itself if no query does.
    """
    guard = read_only_guard(work.project, state, policy, "error")
    queries = {a: new.resources[a] for a in addresses if a.is_query}
    connections = {a: users_of(new, a) for a in addresses if a.is_connection}
    queries |= {user.address: user for users in connections.values() for user in users}
    alone = [address for address, users in connections.items() if not users]
    findings = validate_queries(work, new, queries.values(), local_guard=guard)
    return by_cause([*findings, *validate_unused(work, new, alone, local_guard=guard)])


def _edits_of(statements: Sequence[Edit | ValidateConnection]) -> list[Edit]:
    return [statement for statement in statements if not isinstance(statement, ValidateConnection)]


def _plan(
    work: Workbench, state: State, transaction: Transaction, options: ApplyOptions
) -> tuple[Plan, tuple[Address, ...]]:
    """Return the transaction's plan, and the resources with other changes in the files.

    If validation is requested, the plan's diagnostics include its findings about uncommitted resources.
    """
    if transaction.targets:
        plan = plan_configuration(
            work, state, transaction.targets, (), transaction.committed, canary=options.canary
        )
    else:
        plan = build_plan(transaction.committed, state)
    diagnostics = list(transaction.notices)
    if transaction.live and transaction.uncommitted and not transaction.rotated:
        diagnostics += _file_findings(work, state, transaction.files, transaction.uncommitted, options.guard)
    other_changes = transaction.other_changes(apply_changes(state, plan))
    if other_changes:
        diagnostics.append(_other_changes_notice(other_changes))
    return replace(plan, diagnostics=(*plan.diagnostics, *diagnostics)), other_changes


def _public_keys(project: Project, transaction: Transaction) -> tuple[PublicKey, ...]:
    """Return the public keys that the server needs after a rotation."""
    keys: list[PublicKey] = []
    for requested in transaction.changes:
        resources = {**transaction.committed.resources, **transaction.files.resources}
        if requested.rotates and (resource := resources.get(requested.new_address)) is not None:
            kind = resource_kind("connection", resource.type)
            keys += public_keys(resource.body, kind, project.settings.directory)
    return tuple(keys)


def _other_changes_notice(addresses: Sequence[Address]) -> Diagnostic:
    """Return MZ145 for changes in the files that aren't part of the transaction."""
    listed = ", ".join(map(str, addresses[:_MAX_LISTED])) + (" …" if len(addresses) > _MAX_LISTED else "")
    number = count(len(addresses), "other change")
    return Diagnostic.of(
        "MZ145.files-left", number=number, verb="is" if len(addresses) == 1 else "are", listed=listed
    )
