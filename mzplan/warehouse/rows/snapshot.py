"""A collection as of a step, read by deltalake and its engine DataFusion, without Spark.

The version of each snapshot that a view's step reads is recorded before its rows are written:

    <warehouse>/checkpoints/<id>/g<n>/snapshots/<step>.json

A step that runs again reads the same versions. The folder keeps the newest steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mzplan.model.address import Place
from mzplan.schema.columns import POSITION
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.damage import GoneError, missing_file_error
from mzplan.warehouse.folder import decoding, exists, open_folder
from mzplan.warehouse.log_entries import Commit, open_delta
from mzplan.warehouse.rows.replay import commit_of
from mzplan.warehouse.step_history import StepHistory

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

FORMAT_VERSION = 1
RETAINED_STEPS = 1000


class SnapshotVersions:
    """The snapshot versions in one checkpoint. Only the leading runner writes.

    Raises OSError, also for a file with invalid content."""

    def __init__(self, checkpoint: str):
        self._place = f"{checkpoint}/snapshots"
        self._folder = open_folder(self._place)

    def at(self, step: int) -> dict[str, int]:
        """Return the versions that a step reads, by collection (see `name_of`); empty if unrecorded."""
        data = self._folder.read(_file_of(step))
        if data is None:
            return {}
        with decoding(f"{self._place}/{_file_of(step)}"):
            return {str(name): int(version) for name, version in json.loads(data)["snapshots"].items()}

    def record(self, step: int, versions: Mapping[str, int]) -> None:
        """Record durably the versions that a step reads, and forget the oldest step."""
        content = {"format_version": FORMAT_VERSION, "snapshots": dict(versions)}
        self._folder.write(_file_of(step), json.dumps(content, separators=(",", ":")).encode())
        if step >= RETAINED_STEPS:
            self._folder.delete(_file_of(step - RETAINED_STEPS))

    def forget(self, step: int) -> None:
        """Remove the versions of a step that has written nothing."""
        self._folder.delete(_file_of(step))

    def choose(self, step: int, collections: Mapping[Place, str]) -> dict[Place, int]:
        """Choose and record the version of each collection that a step reads. Return the versions by place.

        `collections`: the path of each collection, by place. A repeated step gets the versions that it has
        already read. For a collection that it hasn't read, or whose version is gone, it gets the newest
        version. That is safe: the step's rows are one commit, so none of them was written."""
        recorded, chosen = self.at(step), {}
        for place, path in collections.items():
            versions = CollectionLog(path).versions()
            version = recorded.get(name_of(place))
            if not versions:
                raise OSError(f"{path} has no Delta log")
            chosen[place] = version if version is not None and version in versions else versions[-1]
        by_name = {name_of(place): version for place, version in chosen.items()}
        if by_name != recorded:
            self.record(step, by_name)
        return chosen


def name_of(place: Place) -> str:
    """Return the collection's name in these files: its id and generation, which are unique."""
    return f"{place[0]}/g{place[1]}"


def _file_of(step: int) -> str:
    return f"{step:020}.json"


TABLE = "collection"  # the table's name in a condition
MAX_CONDITION = 10_000  # characters
_ENGINE = {
    # Read one file after the other: memory stays bounded, and equal tables give equal bytes.
    "datafusion.execution.target_partitions": "1",
    # Keep the declared case of names without quotes.
    "datafusion.sql_parser.enable_ident_normalization": "false",
    # As in Spark, 0.1 is a decimal. As a double, it would equal no decimal(10,2).
    "datafusion.sql_parser.parse_float_as_decimal": "true",
    "datafusion.execution.parquet.schema_force_view_types": "false",
    "datafusion.execution.batch_size": "8192",
    # Spark stores timestamps as INT96. Read in nanoseconds, they would overflow.
    "datafusion.execution.parquet.coerce_int96": "us",
}

SMALL = 16 << 20  # bytes: a data file below this size is small


class ConditionError(Exception):
    """A condition can't be evaluated. The message says why."""


class TableSnapshot:
    """A version of a Delta table.

    Raises GoneError if it can't be read any more, and OSError for a feature that deltalake doesn't
    support."""

    def __init__(self, collection: str, version: int):
        from deltalake.exceptions import DeltaError

        self.place = collection
        self.version = version
        try:
            self._table: DeltaTable = open_delta(collection, version)
        except DeltaError as problem:
            if "Unsupported" in str(problem):
                raise OSError(f"{collection} can't be read without Spark: {_main_line(problem)}") from None
            raise GoneError(
                f"Version {version} of {collection} can no longer be read: {_main_line(problem)}."
            ) from None

    def count(self, where: str | None = None) -> int:
        """Return the number of rows; without a condition, from the table's log if possible.

        Raises ConditionError, GoneError, OSError."""
        recorded = self._recorded_count() if where is None else None
        if recorded is None:
            return sum(int(batch.column(0)[0].as_py()) for batch in self._execute("count(*)", where)[1])
        return recorded

    def rows(
        self, where: str | None = None, *, position: bool = False
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the schema and the rows, with `_position` only if `position` is set.

        `where`: a condition in DataFusion's SQL. The iterator also raises ConditionError, GoneError,
        OSError."""
        import pyarrow as pa

        table_schema = pa.schema(self._table.schema().to_arrow())
        schema = pa.schema([field for field in table_schema if position or field.name != POSITION])
        actual, batches = self._execute(", ".join(_quoted(name) for name in schema.names), where)
        return schema, batches if actual == schema else _cast(batches, schema)

    def _recorded_count(self) -> int | None:
        import pyarrow as pa

        # The counts include deleted rows. (No query of mzplan deletes any.)
        if "deletionVectors" in (self._table.protocol().reader_features or ()):
            return None
        counts = pa.table(self._table.get_add_actions(flatten=True))
        if counts.num_rows and "num_records" not in counts.column_names:
            return None
        row_counts = counts["num_records"].to_pylist() if counts.num_rows else []
        return None if None in row_counts else sum(row_counts)

    def _execute(self, columns: str, where: str | None) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        import pyarrow as pa
        from deltalake import QueryBuilder

        if where is not None:
            ensure_one_condition(where)
        condition = f" WHERE (\n{where}\n)" if where is not None else ""
        with self._translated_errors(where):
            builder = QueryBuilder(_ENGINE).register(TABLE, self._table)
            stream = builder.execute(f"SELECT {columns} FROM {TABLE}{condition}")
            reader = pa.RecordBatchReader.from_stream(stream)
        return reader.schema, self._read(reader, where)

    def _read(self, reader: pa.RecordBatchReader, where: str | None) -> Iterator[pa.RecordBatch]:
        with self._translated_errors(where):
            yield from reader

    @contextmanager
    def _translated_errors(self, where: str | None) -> Iterator[None]:
        """Turn the engine's only error type into specific errors."""
        import pyarrow as pa
        from deltalake.exceptions import DeltaError

        try:
            yield
        except (DeltaError, pa.ArrowException, OSError) as problem:
            for file in self._table.file_uris():
                if not exists(file):
                    why = missing_file_error(CollectionLog(self.place), file, f"of version {self.version}")
                    raise GoneError(f"{str(why).rstrip('.')}.") from None
            damaged = "Parquet error" in str(problem) and "predicate" not in str(problem)
            if where is not None and not isinstance(problem, OSError) and not damaged:
                raise ConditionError(_main_line(problem)) from None
            raise OSError(f"{self.place} can't be read: {_main_line(problem)}") from None


def snapshot_of(history: StepHistory, step: int) -> TableSnapshot:
    """Return a source's collection with all rows up to a step.

    Raises OSError, and GoneError, also if the collection doesn't have the step."""
    record = next((r for r in history.committed(step, step) if r.step == step), None)
    if record is None:
        raise GoneError(f"It is unknown which version of {history.collection.collection} holds step {step}.")
    version = commit_of(history.collection, record).version
    return TableSnapshot(history.collection.collection, _merged_version(history.collection, version))


def snapshot_batches(history: StepHistory, step: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows as of a step, without `_position`. Raises GoneError, OSError."""
    return snapshot_of(history, step).rows()[1]


def ensure_one_condition(text: str) -> None:
    """Raise ConditionError if the text could end the brackets around it, or is more than a condition."""
    if not text.strip():
        raise ConditionError("It is empty")
    if len(text) > MAX_CONDITION:
        raise ConditionError(f"It is longer than {MAX_CONDITION:,} characters")
    if "\0" in text or any("\ud800" <= sign <= "\udfff" for sign in text):
        raise ConditionError("It contains an invalid character")
    depth, at = 0, 0
    while at < len(text):
        sign = text[at]
        if sign in "'\"`":
            end = text.find(sign, at + 1)
            if end < 0:
                raise ConditionError(f"A {sign} is never closed")
            at = end
        elif sign == ";" or text[at : at + 2] in ("--", "/*"):
            raise ConditionError(
                f"{text[at : at + 2].strip()} isn't allowed: write a single condition without comments"
            )
        depth += (sign == "(") - (sign == ")")
        if depth < 0:
            raise ConditionError("A ) has no matching (")
        at += 1
    if depth:
        raise ConditionError("A ( is never closed")


def _merged_version(log: CollectionLog, version: int) -> int:
    """Return the version after all OPTIMIZEs that follow this version. It has the same rows in fewer files.

    VACUUM may have removed the files of the original version."""
    while (following := log.commit(version + 1)) is not None and _merges(following):
        version += 1
    return version


def _merges(commit: Commit) -> bool:
    return commit.step is None and bool(commit.adds) and not any(add.has_new_rows for add in commit.adds)


def _cast(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Cast batches to the schema, because missing columns of a file come as another text type."""
    import pyarrow as pa

    for batch in batches:
        yield from pa.Table.from_batches([batch]).cast(schema).to_batches()


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _main_line(problem: Any) -> str:
    """Return the most specific line of an error. The engine lists the causes one below the other."""
    lines = [line.strip().rstrip(".") for line in str(problem).splitlines() if line.strip()]
    causes = [lines[i + 1] for i, line in enumerate(lines[:-1]) if line == "caused by"]
    return (causes[-1] if causes else lines[0] if lines else type(problem).__name__)[:500]


def small_files(collection: str) -> int:
    """Return the newest version's number of small data files; 0 without a table. Raises OSError."""
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        sizes = open_delta(collection).get_add_actions(flatten=True).column("size_bytes")
    except TableNotFoundError:
        return 0
    except DeltaError as problem:
        raise OSError(f"{collection} can't be read: {problem}") from None
    return sum(size < SMALL for size in sizes.to_pylist())
