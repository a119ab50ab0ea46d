"""Reads steps of a source or view again from the upstream.

Spark parses Kafka records and lines of files again, because no other parser agrees with it on all numbers,
dates, quotes and malformed records. An endpoint reads an upstream that has rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote

from mzplan.connectors.api.connector import SourceConnector, Upstream
from mzplan.connectors.api.queries import ResolvedQuery, resolve
from mzplan.connectors.catalogue import Connectors
from mzplan.connectors.formats.dead_letters import WORD
from mzplan.connectors.frames.row_hash import content_hash
from mzplan.model.diagnostics import error
from mzplan.schema.columns import POSITION
from mzplan.schema.description import Description
from mzplan.schema.kinds import resource_kind
from mzplan.secrets.references import Secrets
from mzplan.spark import failures
from mzplan.spark.command_session import close_command_session, open_command_session
from mzplan.spark.verification.view import ViewUpstream
from mzplan.warehouse.content_hash import ContentHash
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.folder import exists
from mzplan.warehouse.step_record import StepRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def open_upstream(
    description: Description,
    secrets: Secrets,
    directory: str,
    warehouse: str,
    starting: Callable[[], None] = lambda: None,
) -> Upstream:
    """Return the upstream of a source, or the collection that a view reads.

    Opens a Spark session in this process if the records need it, and calls `starting` first. Raises
    MzplanError, also for types that can't be read again.
    """
    query, connectors = resolve(description, secrets, directory, warehouse), Connectors()
    kind = resource_kind(description.address.kind, description.type)
    if kind.query_property is not None and not query.keys:
        resolve_again = partial(resolve, secrets=secrets, directory=directory, warehouse=warehouse)
        session, position = open_command_session(starting), connectors.position(description)
        return ViewUpstream(session, description, resolve_again, warehouse, position)
    connector = connectors.source(description.type)
    upstream = connector.upstream(query)
    why = ""
    if kind.query_property is None and upstream is None and connector.keeps_positions is None:
        type_ = f"{description.address.kind} of type {description.type}"
        why = f"A {type_} keeps no positions that could be read again."
    elif query.keys:
        why = (
            "A keyed collection keeps no record that changed nothing, so a step's records can't be compared."
        )
    if why:
        raise error(
            "MZ092",
            f"{query.address} can't be read again from its upstream",
            why,
            "verify without --from-upstream: from its collection.",
            address=query.address,
        )
    return upstream or SparkUpstream(open_command_session(starting), connector, query)


class SparkUpstream:
    """The upstream of one source with a checkpoint. Implements mzplan.connectors.api.connector.Upstream."""

    def __init__(self, spark: SparkSession, connector: SourceConnector, query: ResolvedQuery):
        checkpoint = query.checkpoint
        assert checkpoint is not None, "verifying needs the checkpoint"
        if query.body.get("on_error") == WORD:  # dead letters aren't rows of the collection
            query = replace(query, body={**query.body, "on_error": "skip"})
        self._spark = spark
        self._connector = connector
        self._query = query
        self._log = checkpoint.log
        self.keeps_positions = bool(connector.keeps_positions)

    def close(self) -> None:
        """Close the session."""
        close_command_session(self._spark)

    def rows(self, record: StepRecord) -> DataFrame:
        """Return the step's rows. Raises GoneError if the step's range of the upstream is unknown."""
        if record.end is None or (record.start is None and self.keeps_positions):
            raise GoneError("The range of the upstream that it read is no longer known.")
        return self._connector.replay(
            self._spark, self._query, record.start, record.end, lambda: self._files(record)
        )

    def _files(self, record: StepRecord) -> tuple[str, ...]:
        files = self._log.files(record.start, record.end)
        if not files:
            raise GoneError("The files that it read are no longer known.")
        missing = [file for file in files if not exists(file)]
        if missing:  # Spark would skip a missing file
            raise GoneError(f"The upstream: {missing[0]} is gone.")
        return tuple(map(unquote, files))  # Hadoop's paths are URIs without percent-encoding

    def content_hash(self, record: StepRecord) -> ContentHash:
        """See Upstream. Failures of the upstream raise GoneError: usually, it has deleted the records."""
        try:
            rows = self.rows(record)
            return content_hash(rows if self.keeps_positions else rows.drop(POSITION))
        except GoneError:
            raise
        except Exception as problem:
            raise GoneError(f"The upstream: {failures.of_exception(problem).text}") from None
