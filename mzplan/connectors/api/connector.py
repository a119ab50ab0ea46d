"""The connector interface: the source and sink protocols, and `Connector`, which each package exposes as
`CONNECTOR`.

A connector doesn't decide when a query runs. A source says where its rows come from, a sink where they go;
`mzplan.spark` makes streaming queries from them. `probe` needs no pyspark and changes nothing. Each optional
capability has a default here, for connectors without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mzplan.connectors.api.queries import Output, Probe, ResolvedQuery, Rewriting, SinkRun
from mzplan.connectors.api.targets import Recorded
from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.model.losses import FirstCopy, Loss
from mzplan.warehouse.checkpoints import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from mzplan.connectors.api.lineage_names import LineageNames
    from mzplan.connectors.api.offers import Offer
    from mzplan.warehouse.foreign_query import ForeignQuery
    from mzplan.warehouse.rows.content_hash import ContentHash
    from mzplan.warehouse.step_record import StepRecord

LastTimes = Callable[[], Mapping[int, int]]
"""Returns, by partition, the time of the last record that was read, in milliseconds since the epoch."""


class Side(Protocol):
    """The part of the interface that sources and sinks share."""

    needs_cleanup: bool = False
    """Whether a generation creates something on its upstream (`release`) or keeps something in its target
    (`forget`)."""

    def route(self, query: ResolvedQuery) -> str:
        """Return the connection and its destination (host and port, or folder) as text for people."""


class SourceConnector(Side, Protocol):
    """Reads the rows of a collection from an upstream."""

    position: str
    """The type of the reserved column `_position`, as Spark DDL."""
    compares_positions: bool = False
    """Whether a change applies only if its `_position` is greater than the position of the key's current
    row."""
    keeps_positions: bool | None = None
    """Whether rows that `replay` reads again get the same `_position`. False for lines of files, whose `row`
    only orders them. None if the source can't read steps again."""
    can_reposition: bool = False
    """Whether `reposition` can move a checkpoint."""
    has_cheap_loss: bool = False
    """Whether `loss` is cheap enough for a runner to call it regularly, for its Status."""

    def position_of(self, variant: str) -> str:
        """Return the type of `_position`, as Spark DDL. `variant`: of `x-position` in the source's schema."""
        return self.position

    def probe(self, query: ResolvedQuery) -> Probe:
        """Connect, authenticate, check the rights and find the upstream. Doesn't raise if a server fails."""

    def compare(
        self, query: ResolvedQuery, recorded: Mapping[str, Any], found: Mapping[str, Any]
    ) -> Diagnostic | None:
        """Return why offsets of the `recorded` upstream are invalid on the `found` one, or None if they are
        valid."""
        return None

    def check_position(self, query: ResolvedQuery, position: str) -> Diagnostic | None:
        """Return an error if the upstream no longer holds the records after `position`, an entry of Spark's
        offset log. Returns None if it holds them, or if that is unknown. Doesn't raise if a server fails."""
        return None

    def guard(self, query: ResolvedQuery) -> Callable[[int], None] | None:
        """Return a check that runs on each planned step before its rows are read. Returns None if the stream
        itself notices another upstream. The check raises MzplanError if the upstream is no longer the
        recorded one, and for a server's errors. Raises OSError."""
        return None

    def loss(self, query: ResolvedQuery, former: Checkpoint) -> Loss | None:
        """Return the rows of the `former` checkpoint that a new generation of `query` couldn't read again, or
        None. Raises OSError, and MzplanError for a server's errors."""
        return None

    def stream(self, spark: SparkSession, query: ResolvedQuery) -> DataFrame:
        """Return the stream of rows: the user's columns in order, then `_position`.

        A keyed collection (`query.keys`) also has `_change`: `upsert` or `delete`. A delete has the key's
        columns, and perhaps no others. If a micro-batch has several changes of a key, the one with the
        greatest `_position` counts (see `compares_positions`).
        """

    def table(self, query: ResolvedQuery) -> Callable[[SparkSession], DataFrame] | None:
        """Return a reader of all rows of the upstream: the user's columns in order. None for a stream.

        Each step of such a source changes the rows of its keyed collection that differ. `stream` then only
        triggers the steps."""
        return None

    def release(self, query: ResolvedQuery) -> None:
        """Remove the objects that a dropped generation created on its upstream. Does nothing if they are
        gone. Raises MzplanError while they can't be removed."""
        return

    def backlog(self, query: ResolvedQuery) -> Mapping[str, int] | None:
        """Return how much data is unread after the last committed micro-batch, as numbers by name.

        The names are `records`; or `steps` and `rows`; or `lag_bytes` and `retained_bytes` (see Observation).
        Returns None if it is unknown. Doesn't raise if a server fails."""
        return None

    def upstream_end(self, query: ResolvedQuery) -> Any:
        """Return where the upstream ends now, as JSON, for `first_copy`. Called before the first start.

        Returns None if that is unknown, or if `first_copy` doesn't need it. Raises MzplanError."""
        return None

    def first_copy(self, checkpoint: Checkpoint, body: Mapping[str, Any]) -> FirstCopy:
        """Return how much of the rows that were there at the first start is read.

        Called once a micro-batch is finished. Contacts no server. By default, the first micro-batch reads all
        of these rows. `body` has its defaults. Raises OSError."""
        return FirstCopy()

    def reposition(
        self, query: ResolvedQuery, policy: str, position: str | None, last_times: LastTimes
    ) -> str:
        """Return the position at which to continue, as an entry of Spark's offset log. Raises MzplanError.

        Without `position`, the upstream is another one (`on_upstream_change`). With `position`, the upstream
        is the same but has lost records: only the parts of `position` that it no longer holds change."""
        raise error("MZ043.kind-source")

    def extended(self, query: ResolvedQuery, position: str, found: Mapping[str, Any]) -> str | None:
        """Return a position with the parts of the upstream that `position` doesn't know, or None.

        `found`: the identity of the upstream. The position is an entry of Spark's offset log. Raises
        MzplanError."""
        return None

    def replay(
        self,
        spark: SparkSession,
        query: ResolvedQuery,
        start: Any,
        end: Any,
        files: Callable[[], Sequence[str]],
    ) -> DataFrame:
        """Return the parsed rows between two entries of Spark's offset log, as a batch.

        For a source of files, `files` returns the paths that the stream recorded between the entries."""
        raise AssertionError(f"{query.address} keeps no positions")

    def between_times(
        self, query: ResolvedQuery, start: int, end: int, position: str | None
    ) -> tuple[Any, Any]:
        """Return the records from `start` up to, but not including, `end` as two entries of Spark's offset
        log.

        Times are in milliseconds since the epoch. The range ends before `position`, an entry of the offset
        log, because the query itself reads the records after it. `replay` reads the range as if it were a
        step (`mzplan backfill`). A source that can do this sets `Connector.by_time`. Raises MzplanError for a
        server's errors, MZ273 for a type that can't, and MZ277 if the upstream holds none of the range or no
        longer all of it.
        """
        raise no_times(query)

    def migrate_checkpoint(self, earlier: Checkpoint, later: Checkpoint) -> None:
        """Copy the data that the source keeps beside its position into a new checkpoint.

        Called for `lifecycle: {replace: from-collection}`, if the schema offers it. Idempotent. Raises
        OSError."""
        return

    def upstream(self, query: ResolvedQuery) -> Upstream | None:
        """Return a reader of the query's steps that needs no Spark, or None. The query has a checkpoint."""
        return None

    def parse(self, records: DataFrame, query: ResolvedQuery) -> DataFrame:
        """Return the rows of these records, as `stream` would return them (`on_error: dead-letter`)."""
        raise AssertionError("the schema of no other source has this word")

    def send_letters(self, records: DataFrame, query: ResolvedQuery) -> None:
        """Write malformed records to the place for dead letters on the server (`on_error: dead-letter`).

        Columns: `key` and `value` (BINARY), and `headers`, an array of structs `key` STRING, `value`
        BINARY."""
        raise AssertionError("the schema of no other source has this word")


class SinkConnector(Side, Protocol):
    """Writes the rows of a collection to a target."""

    def probe(self, query: ResolvedQuery, outputs: Sequence[Output]) -> Probe:
        """Connect, authenticate, check the rights and find the target. Doesn't raise if a server fails."""

    def write(self, rows: DataFrame, run: SinkRun) -> DataStreamWriter:
        """Return a writer for the stream `rows`: the outputs in order, then `_position`, which isn't written.

        A keyed collection also has `_change`: `upsert` if the target should hold the row, `delete` if not.
        Deletes go only to sinks whose schema sets `x-deletes`.
        """

    def recorded(self, query: ResolvedQuery, outputs: Sequence[Output]) -> Recorded:
        """Return the target's record of the sink's steps. Raises MzplanError for a server's errors, and MZ177
        for a target that keeps no record."""

    def ensure_whole(self, query: ResolvedQuery) -> None:
        """Raise MzplanError MZ069 if the target is missing a step that the checkpoint has recorded.

        Called after steps of a running query."""
        return

    def prepare(self, query: ResolvedQuery, outputs: Sequence[Output]) -> None:
        """Create all missing parts of the target, or none, if the description asks for it.

        `Probe.must_create` says whether the description asks for it.

        Does nothing if nothing is missing or a column's type isn't known. Never drops
        anything, and changes types only to wider ones.
        Several processes may call it at once. Raises MzplanError for a server's errors.
        """
        return

    def forget(self, query: ResolvedQuery) -> None:
        """Remove the data with which a generation would resume from its target, as far as rights allow.

        Idempotent. Called only when the storage is removed: until then, a dropped generation can be restored.
        Raises MzplanError for a server's errors.
        """
        return

    def compact(self, query: ResolvedQuery, spark: SparkSession, rewriting: Rewriting) -> str | None:
        """Compact a target that receives small steps, if `compaction` asks for that and compaction is due.

        Returns a description of the work done, or None. Keeps all rows and records of steps. Called
        repeatedly while the query runs. May take a long time. Raises MzplanError and Spark's errors, such as
        for a concurrent change.
        """
        return None

    def put_again(self, rows: DataFrame, run: SinkRun, name: str) -> None:
        """Write rows of written steps once more, all or nothing, without recording a step.

        For an upsert, `rows` has one row per key, which the target should hold. Otherwise it has the rows
        that are missing. Columns are as in `write`. No query writes meanwhile. `name` identifies the replay,
        so that a frozen runner doesn't write the same rows again when it resumes. A sink that can do this
        sets `Connector.replays`.
        """
        raise AssertionError(f"a sink of type {run.query.description.type} replays nothing")

    def target_table(self, query: ResolvedQuery) -> str | None:
        """Return the path or URI of the Delta table that is the target, or None for another kind of target.
        Also returns None if its log can't be read without Spark. The table may not exist yet, and may need a
        newer Delta than the runner has."""
        return None


class Upstream(Protocol):
    """Rereads steps of one source from its upstream."""

    keeps_positions: bool
    """Whether reading a record again gives the same `_position`."""

    def content_hash(self, record: StepRecord) -> ContentHash:
        """Return the hash of the step's records as the upstream holds them now. Raises GoneError.

        The hash covers `_position` only with `keeps_positions`."""

    def close(self) -> None:
        """Release the resources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptingSource:
    """A declared source that continues from the checkpoint of a hand-written query. `body` and `connection`
    (the connection's body) have their defaults filled in. Relative paths start from `directory`."""

    type: str
    body: Mapping[str, Any]
    connection: Mapping[str, Any]
    directory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ddl:
    """SQL for an administrator to review and run: it creates what one query needs on a server.

    - `place`: the server and database, in words.
    - `enter`: the psql command that connects to `place`, for a script that visits several places.
    - `statements`: each ends with a semicolon and can be run again.
    - `notes`: steps that no statement can do, one line each.
    """

    place: str
    enter: str
    statements: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector:
    """One type of resource. A capability that the type doesn't have is None or False.

    Functions import when they are called: knowing a type must load neither pyspark nor the client library of
    its server, which may not be installed.

    - `source`, `sink`: make the connector that serves all queries of a process.
    - `reach`: why an unused connection of this type can't be reached, or None. Takes a placeholder query and
      reads its `link`. May also raise MzplanError.
    - `adoption_problems`: yields each reason why a source can't continue from a hand-written query, as a
      sentence. Takes the query and the newest entry of its offset log. Raises OSError.
    - `lineage_ends`: OpenLineage's names for a query's upstream or target; None if it has no name. Secrets
      are references.
    - `ddl`: the SQL that an administrator runs on the server before the query can run. Secrets are
      references. Raises MzplanError.
    - `offers`: the topics or tables that a connection's server has, as sources. Takes a placeholder query
      with the connection and, if the project has one, a schema registry. Raises MzplanError.
    - `by_time`: whether the source can reread a bounded range of times (SourceConnector.between_times).
    - `replays`: whether the sink can write rows once more (SinkConnector.put_again).

    The others describe where a connection's secrets go:

    - `servers`: returns the servers to which a connection itself connects, as `host:port`. Takes its body
      with defaults, where secrets are references. None if the servers can't be known.
    - `carries_traffic`: whether other connections reach their servers through it.
    - `lends_secrets`: whether other connections sign in with its secrets.
    - `machine`: returns the reference that stands for the machine's own credentials, or "" if the connection
      doesn't use them.
    """

    type: str
    source: Callable[[], SourceConnector] | None = None
    sink: Callable[[], SinkConnector] | None = None
    reach: Callable[[ResolvedQuery], Diagnostic | None] | None = None
    adoption_problems: Callable[[AdoptingSource, ForeignQuery, Mapping[str, Any]], Iterator[str]] | None = (
        None
    )
    lineage_ends: Callable[[ResolvedQuery], LineageNames] | None = None
    ddl: Callable[[ResolvedQuery, Sequence[Output]], Ddl] | None = None
    offers: Callable[[ResolvedQuery], Sequence[Offer]] | None = None
    by_time: bool = False
    replays: bool = False
    servers: Callable[[Mapping[str, Any]], Sequence[str]] | None = None
    carries_traffic: bool = False
    lends_secrets: bool = False
    machine: Callable[[Mapping[str, Any]], str] | None = None


def no_times(query: ResolvedQuery) -> MzplanError:
    """Return MZ273 for a backfill of a source that can't read by time."""
    return error("MZ273.cannot-backfilled-source-type", address=query.address, type=query.description.type)
