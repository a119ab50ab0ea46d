"""The live check of a source, a sink or an unused connection, which needs no Spark.

It connects and authenticates as the query does. The command line and the runner share it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from mzplan.connectors.api.offers import Offer
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
from mzplan.connectors.api.upstreams import check_losses, compare_upstream
from mzplan.connectors.catalogue import Connectors, find_connector
from mzplan.connectors.formats.registry import ROLE
from mzplan.host.extras import missing_extras_reported
from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.schema.description import Description, InlinedConnection, as_connection
from mzplan.secrets.references import Secrets
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.generation_move import newest_begun


def prepare_target(
    description: Description,
    secrets: Secrets,
    connectors: Connectors,
    outputs: Callable[[ResolvedQuery], tuple[Output, ...]],
    directory: str,
    warehouse: str,
) -> tuple[Diagnostic, ...]:
    """Create the missing parts of a sink's target, if the sink asks for that. Returns the errors, if any. The
    parameters are as in `check_description`."""
    if not description.address.writes_target:
        return ()
    try:
        with missing_extras_reported():
            query = resolve(description, secrets, directory, warehouse)
            connectors.sink(description.type).prepare(query, outputs(query))
    except MzplanError as problem:
        return _with_address(description, problem)
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

    - `connectors`: pass the same object to all checks of a command, so that they share connections and
      failures.
    - `outputs`: returns the columns that a sink writes; by default without Spark, as far as they are known.
    - `directory`: the folder that relative paths start from; by default the folder of the secrets.
    - `warehouse`: the absolute path of the checkpoint's warehouse. If it is None, the checkpoint's offsets
      aren't checked.
    """
    connectors = connectors or Connectors()
    try:
        with missing_extras_reported():
            if description.address.is_connection:  # a connection that no query uses
                inlined = as_connection(description)
                return Probe(
                    diagnostics=check_connection(inlined, secrets, directory or str(secrets.directory))
                )
            query = resolve(description, secrets, directory or str(secrets.directory), warehouse)
            if description.address.writes_target:
                probe = connectors.sink(description.type).probe(query, outputs(query))
                task_problems = check_tasks(query, query.checkpoint) if query.checkpoint is not None else ()
                return (
                    replace(probe, diagnostics=(*probe.diagnostics, *task_problems))
                    if task_problems
                    else probe
                )
            connector = connectors.source(description.type)
            probed_query = _query_to_probe(query, warehouse)
            probe = connector.probe(probed_query)
            if query.checkpoint is None or warehouse is None:
                return probe
            problems: tuple[Diagnostic, ...] = ()
            if probe.upstream is not None:
                former = probed_query.checkpoint or query.checkpoint
                difference = compare_upstream(connector, probed_query, former, probe.upstream).diagnostic
                problems = (difference,) if difference else check_tasks(query, query.checkpoint, connector)
            elif description.reads:
                problems = check_tasks(query, query.checkpoint)
            if probe.ok and not problems:
                problems = check_losses(connector, query, warehouse, probe.upstream)
            return replace(probe, diagnostics=(*probe.diagnostics, *problems)) if problems else probe
    except MzplanError as problem:
        return Probe(diagnostics=_with_address(description, problem))


def _query_to_probe(query: ResolvedQuery, warehouse: str | None) -> ResolvedQuery:
    """Return the query to probe. It is the predecessor generation if the query will take over its position
    but hasn't begun yet."""
    description, predecessor = query.description, query.description.predecessor
    if warehouse is None or query.checkpoint is None or predecessor is None:
        return query
    if query.checkpoint.migrated_rows() is not None:
        return query
    former = newest_begun(warehouse, description.id, predecessor)
    former_description = replace(description, generation=former.generation, predecessor=former.predecessor)
    return replace(
        query, description=former_description, checkpoint=Checkpoint.of(warehouse, *former_description.place)
    )


def _with_address(description: Description, problem: MzplanError) -> tuple[Diagnostic, ...]:
    return tuple(d if d.address else replace(d, address=description.address) for d in problem.diagnostics)


def is_reached_alone(type_: str) -> bool:
    """Whether a connection of this type can be checked without a query that uses it."""
    return _reach(type_) is not None


def _reach(type_: str) -> Callable[[ResolvedQuery], Diagnostic | None] | None:
    connector = find_connector(type_)
    return connector.reach if connector is not None else None


def check_connection(
    connection: InlinedConnection, secrets: Secrets, directory: str
) -> tuple[Diagnostic, ...]:
    """Return why this connection can't be used; () if it can, or if its type can't be checked without a
    query."""
    reach = _reach(connection.type)
    if reach is None:
        return ()
    try:
        resolved = resolve_connection(connection, secrets)
        with missing_extras_reported():
            diagnostic = reach(_placeholder_query(connection, resolved, directory))
    except MzplanError as problem:
        return problem.diagnostics
    return (diagnostic,) if diagnostic is not None else ()


def list_offers(
    connection: InlinedConnection, registry: InlinedConnection | None, secrets: Secrets, directory: str
) -> Sequence[Offer]:
    """Return the topics or tables that a connection's server has, as sources.

    `registry`: the schema registry that has the topics' schemas. Raises MzplanError, MZ070 for a type of
    connection that lists nothing.
    """
    connector = find_connector(connection.type)
    if connector is None or connector.offers is None:
        raise error("MZ070.nothing-to-list", connection=connection.address, type=connection.type)
    resolved = resolve_connection(connection, secrets)
    connections = {"connection": resolved}
    if registry is not None:
        connections[ROLE] = resolve_connection(registry, secrets)
    with missing_extras_reported():
        query = replace(_placeholder_query(connection, resolved, directory), connections=connections)
        return connector.offers(query)


def _placeholder_query(
    connection: InlinedConnection, resolved: ResolvedConnection, directory: str
) -> ResolvedQuery:
    """Return a query that has nothing but this connection."""
    description = Description(
        address=connection.address, id="", generation=1, digest="", type=connection.type, body={}
    )
    return ResolvedQuery(
        description=description, body={}, connection=resolved, columns=(), directory=directory
    )
