"""A Delta table of a source or sink, without Spark: its columns' types, its rows and steps for `mzplan
verify`, and the rows that a source has read and that the table no longer has.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mzplan.connectors.api.queries import Output, ResolvedQuery
from mzplan.connectors.api.targets import PLACE, Content, Recorded, hash_files, incomparable
from mzplan.connectors.api.tasks import REPLAY_WRITER
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.types import FieldsDifferError, as_stored, cast_by_name, quoted
from mzplan.connectors.network.aws import use_s3
from mzplan.endpoints.arrow import arrow_type
from mzplan.endpoints.interface import Step, Written
from mzplan.schema.columns import POSITION, Column, canonical_type, map_types, parse_columns
from mzplan.schema.target_writes import IS_CURRENT, keeps_history, writes_difference
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.foreign_changes import ForeignChanges, foreign_changes
from mzplan.warehouse.log_entries import Commit, open_delta
from mzplan.warehouse.partitions import typed

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

_DELTA_TYPES = {"byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT"}
_WHOLE = ("TINYINT", "SMALLINT", "INT", "BIGINT")  # each holds the ones before it
_HOLDS = {**{type_: _WHOLE[:end] for end, type_ in enumerate(_WHOLE)}, "FLOAT": _WHOLE[:2]}
_HOLDS["DOUBLE"] = (*_WHOLE[:3], "FLOAT")
_INTEGER_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 19}


def column_types(table: Any) -> dict[str, str]:
    """Return the types of a deltalake.DeltaTable's columns, in Spark DDL with nested fields. A type that
    mzplan doesn't know keeps Delta's name."""
    return {field.name: _type_ddl(field.type) for field in table.schema().fields}


def _type_ddl(type_: Any) -> str:
    match getattr(type_, "type", None):
        case "struct":
            fields = (Column(field.name, _type_ddl(field.type)).as_field for field in type_.fields)
            return f"STRUCT<{','.join(fields)}>"
        case "array":
            return f"ARRAY<{_type_ddl(type_.element_type)}>"
        case "map":
            return f"MAP<{_type_ddl(type_.key_type)},{_type_ddl(type_.value_type)}>"
        case name:
            return spark_type(str(name)) or str(name)


def spark_type(name: str) -> str | None:
    """Return a simple type from Delta's name for it, or None for an unknown name."""
    return canonical_type(_DELTA_TYPES.get(name, name))


def holds(stored: str, written: str) -> bool:
    """Return whether a column of type `stored` holds every value of type `written` after Spark's cast.

    Both types are in canonical DDL. Spark matches the fields of a STRUCT by position, so names and order must
    be the same."""
    if stored == written:
        return True
    if "<" in stored + written:
        return _holds_nested(stored, written)
    if stored == "STRING":
        return written not in ("BINARY", "VARIANT")
    if stored in _HOLDS:
        return written in _HOLDS[stored]
    if stored in ("TIMESTAMP", "TIMESTAMP_NTZ"):
        return written == "DATE"
    into, value = _digits(stored), _digits(written)
    return stored.startswith("DECIMAL") and all(
        needed <= available for needed, available in zip(value, into, strict=True)
    )


def _holds_nested(stored: str, written: str) -> bool:
    (word, _, inside), (other, _, other_inside) = stored.partition("<"), written.partition("<")
    if word != other:
        return False
    match word:
        case "ARRAY":
            return holds(inside[:-1], other_inside[:-1])
        case "MAP":
            return all(map(holds, map_types(stored), map_types(written)))
    fields, written_fields = parse_columns(inside[:-1]), parse_columns(other_inside[:-1])
    same = [field.name for field in fields] == [field.name for field in written_fields]
    return same and all(
        holds(field.type, written_field.type)
        for field, written_field in zip(fields, written_fields, strict=True)
    )


def _digits(type_: str) -> tuple[float, float]:
    """Return the most digits that a number of this type has before and after the point."""
    if match := re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", type_):
        return int(match[1]) - int(match[2]), int(match[2])
    return _INTEGER_DIGITS.get(type_, math.inf), 0


class DeltaContent(Content):
    """One version of the table. It includes the steps that its commits name."""

    def __init__(
        self,
        query: ResolvedQuery,
        folder: str,
        outputs: Sequence[Output],
        query_id: str | None,
        spark: SparkSession,
    ):
        self.keys = query.body.get("key", ())
        self._has_versions = keeps_history(query.body)
        self._outputs = outputs
        use_s3(spark, query, folder)
        log = CollectionLog(folder)
        version, self.frontier = last_step(log, query_id)
        if version < 0:
            raise incomparable(
                query,
                f"There is no table in {folder}.",
                "compare again when the sink has written its first step.",
            )
        table = spark.read.format("delta").option("versionAsOf", version).load(folder)
        self._table = table
        self._types = {field.name.lower(): field.dataType for field in table.schema.fields}
        self._partitions = log.partitions() or ()

    def rows(self, spark: SparkSession) -> DataFrame:
        columns = [self._column(output.name).alias(output.name) for output in self._outputs]
        # A version that has ended isn't in the collection any more.
        table = self._table.where(f.col(IS_CURRENT)) if self._has_versions else self._table
        return table.select(*columns, f.col("_metadata.file_name").alias(PLACE))

    def _column(self, name: str) -> Expression:
        exists = name.lower() in self._types
        return f.col(quoted(name)) if exists else f.lit(None).cast("void")

    def stored_form(self, rows: DataFrame, query: ResolvedQuery) -> DataFrame:
        """Return the rows in the types of the table (see Content)."""
        names = {column.lower(): column for column in rows.columns}
        columns = []
        for output in self._outputs:
            type_: DataType | None = self._types.get(output.name.lower())
            name = names.get(output.name.lower())
            value = f.col(quoted(name)) if name is not None else f.lit(None)
            if type_ is not None:
                before = rows.schema[name].dataType if name is not None else None
                value = _cast(value, before, type_)
            columns.append(value.alias(output.name))
        return as_stored(rows.select(*columns, POSITION), self._partitions)


def _cast(value: Expression, before: DataType | None, after: DataType) -> Expression:
    """Return the value as Delta writes it, matching the fields of structs by name. Raises GoneError."""
    try:
        return cast_by_name(value, before, after) if before is not None else value.cast(after)
    except FieldsDifferError as problem:
        raise GoneError(f"The table has other fields: {problem}.") from None


def open_table(folder: str) -> DeltaTable | None:
    """Open a table without Spark.

    Returns None if there is no table, if it is still being created, or if it has a feature that only Spark
    knows. Raises OSError.
    """
    from deltalake.exceptions import DeltaError

    try:
        table = open_delta(folder)
        table.schema()  # raises for a type that only Spark knows
        return table
    except DeltaError:
        return None


def last_step(log: CollectionLog, query_id: str | None) -> tuple[int, int]:
    """Return the newest version of a table, and the last step that a query wrote to it. Each is -1 if there
    is none. Raises OSError."""
    versions = log.versions()
    try:
        step = log.last_transaction(query_id) if query_id is not None else None
    except OSError:
        for version in versions:
            log.commit(version)  # raises unless the unreadable file is a checkpoint
        step = None
    return max(versions, default=-1), step if step is not None else -1


class DeltaRecorded(Recorded):
    """The steps in the table's log, in which each commit names the query and its step. An append has the
    added files' rows; a MERGE has only the number of merged rows."""

    def __init__(self, query: ResolvedQuery, folder: str, query_id: str | None):
        self.keys = query.body.get("key", ())
        self._difference = 0 if writes_difference(query.description) else None
        log = self._log = CollectionLog(folder, lambda: query_id)
        commits = [(commit.transaction, commit) for commit in log.after(-1) if commit.transaction is not None]
        self._commits = {
            transaction[1]: commit for transaction, commit in commits if transaction[0] == query_id
        }
        types = {name: spark_type(type_) for name, type_ in (log.partitions() or {}).items()}
        self._types = {name: arrow_type(type_) for name, type_ in types.items() if type_ is not None}
        self.partitions = tuple(self._types)

    def foreign_changes(self, first: Step, *, shared: bool) -> ForeignChanges | None:
        versions = [commit.version for step, commit in self._commits.items() if step >= first]
        commits = [*self._log.after(min(versions))] if versions else []
        foreign = [commit for commit in commits if commit.is_foreign and (commit.deletes or not shared)]
        replays = [c for c in commits if c.transaction and c.transaction[0].startswith(REPLAY_WRITER)]
        return foreign_changes(self._log, foreign, replays)

    def step(self, step: Step) -> Written | None:
        commit = self._commits.get(step)
        if commit is None or step == self._difference:  # such a MERGE has only the rows that differed
            return None
        if self.keys:
            return Written(rows=commit.merged) if commit.merged is not None else None
        return hash_files((add.place, typed(add.partition, self._types)) for add in commit.adds)


_RESTORE = "RESTORE"
# These commits write the rows that they keep into new files.
_REWRITES = ("DELETE", "UPDATE", "MERGE", _RESTORE)


class LostRows(NamedTuple):
    """How many rows a source has read, and how many of them are gone. None if the log doesn't say.

    - `versions`: the versions of the commits that removed some of these rows.
    """

    lost_rows: int | None
    read_rows: int | None
    versions: tuple[int, ...]


def count_lost_rows(log: CollectionLog, first: int, last: int) -> LostRows:
    """Count the lost rows of a source that has read the snapshot of version `first`, then the rows added up
    to version `last`. If the log begins after `first`, counting starts at its oldest version. Raises
    OSError."""
    oldest = log.oldest() or 0
    files = _files_at(log, oldest) if oldest else {}
    first, read, lost = max(first, oldest), _sum(files.values()), _sum(())
    versions: list[int] = []
    removed_files: dict[str, int | None] = {}
    for commit in log.after(oldest if oldest else -1):
        removed = {name: files.pop(name) for name in commit.removes if name in files}
        removed_files |= removed
        added = {add.name: add.rows for add in commit.adds}
        restores = commit.operation == _RESTORE
        if restores:
            added = {name: rows for name, rows in added.items() if name in removed_files}
        if commit.version > first and commit.deletes:
            if removed or restores:
                lost = _sum((lost, _lost(commit, _sum(removed.values()), _sum(added.values()))))
                versions += [commit.version] if removed else []
            are_read = restores or (bool(removed) and commit.operation in _REWRITES)
        else:
            are_read = commit.version <= last or bool(removed)
        if are_read:
            files |= added
        if commit.version <= first:
            read = _sum(files.values())
        elif commit.version <= last and not commit.deletes:
            read = _sum((read, *(add.rows for add in commit.adds if add.has_new_rows)))
    return LostRows(max(0, lost) if lost is not None else None, read, tuple(versions))


def _lost(commit: Commit, removed: int | None, added: int | None) -> int | None:
    """Return how many rows a commit removed; negative if it restored some."""
    if removed is None or (commit.operation in _REWRITES and added is None):
        return None
    if commit.operation not in _REWRITES:
        return removed
    difference = removed - (added or 0)
    return difference if commit.operation == _RESTORE else max(difference, commit.deleted or 0, 0)


def _files_at(log: CollectionLog, version: int) -> dict[str, int | None]:
    """Return the number of rows of each file of a version, by the file's name in the log."""
    from deltalake.exceptions import DeltaError

    try:
        actions = open_delta(log.collection, version).get_add_actions(flatten=True)
    except DeltaError as problem:
        raise OSError(str(problem)) from None
    columns = {name: actions.column(name).to_pylist() for name in actions.schema.names}
    counts = columns.get("num_records") or [None] * len(columns["path"])
    return dict(zip(columns["path"], counts, strict=True))


def _sum(numbers: Iterable[int | None]) -> int | None:
    """Return the sum, or None if a number is None."""
    known = list(numbers)
    return None if None in known else sum(number for number in known if number is not None)
