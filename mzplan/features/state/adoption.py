"""`import --checkpoint … --table …`: a source continues where a hand-written query stopped.

Before, it checks whether the source can continue from that query's checkpoint and table.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from mzplan.connectors.api.connector import AdoptingSource
from mzplan.connectors.api.probes import with_time_limit
from mzplan.connectors.catalogue import find_connector, own_connectors
from mzplan.connectors.delta.table import column_types
from mzplan.features.state.edit_plans import plan_adopt
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.plan import Plan
from mzplan.model.resources import Configuration
from mzplan.model.state import State
from mzplan.operations.apply import ApplyOptions, ApplyResult, CommitRequest, carry_out
from mzplan.operations.local_checks import validate
from mzplan.operations.project import Project, Workbench
from mzplan.plan.commit import new_id
from mzplan.schema.columns import POSITION, Column, canonical_type, spark_type
from mzplan.schema.kinds import resource_kind
from mzplan.schema.source_columns import columns_of, keys_of
from mzplan.warehouse import foreign_query
from mzplan.warehouse.foreign_query import ForeignQuery, NotAdoptableError, open_table
from mzplan.warehouse.paths import absolute, local_path
from mzplan.warehouse.storage import remove_storage


def adopting_types() -> tuple[str, ...]:
    """Return the types of sources that can continue from a hand-written query."""
    return tuple(connector.type for connector in own_connectors() if connector.adoption_problems is not None)


def ensure_adoptable(query: ForeignQuery, source: AdoptingSource) -> None:
    """Check that a source of one of the `adopting_types` can continue from a query's checkpoint.

    The query must have read the same topic or folder. It must have written the table, with the source's
    columns. Raises NotAdoptableError and OSError.
    """
    if keys_of(source.type, source.body):
        raise NotAdoptableError(
            "The source keeps the latest row of each key, and the checkpoint of a hand-written query doesn't "
            "record how the query changed its table: declare a new source."
        )
    columns = columns_of(source.type, source.body)
    reasons = [*_upstream_problems(query, source), *_table_problems(query, columns)]
    if reasons:
        raise NotAdoptableError(*reasons)


def _upstream_problems(query: ForeignQuery, source: AdoptingSource) -> Iterator[str]:
    connector = find_connector(source.type)
    assert connector is not None and connector.adoption_problems is not None, source.type
    try:
        position = json.loads(query.position)
    except ValueError:
        position = None
    if isinstance(position, dict):
        yield from connector.adoption_problems(source, query, position)
    else:
        yield f"It doesn't read a {source.type} upstream: its offset is {query.position[:80]}."


def _table_problems(query: ForeignQuery, columns: Sequence[Column]) -> Iterator[str]:
    table = open_table(query.table)
    micro_batch = table.transaction_version(query.query_id)
    if micro_batch is None:
        yield f"{query.table} was not written by this query's Delta sink: its log doesn't name the query."
    elif not query.last_done <= micro_batch <= query.last_planned:
        yield (
            f"{query.table} has micro-batch {micro_batch} of this query, but the checkpoint has finished "
            f"micro-batch {query.last_done}: they don't belong together."
        )
    types = column_types(table)
    wanted = {column.name: column for column in columns}
    for name in sorted(types.keys() - wanted.keys() - {POSITION}):
        yield f"The table has a column {name}, which the source doesn't declare."
    for name in sorted(wanted.keys() - types.keys()):
        yield f"The table has no column {name}, which the source declares."
    for name in sorted(types.keys() & wanted.keys()):
        actual, declared = canonical_type(types[name]), canonical_type(spark_type(wanted[name].type))
        if actual != declared:
            yield f"The table's column {name} is {actual or types[name]}, and the source declares {declared}."


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
    """Copy checkpoint and table into the warehouse under a new id, and commit the source with it.

    The originals stay unchanged. Raises MZ165 (exit 7), with every reason, if they can't be adopted."""
    id_ = new_id()
    adoptable: list[ForeignQuery] = []

    def plan_import(state: State) -> Plan:
        configuration = validate(work.project, work.reporter)
        plan = plan_adopt(configuration, state, address, id_, 1)
        _ensure_here(work.project, address, plan)
        with work.reporter.working("looking at the checkpoint and the table"):
            adoptable.append(_inspect(work.project, configuration, address, checkpoint, table))
        query = adoptable[0]
        reason = f"adopts {query.checkpoint} and {query.table}, after micro-batch {query.last_done}"
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


def _inspect(
    project: Project, configuration: Configuration, address: Address, checkpoint: str, table: str
) -> ForeignQuery:
    declared = configuration.resources[address]
    if not address.reads_upstream or declared.type not in adopting_types():
        raise _refused(
            address,
            NotAdoptableError(
                f"A {address.kind} of type {declared.type} can't continue from another program's "
                f"checkpoint: only sources of the types {' and '.join(adopting_types())} can."
            ),
        )
    connection = configuration.resources[declared.references["connection"]]
    source = AdoptingSource(
        type=declared.type,
        body=resource_kind("source", declared.type).with_defaults(declared.body),
        connection=connection.body,
        directory=project.settings.directory,
    )
    try:
        places = foreign_query.place(checkpoint), foreign_query.place(table)

        def inspect() -> ForeignQuery:
            query = foreign_query.inspect(*places)
            ensure_adoptable(query, source)
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
