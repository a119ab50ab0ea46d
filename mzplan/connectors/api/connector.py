"""What a connector is: the two sides that a type of source and sink fills, and what its package exposes as
`CONNECTOR`.

A connector decides nothing about when a query runs. A source says where its rows come from, a sink where they
go; `mzplan.spark` makes streaming queries of them. `probe` needs no pyspark and changes nothing. What only
some sources and sinks can do has a default here: that of one which can't.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mzplan.connectors.api.queries import Output, Probe, ResolvedQuery, Rewriting, SinkRun
from mzplan.connectors.api.targets import Recorded
from mzplan.model.diagnostics import Diagnostic, MzplanError, refusal
from mzplan.model.losses import Loss
from mzplan.warehouse.checkpoints import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from mzplan.connectors.api.lineage_names import Ends
    from mzplan.warehouse.checkpoints import Checkpoint
    from mzplan.warehouse.content_hash import ContentHash
    from mzplan.warehouse.foreign_query import Left
    from mzplan.warehouse.step_record import StepRecord

LastTimes = Callable[[], Mapping[int, int]]
"""The time of the last record read, by partition, in milliseconds since the epoch."""


class Side(Protocol):
    """What sources and sinks have in common."""

    leaves: bool = False
    """Whether a generation makes something on its upstream (`release`), or keeps something in its target
    (`forget`)."""

    def route(self, query: ResolvedQuery) -> str:
        """Which connection, and where it goes (host and port, or folder): for people."""


class SourceConnector(Side, Protocol):
    """Where the rows of a collection come from."""

    position: str
    """The type of the reserved column `_position`, as Spark DDL."""
    guarded: bool = False
    """Whether a change of a key counts only when its `_position` is greater than that of the row that is
    there."""
    keeps_positions: bool | None = None
    """Of a source whose steps `replay` reads again: whether `_position` is then the same. Of lines in a file,
    `row` is not a number but only an order. None where none can be read again so."""
    moves: bool = False
    """Whether a checkpoint can be moved (`reposition`)."""
    watches_loss: bool = False
    """Whether `loss` costs so little that a runner may ask for it now and then, for its Status."""

    def probe(self, query: ResolvedQuery) -> Probe:
        """Reach, authenticate, authorise and find the upstream. Never raises for what a server did."""

    def compare(
        self, query: ResolvedQuery, recorded: Mapping[str, Any], found: Mapping[str, Any]
    ) -> Diagnostic | None:
        """Why offsets of the `recorded` upstream mean nothing on the `found` one; None if they hold."""
        return None

    def check_position(self, query: ResolvedQuery, position: str) -> Diagnostic | None:
        """Whether the upstream still holds what comes after `position`, the source's entry in Spark's offset
        log. None if it does, or if that is unknown. Never raises for what a server did."""
        return None

    def guard(self, query: ResolvedQuery) -> Callable[[int], None] | None:
        """Return a check that runs on each planned step before its rows are read, or None if the stream
        itself notices another upstream. The check raises MzplanError if the upstream is no longer the
        recorded one, and for what a server did. Raises OSError."""
        return None

    def loss(self, query: ResolvedQuery, former: Checkpoint) -> Loss | None:
        """What a generation that begins now, as `query` says, could not read again of what the one with the
        checkpoint `former` has read; None for nothing. Raises MzplanError for what a server did, OSError."""
        return None

    def stream(self, spark: SparkSession, query: ResolvedQuery) -> DataFrame:
        """The stream of rows: the user's columns in order, then `_position`. Of a keyed collection
        (`query.keys`) then `_change`: `upsert` or `delete`; a delete has the columns of the key, and perhaps
        no others. Of one key, the change with the greatest `_position` of a micro-batch counts (see
        `guarded`)."""

    def release(self, query: ResolvedQuery) -> None:
        """Remove what a generation has made on its upstream, which must not stay behind when it is given up;
        nothing if it is gone. Raises MzplanError while that can't be done."""
        return

    def backlog(self, query: ResolvedQuery) -> Mapping[str, int] | None:
        """What was not read after the last committed micro-batch, numbers by name: `records`; or `steps` and
        `rows`; or `lag_bytes` and `retained_bytes` (see Observation). None where the upstream does not say.
        Never raises for what a server did."""
        return None

    def reposition(
        self, query: ResolvedQuery, policy: str, position: str | None, last_times: LastTimes
    ) -> str:
        """Where to go on, as an entry of Spark's offset log: on another upstream (`on_upstream_change`), or
        on one that lost records. `position`: on the same upstream, only what it no longer holds of it is
        moved. Raises MzplanError."""
        raise refusal("MZ043", "This kind of source can't be moved")

    def replay(
        self,
        spark: SparkSession,
        query: ResolvedQuery,
        start: Any,
        end: Any,
        files: Callable[[], Sequence[str]],
    ) -> DataFrame:
        """The rows between two entries of Spark's offset log, as a batch, parsed. `files` finds the paths
        that the stream recorded between them, for a source of files; what it raises goes up."""
        raise AssertionError(f"{query.address} keeps no positions")

    def between_times(
        self, query: ResolvedQuery, start: int, end: int, position: str | None
    ) -> tuple[Any, Any]:
        """The range of the records from `start` to `end`, without that, in milliseconds since the epoch, and
        before `position`, an entry of Spark's offset log: what comes behind it the query reads itself. As two
        such entries for `replay`, which reads them as if they were a step (`mzplan backfill`). Its
        `Connector` says so, too (`by_time`). Raises MzplanError: MZ273 for a type that can't, MZ277 where the
        upstream holds nothing of it, or not all of it any more, and for what a server did."""
        raise no_times(query)

    def migrate_checkpoint(self, earlier: Checkpoint, later: Checkpoint) -> None:
        """Bring into a new checkpoint what the source keeps beside its position, which is the same in both
        (`lifecycle: {replace: from-collection}`, which the schema offers). Again, it is the same. Raises
        OSError."""
        return

    def upstream(self, query: ResolvedQuery) -> Upstream | None:
        """What reads the steps of a query that has a checkpoint again without Spark, for the endpoint keeps
        rows as they came; None where none does."""
        return None

    def parse(self, records: DataFrame, query: ResolvedQuery) -> DataFrame:
        """The rows that `stream` makes of these records, which have the columns that it reads
        (`on_error: dead-letter`)."""
        raise AssertionError("the schema of no other source has this word")

    def send_letters(self, records: DataFrame, query: ResolvedQuery) -> None:
        """Write malformed records to another place of its server (`on_error: dead-letter`), each once:
        columns `key` and `value` (BINARY), and `headers`, an array of structs `key` STRING, `value`
        BINARY."""
        raise AssertionError("the schema of no other source has this word")


class SinkConnector(Side, Protocol):
    """Where the rows of a collection go."""

    def probe(self, query: ResolvedQuery, outputs: Sequence[Output]) -> Probe:
        """Reach, authenticate, authorise and find the target. Never raises for what a server did."""

    def write(self, rows: DataFrame, run: SinkRun) -> DataStreamWriter:
        """A writer of the stream `rows`: the outputs in order, then `_position`, which no target gets. Of a
        keyed collection then `_change`: whether the row is to be in the target (`upsert`) or not (`delete`).
        Only sinks whose schema says `x-deletes` are given those."""

    def recorded(self, query: ResolvedQuery, outputs: Sequence[Output]) -> Recorded:
        """What is recorded of its steps. Raises MzplanError MZ177 for a target that keeps nothing, and for
        what a server did."""

    def ensure_whole(self, query: ResolvedQuery) -> None:
        """Check, after steps of a running query, that the target holds all steps that the checkpoint says are
        written. Raises MzplanError MZ069 if it doesn't."""
        return

    def prepare(self, query: ResolvedQuery, outputs: Sequence[Output]) -> None:
        """Make what the target lacks, where the description says so (`Probe.makes`), all or nothing; nothing
        where nothing is missing (any more), or a type is not known. Nothing that is there is dropped or
        retyped. Safe for several processes at once. Raises MzplanError for what a server did."""
        return

    def forget(self, query: ResolvedQuery) -> None:
        """Remove what a generation keeps in its target to go on by, as far as that may be done; nothing if it
        is gone. It goes with the storage, not when the generation is given up: until then that can be brought
        back. Raises MzplanError for what a server did."""
        return

    def compact(self, query: ResolvedQuery, spark: SparkSession, rewriting: Rewriting) -> str | None:
        """Put in order a target that is fed in small steps, where its declaration asks for it (`compaction`)
        and it is due. What was done, in words; None for nothing. The rows, and what is recorded of steps,
        stay. May take long; asked again and again, while the query runs. Raises MzplanError, and what Spark
        raises, such as for a change by somebody else meanwhile."""
        return None

    def put_again(self, rows: DataFrame, run: SinkRun, name: str) -> None:
        """Write rows of steps that are written already, all or nothing, and without a step of their own: of
        an upsert one for each key, which is what the target should have of it; else rows that it lacks.
        Columns as in `write`. No query writes meanwhile. `name` is that of the replay, and of no other: what
        was written under it is not written again by a runner that was frozen. The `Connector` says that its
        sink can (`replays`)."""
        raise AssertionError(f"a sink of type {run.query.description.type} replays nothing")

    def target_table(self, query: ResolvedQuery) -> str | None:
        """The path or URI of the Delta table that is the target, which may ask for more than the Delta of a
        runner has; it need not be there yet. None for another target, or where its log can't be read without
        Spark."""
        return None


class Upstream(Protocol):
    """Reads steps of one source again from its upstream."""

    keeps_positions: bool
    """Whether `_position` is the same whenever a record is read."""

    def content_hash(self, record: StepRecord) -> ContentHash:
        """The hash of the step's records as the upstream holds them now, without `_position` unless
        `keeps_positions`. Raises GoneError."""

    def close(self) -> None:
        """Let go of what it holds."""


class Adopts(Protocol):
    """A source of this type can go on from the checkpoint of a query that somebody wrote by hand."""

    def folder(self, directory: str, connection: Mapping[str, Any], body: Mapping[str, Any]) -> str | None:
        """The folder that the source reads, absolute; None for one that reads none. Bodies have defaults."""

    def problems(
        self, left: Left, position: Mapping[str, Any], body: Mapping[str, Any], folder: str | None
    ) -> Iterator[str]:
        """Why it can't go on from there, a sentence each. `position`: the newest entry of the query's log of
        offsets. Raises OSError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ddl:
    """SQL that makes, on a server, what a source or a sink needs there, for an administrator to read and run:
    the statements of one query, each ended by a semicolon; all may be run again. `place`: the server and
    database that they are for, in words. `enter`: what goes there, for a script that visits several. `notes`:
    what no statement can do, one line each."""

    place: str
    enter: str
    statements: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector:
    """One type of resource; `None` for what it lacks. All are functions that import when they are called: to
    know a type must cost neither its server's client library, which need not be installed, nor pyspark.

    `source` and `sink` make one, for all queries of a
    process. `reach` says what stands in the way of a connection of this type that no query uses (`link` of a
    query in name only): None for nothing; raises MzplanError, too. `adopts`
    makes what says whether a source goes on from a query that was written by hand. `ends`: what OpenLineage
    calls the other end of a query, whose secrets are still references; None: there is no name for it. `ddl`
    is what an administrator runs on the server before a query can: secrets of that query are references, as
    they are written; raises MzplanError. `by_time`: its source can read a bounded range of times again
    (SourceConnector.between_times). `replays`: its sink can write rows once more (SinkConnector.put_again).

    Of a connection, to know where its secrets go: `servers` are those that it reaches itself, as `host:port`,
    by its body with defaults, where secrets are references; None: they can't be known. `carries`: what uses
    it reaches its own servers through these. `lends`: what uses it signs in with its secrets, too. `machine`:
    the reference that stands for credentials of the machine it runs on, "" where it uses none."""

    type: str
    source: Callable[[], SourceConnector] | None = None
    sink: Callable[[], SinkConnector] | None = None
    reach: Callable[[ResolvedQuery], Diagnostic | None] | None = None
    adopts: Callable[[], Adopts] | None = None
    ends: Callable[[ResolvedQuery], Ends] | None = None
    ddl: Callable[[ResolvedQuery, Sequence[Output]], Ddl] | None = None
    by_time: bool = False
    replays: bool = False
    servers: Callable[[Mapping[str, Any]], Sequence[str]] | None = None
    carries: bool = False
    lends: bool = False
    machine: Callable[[Mapping[str, Any]], str] | None = None


def no_times(query: ResolvedQuery) -> MzplanError:
    """MZ273: a backfill of a source that can't read by time."""
    return refusal(
        "MZ273",
        f"{query.address} can't be backfilled",
        f"A source of type {query.description.type} has no times by which it could read a range again.",
        f"mzplan backfill {query.address} --cancel",
        address=query.address,
    )
