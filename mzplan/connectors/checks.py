"""The live check of one source or sink, with or without Spark: what the command line and the runner share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mzplan.connectors.api.outputs import outputs_without_spark
from mzplan.connectors.api.protocols import Output, Probe, ResolvedQuery, resolve
from mzplan.connectors.api.upstream_change import judge_upstream
from mzplan.connectors.catalogue import Connectors
from mzplan.connectors.connection_checks import check_connection
from mzplan.host.extras import missing_extras_reported
from mzplan.model.diagnostics import MzplanError
from mzplan.schema.description import Description, as_connection
from mzplan.secrets.references import Secrets


def check_description(
    description: Description,
    secrets: Secrets,
    connectors: Connectors | None = None,
    outputs: Callable[[ResolvedQuery], tuple[Output, ...]] = outputs_without_spark,
    directory: str | None = None,
    warehouse: str | None = None,
) -> Probe:
    """Reach, authenticate, authorise, and find the topic or table. Changes nothing, and never raises for
    what a server did; takes at most some seconds.

    Give the same `connectors` to all checks of a command: they share connections and bad news. `outputs`
    says which columns a sink writes (by default without Spark, as far as that can be told).
    `directory` is where relative paths begin, by default that of the secrets. `warehouse` (absolute) is
    where the checkpoint is, to see whether its offsets mean something upstream; without it, that is left out.
    """
    connectors = connectors or Connectors()
    try:
        with missing_extras_reported():
            if description.address.kind == "connection":  # one that nothing uses
                inlined = as_connection(description)
                return Probe(
                    diagnostics=check_connection(inlined, secrets, directory or str(secrets.directory)) or ()
                )
            query = resolve(description, secrets, directory or str(secrets.directory), warehouse)
            if description.address.kind == "sink":
                return connectors.sink(description.type).probe(query, outputs(query))
            connector = connectors.source(description.type)
            found = connector.probe(query)
            if query.checkpoint is None or found.upstream is None:
                return found
            other = judge_upstream(connector, query, query.checkpoint, found.upstream).diagnostic
            return replace(found, diagnostics=(*found.diagnostics, other)) if other else found
    except MzplanError as problem:
        return Probe(
            diagnostics=tuple(
                d if d.address else replace(d, address=description.address) for d in problem.diagnostics
            )
        )
