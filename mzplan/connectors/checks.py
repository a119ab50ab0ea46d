"""The live check of a source, a sink or an unused connection, with or without Spark.

It connects and authenticates as the queries would. The command line and the runner share it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mzplan.connectors.api.losses import check_losses
from mzplan.connectors.api.outputs import outputs_without_spark
from mzplan.connectors.api.queries import (
    Output,
    Probe,
    ResolvedConnection,
    ResolvedQuery,
    resolve,
    resolve_connection,
)
from mzplan.connectors.api.tasks import check_tasks
from mzplan.connectors.api.upstreams import judge_upstream
from mzplan.connectors.catalogue import Connectors, find_connector
from mzplan.host.extras import missing_extras_reported
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.schema.description import Description, InlinedConnection, as_connection
from mzplan.secrets.references import Secrets
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.predecessors import newest_begun


def prepare_target(
    description: Description,
    secrets: Secrets,
    connectors: Connectors,
    outputs: Callable[[ResolvedQuery], tuple[Output, ...]],
    directory: str,
    warehouse: str,
) -> tuple[Diagnostic, ...]:
    """Create whatever a sink's target is missing, if the sink asks for it. Returns why that failed; () if it
    didn't. See `check_description`."""
    if not description.address.writes_target:
        return ()
    try:
        with missing_extras_reported():
            query = resolve(description, secrets, directory, warehouse)
            connectors.sink(description.type).prepare(query, outputs(query))
    except MzplanError as problem:
        return _of(description, problem)
    return ()


def check_description(
    description: Description,
    secrets: Secrets,
    connectors: Connectors | None = None,
    outputs: Callable[[ResolvedQuery], tuple[Output, ...]] = outputs_without_spark,
    directory: str | None = None,
    warehouse: str | None = None,
) -> Probe:
    """Connect, authenticate, check the rights, and find the topic or table. Changes nothing, never raises for
    a server's errors, and takes at most some seconds.

    - `connectors`: give the same to all checks of a command, because they share connections and failures.
    - `outputs`: returns the columns that a sink writes; by default without Spark, as far as they are known.
    - `directory`: the folder that relative paths start from; by default the folder of the secrets.
    - `warehouse`: the absolute path of the checkpoint's warehouse, to check its offsets. None: not checked.
    """
    connectors = connectors or Connectors()
    try:
        with missing_extras_reported():
            if description.address.kind == "connection":  # unused
                inlined = as_connection(description)
                return Probe(
                    diagnostics=check_connection(inlined, secrets, directory or str(secrets.directory)) or ()
                )
            query = resolve(description, secrets, directory or str(secrets.directory), warehouse)
            if description.address.writes_target:
                probed = connectors.sink(description.type).probe(query, outputs(query))
                beyond = check_tasks(query, query.checkpoint) if query.checkpoint is not None else ()
                return replace(probed, diagnostics=(*probed.diagnostics, *beyond)) if beyond else probed
            connector = connectors.source(description.type)
            going_on = _going_on(query, warehouse)
            probe = connector.probe(going_on)
            if query.checkpoint is None or warehouse is None:
                return probe
            more: tuple[Diagnostic, ...] = ()
            if probe.upstream is not None:
                former = going_on.checkpoint or query.checkpoint
                other = judge_upstream(connector, going_on, former, probe.upstream).diagnostic
                more = (other,) if other else check_tasks(query, query.checkpoint, connector)
            if probe.ok and not more:
                more = check_losses(connector, query, warehouse, probe.upstream)
            return replace(probe, diagnostics=(*probe.diagnostics, *more)) if more else probe
    except MzplanError as problem:
        return Probe(diagnostics=_of(description, problem))


def _going_on(query: ResolvedQuery, warehouse: str | None) -> ResolvedQuery:
    """Return the query to probe. Before its checkpoint begins, that is the generation whose position it will
    take."""
    description, predecessor = query.description, query.description.predecessor
    if warehouse is None or query.checkpoint is None or predecessor is None:
        return query
    if query.checkpoint.migrated_rows() is not None:
        return query
    begun = newest_begun(warehouse, description.id, predecessor)
    former = replace(description, generation=begun.generation, predecessor=begun.predecessor)
    return replace(query, description=former, checkpoint=Checkpoint.of(warehouse, *former.place))


def _of(description: Description, problem: MzplanError) -> tuple[Diagnostic, ...]:
    return tuple(d if d.address else replace(d, address=description.address) for d in problem.diagnostics)


def is_reached_alone(type_: str) -> bool:
    """Whether a connection of this type can be checked without a query that uses it."""
    return _reach(type_) is not None


def _reach(type_: str) -> Callable[[ResolvedQuery], Diagnostic | None] | None:
    connector = find_connector(type_)
    return connector.reach if connector is not None else None


def check_connection(
    connection: InlinedConnection, secrets: Secrets, directory: str
) -> tuple[Diagnostic, ...] | None:
    """Return why this connection can't be used, or None if its type can't be checked by itself."""
    reach = _reach(connection.type)
    if reach is None:
        return None
    try:
        resolved = resolve_connection(connection, secrets)
        with missing_extras_reported():
            diagnostic = reach(_standing_in(connection, resolved, directory))
    except MzplanError as problem:
        return problem.diagnostics
    return (diagnostic,) if diagnostic is not None else ()


def _standing_in(
    connection: InlinedConnection, resolved: ResolvedConnection, directory: str
) -> ResolvedQuery:
    """Return a placeholder query that only carries the connection."""
    description = Description(
        address=connection.address, id="", generation=1, digest="", type=connection.type, body={}
    )
    return ResolvedQuery(
        description=description, body={}, connection=resolved, columns=(), directory=directory
    )
