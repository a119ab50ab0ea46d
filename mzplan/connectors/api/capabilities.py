"""What only some sources and sinks can do: one that has the methods of one of these has the capability, and
`isinstance` asks for it.

What must be known of a type without its server's client library is in its package's `CONNECTOR` instead;
`Adopts` is of those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from mzplan.connectors.api.protocols import Output, ResolvedQuery, Rewriting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from mzplan.warehouse.content_hash import ContentHash
    from mzplan.warehouse.foreign_query import Left
    from mzplan.warehouse.step_record import StepRecord

LastTimes = Callable[[], Mapping[int, int]]
"""The time of the last record read, by partition, in milliseconds since the epoch."""


@runtime_checkable
class HasBacklog(Protocol):
    """The upstream can say how far behind a source is."""

    def backlog(self, query: ResolvedQuery) -> Mapping[str, int] | None:
        """What was not read after the last committed micro-batch, numbers by name: `records`; or `steps` and
        `rows`; or `lag_bytes` and `retained_bytes` (see Observation). None where the upstream does not say.
        Never raises for what a server did."""


@runtime_checkable
class Releases(Protocol):
    """A generation makes something on its upstream, which must not stay behind when it is given up."""

    def release(self, query: ResolvedQuery) -> None:
        """Remove it; nothing if it is gone. Raises MzplanError while that can't be done."""


@runtime_checkable
class Forgets(Protocol):
    """A generation of a sink keeps in its target what it goes on by. That goes with its storage, not when it
    is given up: until then it can be brought back."""

    def forget(self, query: ResolvedQuery) -> None:
        """Remove it, as far as that may be done; nothing if it is gone. Raises MzplanError for what a server
        did."""


@runtime_checkable
class Repositions(Protocol):
    """A checkpoint can be moved to another upstream (`on_upstream_change`), or on one that lost records."""

    def reposition(
        self, query: ResolvedQuery, policy: str, position: str | None, last_times: LastTimes
    ) -> str:
        """Where to go on, as an entry of Spark's offset log. `position`: on the same upstream, only what it
        no longer holds of it is moved. Raises MzplanError."""


@runtime_checkable
class Replays(Protocol):
    """A step that the stream has read can be read again, as a batch."""

    keeps_positions: bool
    """Whether `_position` is then the same: of lines in a file, `row` is no number but only an order."""

    def replay(
        self,
        spark: SparkSession,
        query: ResolvedQuery,
        start: Any,
        end: Any,
        files: Callable[[], Sequence[str]],
    ) -> DataFrame:
        """The rows between two entries of Spark's offset log, parsed. `files` finds the paths that the stream
        recorded between them, for a source of files; what it raises goes up."""


@runtime_checkable
class ReadsTimes(Replays, Protocol):
    """What its upstream holds of a range of times can be read again, as if it were a step (`mzplan
    backfill`). Its `Connector` says so, too (`by_time`)."""

    def between_times(
        self, query: ResolvedQuery, start: int, end: int, position: str | None
    ) -> tuple[Any, Any]:
        """The range of the records from `start` to `end`, without that, in milliseconds since the epoch, and
        before `position`, an entry of Spark's offset log: what comes behind it the query reads itself. As two
        such entries for `replay`. Raises MzplanError: MZ277 where the upstream holds
        nothing of it, or not all of it any more, and for what a server did."""


class Upstream(Protocol):
    """Reads steps of one source again, without Spark: as mzplan.features.steps.steps.Upstream."""

    keeps_positions: bool

    def content_hash(self, record: StepRecord) -> ContentHash:
        """The hash of the step's rows, as the upstream has them now. Raises GoneError."""

    def close(self) -> None:
        """Let go of what it holds."""


@runtime_checkable
class ReplaysAlone(Protocol):
    """The same without Spark: the endpoint keeps rows as they came."""

    def upstream(self, query: ResolvedQuery) -> Upstream:
        """The upstream of a query that has a checkpoint."""


@runtime_checkable
class SendsLetters(Protocol):
    """Its malformed records can be sent to another place of its server (`on_error: dead-letter`)."""

    def send_letters(self, records: DataFrame, query: ResolvedQuery) -> None:
        """Write records, each once: columns `key` and `value` (BINARY), and `headers`, an array of structs
        `key` STRING, `value` BINARY."""


@runtime_checkable
class Prepares(Protocol):
    """A sink can make what its target lacks, where its description says so; its probe says whether it would
    (`Probe.makes`)."""

    def prepare(self, query: ResolvedQuery, outputs: Sequence[Output]) -> None:
        """Make it, all or nothing; nothing where nothing is missing (any more), or a type is not known.
        Nothing that is there is dropped or retyped. Safe for several processes at once. Raises MzplanError
        for what a server did."""


@runtime_checkable
class Compacts(Protocol):
    """The target of a sink that is fed in small steps can be put in order, where its declaration asks for it
    (`compaction`)."""

    def compact(self, query: ResolvedQuery, spark: SparkSession, rewriting: Rewriting) -> str | None:
        """Do so, if it is due. What was done, in words; None for nothing. The rows, and what is recorded of
        steps, stay. May take long; asked again and again, while the query runs. Raises MzplanError, and what
        Spark raises, such as for a change by somebody else meanwhile."""


@runtime_checkable
class WritesTable(Protocol):
    """The target of a sink is a Delta table, which may ask for more than the Delta of a runner has."""

    def target_table(self, query: ResolvedQuery) -> str | None:
        """Its path or URI; it need not be there yet. None where its log can't be read without Spark."""


class Adopts(Protocol):
    """A source of this type can go on from the checkpoint of a query that somebody wrote by hand."""

    def folder(self, directory: str, connection: Mapping[str, Any], body: Mapping[str, Any]) -> str | None:
        """The folder that the source reads, absolute; None for one that reads none. Bodies have defaults."""

    def problems(
        self, left: Left, position: Mapping[str, Any], body: Mapping[str, Any], folder: str | None
    ) -> Iterator[str]:
        """Why it can't go on from there, a sentence each. `position`: the newest entry of the query's log of
        offsets. Raises OSError."""
