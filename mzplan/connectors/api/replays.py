"""Reading a step of a native source again: what its stream has read, as a batch. Or records that were kept.

The connector's own `stream` makes the rows, handed a session whose streams are batches; so they become
columns exactly as they did, and no connector has a second way to read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from mzplan.connectors.api.connector import SourceConnector
from mzplan.connectors.api.queries import ResolvedQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ONLY_STREAMS = {
    "subscribe",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxOffsetsPerTrigger",
    "maxFilesPerTrigger",
}


def replay(
    spark: SparkSession,
    connector: SourceConnector,
    query: ResolvedQuery,
    options: Mapping[str, str],
    files: Sequence[str] = (),
) -> DataFrame:
    """The rows that the stream would make of what these options name, or of these files."""
    # A name may hold *, as any other sign: streams, too, read the files of a batch with this option.
    given = {**options, "__globPaths__": "false"} if files else dict(options)
    return connector.stream(cast(Any, _BatchSession(spark, given, list(files))), query)


def parsed_again(connector: SourceConnector, query: ResolvedQuery, records: DataFrame) -> DataFrame:
    """The rows that the stream would make of these records, which have the columns that it would read."""
    return connector.stream(cast(Any, _GivenSession(records.sparkSession, records)), query)


@dataclass(frozen=True, slots=True)
class _GivenSession:
    """A Spark session whose streams are given records, whatever they are to read."""

    spark: SparkSession
    records: DataFrame

    @property
    def readStream(self) -> _GivenSession:  # noqa: N802
        return self

    def format(self, name: str) -> _GivenSession:
        return self

    def options(self, **options: Any) -> _GivenSession:
        return self

    def load(self) -> DataFrame:
        return self.records


@dataclass(frozen=True, slots=True)
class _BatchSession:
    """A Spark session whose streams are batches."""

    spark: SparkSession
    given: Mapping[str, str]
    files: list[str]

    @property
    def readStream(self) -> _BatchReader:  # noqa: N802
        return _BatchReader(self.spark.read, self.given, self.files)


@dataclass(slots=True)
class _BatchReader:
    """A batch reader in the place of a stream's. Of its options, those that name what is read are ours."""

    reader: Any
    given: Mapping[str, str]
    files: list[str] = field(default_factory=list)

    def format(self, name: str) -> _BatchReader:
        self.reader = self.reader.format(name)
        return self

    def schema(self, ddl: str) -> _BatchReader:
        self.reader = self.reader.schema(ddl)
        return self

    def option(self, key: str, value: Any) -> _BatchReader:
        return self.options(**{key: value})

    def options(self, **options: Any) -> _BatchReader:
        kept = {key: value for key, value in options.items() if key not in _ONLY_STREAMS}
        self.reader = self.reader.options(**kept)
        return self

    def load(self, path: str | None = None) -> DataFrame:
        reader = self.reader.options(**self.given)
        return cast("DataFrame", reader.load(self.files) if self.files else reader.load())
