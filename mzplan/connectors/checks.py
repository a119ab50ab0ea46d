"""The live check of one source or sink, with or without Spark: what the command line and the runner share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from mzplan.connectors.checkpoints import Checkpoint
from mzplan.connectors.interface import Output, Probe, ResolvedQuery, SourceConnector, resolve
from mzplan.connectors.lookup import Connectors
from mzplan.connectors.select import outputs_without_spark
from mzplan.inline import Description
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.secrets import Secrets


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
        query = resolve(description, secrets, directory or str(secrets.directory), warehouse)
        if description.address.kind == "sink":
            return connectors.sink(description.type).probe(query, outputs(query))
        connector = connectors.source(description.type)
        found = connector.probe(query)
        if query.checkpoint is None or found.upstream is None:
            return found
        other = check_checkpoint(connector, query, query.checkpoint, found.upstream)
        return replace(found, diagnostics=(*found.diagnostics, other)) if other else found
    except MzplanError as problem:
        return Probe(
            diagnostics=tuple(
                d if d.address else replace(d, address=description.address) for d in problem.diagnostics
            )
        )


def check_checkpoint(
    connector: SourceConnector, query: ResolvedQuery, checkpoint: Checkpoint, found: Mapping[str, Any]
) -> Diagnostic | None:
    """Why a checkpoint's offsets mean nothing on the upstream that was found (None: they hold)."""
    try:
        recorded = checkpoint.upstream() if checkpoint.has_begun() else None
        position = checkpoint.position()
    except OSError as problem:
        return Diagnostic(
            code="MZ063",
            summary=f"The checkpoint of {query.address} can't be read",
            detail=str(problem),
            hint="check the warehouse and its rights.",
            address=query.address,
        )
    other = connector.compare(query, recorded, found) if recorded is not None else None
    if other is None and position is not None:
        return connector.check_position(query, position)
    return other
