"""`import --checkpoint … --table …`: a source or view continues where a hand-written query stopped."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from mzplan.connectors.api.connector import AdoptingSource
from mzplan.connectors.api.probes import with_time_limit
from mzplan.features.state.adoption_checks import adopting_types, source_problems
from mzplan.features.state.edit_plans import plan_adopt
from mzplan.features.state.view_adoption import view_problems
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.plan import Plan
from mzplan.model.resources import Configuration
from mzplan.model.state import State
from mzplan.operations.apply import ApplyOptions, ApplyResult, CommitRequest, carry_out
from mzplan.operations.local_checks import validate
from mzplan.operations.project import Project, Workbench
from mzplan.plan.commit import new_id
from mzplan.schema.description import describe
from mzplan.schema.kinds import resource_kind
from mzplan.warehouse import foreign_query
from mzplan.warehouse.foreign_query import ForeignQuery, NotAdoptableError
from mzplan.warehouse.paths import absolute, local_path
from mzplan.warehouse.storage import remove_storage

_INSPECTION_S = 300.0  # limit while the state is locked, because some object stores never answer
_REMOVAL_S = 60.0


def adopt_foreign(
    work: Workbench,
    address: Address,
    checkpoint: str,
    table: str,
    approve: Callable[[Plan], None],
    options: ApplyOptions,
) -> ApplyResult:
    """Copy checkpoint and table into the warehouse under a new id, and commit the source or view with it.

    The originals stay unchanged. Raises MZ165 (exit 7), with every reason, if they can't be adopted."""
    id_ = new_id()
    adoptable: list[ForeignQuery] = []

    def plan_import(state: State) -> Plan:
        configuration = validate(work.project, work.reporter)
        plan = plan_adopt(configuration, state, address, id_, 1)
        _ensure_here(work.project, address, plan)
        with work.reporter.working("looking at the checkpoint and the table"):
            find_problems = _checks(work.project, configuration, state, address, plan)
            adoptable.append(_inspect(address, checkpoint, table, find_problems))
        query = adoptable[0]
        reason = f"adopts {query.checkpoint} and {query.table}, after micro-batch {query.last_done}"
        if query.keeps_state:
            reason = f"{reason}, with its state"
        changes = [replace(c, reason=reason) if c.address == address else c for c in plan.changes]
        return replace(plan, changes=tuple(changes))

    def copy_and_approve(plan: Plan) -> None:
        approve(plan)
        warehouse = absolute(work.directory, plan.warehouse)
        with work.reporter.working("copying the checkpoint and the table"):
            try:
                foreign_query.copy(adoptable[0], warehouse, id_)
                with_time_limit(lambda: foreign_query.ensure_unchanged(adoptable[0]), _INSPECTION_S)
            except (NotAdoptableError, OSError) as problem:
                raise _refused(address, problem) from None

    try:
        return carry_out(
            work,
            CommitRequest(command="import", make_plan=plan_import, approve=copy_and_approve, options=options),
        )
    except BaseException:
        if adoptable:
            _discard(work.project, id_)
        raise


FindProblems = Callable[[ForeignQuery], Iterator[str]]
"""Yields why a query can't be adopted, each reason a sentence. Raises OSError."""


def _checks(
    project: Project, configuration: Configuration, state: State, address: Address, plan: Plan
) -> FindProblems:
    """Return the checks for a declared source or view. Raises MZ165 for a query that can't adopt any."""
    declared = configuration.resources[address]
    if address.is_view:
        records = {**state.resources, **{c.address: c.after for c in plan.changes if c.after is not None}}
        view, warehouse = (
            describe(records[address], records),
            absolute(project.settings.directory, plan.warehouse),
        )
        return lambda query: view_problems(query, view, warehouse)
    if not address.reads_upstream or declared.type not in adopting_types():
        raise _refused(
            address,
            NotAdoptableError(
                f"A {address.kind} of type {declared.type} can't continue from another program's checkpoint: "
                f"only views, and sources of the types {' and '.join(adopting_types())}, can."
            ),
        )
    connection = configuration.resources[declared.references["connection"]]
    source = AdoptingSource(
        type=declared.type,
        body=resource_kind("source", declared.type).with_defaults(declared.body),
        connection=connection.body,
        directory=project.settings.directory,
    )
    return lambda query: source_problems(query, source)


def _inspect(address: Address, checkpoint: str, table: str, find_problems: FindProblems) -> ForeignQuery:
    try:
        places = foreign_query.place(checkpoint), foreign_query.place(table)

        def inspect() -> ForeignQuery:
            query = foreign_query.inspect(*places)
            if reasons := list(find_problems(query)):
                raise NotAdoptableError(*reasons)
            return query

        return with_time_limit(inspect, _INSPECTION_S)
    except (NotAdoptableError, OSError) as problem:
        raise _refused(address, problem) from None


def _ensure_here(project: Project, address: Address, plan: Plan) -> None:
    """Refuse a local warehouse if the runner is on another machine."""
    if local_path(absolute(project.settings.directory, plan.warehouse)) is None:
        return
    record = next(c.after for c in plan.changes if c.address == address)
    lease = project.store.leases.leader(record.instance) if record is not None else None
    if lease is not None and lease.host != socket.gethostname():
        raise _refused(
            address,
            NotAdoptableError(
                f"Its runner is on {lease.host}, and so is the warehouse: run this command there."
            ),
        )


def _discard(project: Project, id_: str) -> None:
    """Remove the copied checkpoint and table after a failed commit."""
    with suppress(MzplanError, TimeoutError):
        state = project.store.read_state()
        if not any(record.id == id_ for record in state.resources.values()):
            warehouse = state.warehouse or project.settings.warehouse
            where = absolute(project.settings.directory, warehouse)
            with_time_limit(lambda: remove_storage(where, id_, 1), _REMOVAL_S)


def _refused(address: Address, problem: NotAdoptableError | OSError) -> MzplanError:
    reasons = problem.reasons if isinstance(problem, NotAdoptableError) else (f"{problem}.",)
    return MzplanError(
        Diagnostic.of("MZ165.cannot-adopt", address=address, reason=reason) for reason in reasons
    )
