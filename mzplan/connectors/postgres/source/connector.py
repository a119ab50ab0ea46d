"""postgres sources: the latest row of each key of some tables, by logical replication."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg

from mzplan.connectors.adapter.source import EndpointSource, copy_steps, step_of
from mzplan.connectors.api.connector import SourceConnector
from mzplan.connectors.api.queries import Probe, ResolvedQuery
from mzplan.connectors.api.upstreams import another_upstream
from mzplan.connectors.postgres.client import probe_timeout_s
from mzplan.connectors.postgres.identity import ServerProbe
from mzplan.connectors.postgres.problems import route
from mzplan.connectors.postgres.source.endpoint import PostgresInputFactory
from mzplan.connectors.postgres.source.replication import lsn_of
from mzplan.connectors.postgres.source.slots import Names, find_slot, session, unpublish
from mzplan.connectors.postgres.source.snapshot import snapshot_copy
from mzplan.connectors.postgres.source.upstream_probe import probe_source
from mzplan.connectors.postgres.source.upstream_problems import explain, explaining
from mzplan.endpoints.steplog import StepLog
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.losses import FirstCopy, Loss
from mzplan.warehouse.checkpoints import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RELEASE_S = 60.0


class PostgresSource(SourceConnector):
    """Reads existing rows from a snapshot, then changes, into a keyed collection (schema.columns.CHANGE).

    Each query has an EndpointSource whose endpoint is a PostgresInput.
    """

    position = "STRUCT<lsn: BIGINT, sequence: BIGINT>"
    """For a change, the commit's LSN and a number within the transaction. For a row of a snapshot, the
    snapshot's LSN and 0."""

    compares_positions = True
    """A change is applied only if it is newer than the stored row, which may be from a later snapshot."""

    needs_cleanup = True

    def __init__(self) -> None:
        self._servers = ServerProbe(explain)

    def route(self, query: ResolvedQuery) -> str:
        return route(query.link)

    def probe(self, query: ResolvedQuery) -> Probe:
        return self._servers.probe(query, lambda connection: probe_source(connection, query))

    def compare(
        self, query: ResolvedQuery, recorded: Mapping[str, Any], found: Mapping[str, Any]
    ) -> Diagnostic | None:
        """Compare system identifier and database. Host and name don't matter.

        A promoted server is the same upstream if it has the slot (see `check_position`).
        """
        names = {"system_identifier": "the system identifier", "database_oid": "the database"}
        differing = [
            f"{label} is {found[name]} instead of {recorded[name]}"
            for name, label in names.items()
            if recorded.get(name) is not None and found.get(name) not in (None, recorded[name])
        ]
        if not differing:
            return None
        return another_upstream(query, "database", f"{route(query.link)}: {', '.join(differing)}")

    def check_position(self, query: ResolvedQuery, position: str) -> Diagnostic | None:
        return self._endpoints(query).check_position(query, position)

    def loss(self, query: ResolvedQuery, former: Checkpoint) -> Loss | None:
        """Return the changes that a new generation loses, because it begins with a snapshot of today."""
        log = StepLog(former.steps)
        steps = log.steps()
        notes = [log.note(step) for step in steps]
        if not any(note["kind"] == "changes" and note["after"] != note["to"] for note in notes):
            return None
        since = next(note["after"] for note in notes if note["kind"] == "changes")
        earlier = " or earlier" if steps.start > 0 else ""
        where = (
            f"{route(query.link)}: it has read changes from {since}{earlier} to {notes[-1]['to']}. It would "
            "begin with a snapshot of today, without the history and without rows that were deleted"
        )
        return Loss(lost=None, read=None, unit="changes", where=where)

    def stream(self, spark: SparkSession, query: ResolvedQuery) -> DataFrame:
        return self._endpoints(query).stream(spark, query)

    def backlog(self, query: ResolvedQuery) -> Mapping[str, int] | None:
        """Return the bytes of log written since the committed step, and of log kept for the slot.

        Returns None if the server doesn't answer or has no slot.
        """
        try:
            with session(query, probe_timeout_s(query)) as (_, connection):
                slot = find_slot(connection, Names.of(query).slot)
        except (psycopg.Error, MzplanError, OSError):
            return None
        return {"lag_bytes": slot.lag, "retained_bytes": slot.retained} if slot is not None else None

    def first_copy(self, checkpoint: Checkpoint, body: Mapping[str, Any]) -> FirstCopy:
        log, next_step = StepLog(checkpoint.steps), step_of(checkpoint.position() or "")
        copy = snapshot_copy(log, body["tables"], next_step)
        return replace(copy, positions=_positions(log, next_step, checkpoint.upstream()))

    def migrate_checkpoint(self, earlier: Checkpoint, later: Checkpoint) -> None:
        """Copy the steps' bounds and notes. The slot stays under its name."""
        copy_steps(earlier, later)

    def release(self, query: ResolvedQuery) -> None:
        """Drop the slot and publication of an abandoned generation, if they are mzplan's own.

        Raises MzplanError.
        """
        with explaining(query), session(query, _RELEASE_S) as (_, connection):
            unpublish(connection, Names.of(query))

    def _endpoints(self, query: ResolvedQuery) -> EndpointSource:
        return EndpointSource(PostgresInputFactory(query), position_type=self.position)


def _positions(log: StepLog, next_step: int | None, upstream: Mapping[str, Any] | None) -> dict[str, int]:
    """Return the position in the server's log up to which the committed steps have read its tables."""
    newest = log.newest()
    if newest is None or upstream is None:
        return {}
    is_committed = (next_step or 0) >= log.steps().stop
    server = f"{upstream.get('system_identifier')}/{upstream.get('database_oid')}"
    return {server: lsn_of(newest["to" if is_committed else "after"])}
