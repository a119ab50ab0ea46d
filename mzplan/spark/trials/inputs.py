"""The inputs of a trial: collections as Parquet files, with one file for each micro-batch.

A Delta table for each input would cost seconds for each test. A stream of files takes the same rows to the
query: the collection's columns and `_position` or, for a keyed collection, its change feed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mzplan.connectors.frames.types import ddl, read_parquet
from mzplan.endpoints.arrow import arrow_schema, build_array
from mzplan.model.trials import FIRST_TIME, GivenRow
from mzplan.schema.columns import POSITION, Column, parse_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import Schema
    from pyspark.sql import DataFrame, SparkSession

_CHANGE_TYPE, _VERSION, _TIME = "_change_type", "_commit_version", "_commit_timestamp"
_FEED_COLUMNS = (Column(_CHANGE_TYPE, "STRING"), Column(_VERSION, "BIGINT"), Column(_TIME, "TIMESTAMP"))
_SECONDS = 1_700_000_000  # the time of the first file: Spark reads files in the order of their times


class TrialInput:
    """One input. `keys`: the columns that identify a row; empty for a collection that only grows."""

    def __init__(self, folder: Path, columns: Sequence[Column], position: str, keys: Sequence[str] = ()):
        self._stream, self._tables = folder / "stream", folder / "tables"
        self._stream.mkdir(parents=True)
        self._tables.mkdir()
        self._keys = tuple(keys)
        self._position = parse_columns(f"p {position}")[0].type
        self._fields = parse_columns(self._position[len("STRUCT<") : -1])
        self._columns = (*columns, Column(POSITION, self._position))
        self._rows: dict[tuple[Any, ...], Mapping[str, Any]] = {}
        self._given = 0

    def write(self, number: int, rows: Iterable[GivenRow]) -> None:
        """Write the rows that a micro-batch reads, and the table as it is from then on."""
        self._write(number, self._changes(number, rows) if self._keys else self._appended(rows))
        self._store(self._table(number), self._columns, list(self._rows.values()))

    def stream(self, session: SparkSession) -> DataFrame:
        """Return the input as a stream. Each micro-batch reads one file."""
        schema = f"{ddl(self._columns[:-1])}, {POSITION} {self._position}"
        schema += "".join(f", {column}" for column in (_FEED_COLUMNS if self._keys else ()))
        reader = session.readStream.schema(schema).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self._stream))

    def table(self, session: SparkSession, number: int) -> DataFrame:
        """Return the input as a table, as of a micro-batch."""
        schema = f"{ddl(self._columns[:-1])}, {POSITION} {self._position}"
        return read_parquet(session, [str(self._table(number))], schema)

    def _table(self, number: int) -> Path:
        return self._tables / f"{number:05}.parquet"

    def _write(self, number: int, rows: Sequence[Mapping[str, Any]]) -> None:
        file = self._stream / f"{number:05}.parquet"
        self._store(file, (*self._columns, *(_FEED_COLUMNS if self._keys else ())), rows)
        os.utime(file, (_SECONDS + number, _SECONDS + number))

    def _store(self, file: Path, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> None:
        write_parquet(file, arrow_schema(columns), rows)

    def _appended(self, rows: Iterable[GivenRow]) -> list[Mapping[str, Any]]:
        added = [self._positioned(row.values) for row in rows]
        self._rows |= {(len(self._rows) + index,): row for index, row in enumerate(added)}
        return added

    def _changes(self, number: int, rows: Iterable[GivenRow]) -> list[Mapping[str, Any]]:
        """Return a change feed with the states of each key before and after the rows."""
        before, changed = dict(self._rows), []
        for row in rows:
            key = tuple(row.values[name] for name in self._keys)
            changed.append(key)
            if row.is_deleted:
                self._rows.pop(key, None)
            else:
                self._rows[key] = self._positioned(row.values)
        feed: list[Mapping[str, Any]] = []
        commit = {_VERSION: number, _TIME: FIRST_TIME}
        for key in dict.fromkeys(changed):
            old, new = before.get(key), self._rows.get(key)
            if old is not None:
                word = "delete" if new is None else "update_preimage"
                feed.append({**old, _CHANGE_TYPE: word, **commit})
            if new is not None:
                word = "insert" if old is None else "update_postimage"
                feed.append({**new, _CHANGE_TYPE: word, **commit})
        return feed

    def _positioned(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values with a `_position` that is greater than all earlier ones."""
        self._given += 1
        ordered = {
            field.name: {"INT": 0, "TIMESTAMP": FIRST_TIME, "STRING": f"{self._given:012}"}.get(
                field.type, self._given
            )
            for field in self._fields
        }
        return {**values, POSITION: ordered}


def write_parquet(file: Path, schema: Schema, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows to a Parquet file; a missing value is NULL."""
    from pyarrow import parquet

    parquet.write_table(table_of(schema, rows), file)


def table_of(schema: Schema, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows as an Arrow table; a missing value is NULL."""
    import pyarrow as pa

    arrays = [build_array([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)
