"""The difference between the rows that a current view should have and the rows of its collection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.row_hash import without_maps
from mzplan.connectors.frames.types import ddl_of, quoted
from mzplan.model.diagnostics import MzplanError, error
from mzplan.schema.columns import CHANGE, DELETE, OWN, POSITION, UPSERT, canonical_type, spark_type
from mzplan.secrets.resolved import shortened

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROWS, _NEW, _OLD = f"{OWN}rows", f"{OWN}new", f"{OWN}old"
_LONGEST_KEY = 200  # characters


@dataclass(frozen=True, slots=True)
class Difference:
    """The rows to write, cached: one per key, with `_change`. `count`: their number."""

    rows: DataFrame
    count: int

    def close(self) -> None:
        """Release the cached rows."""
        self.rows.unpersist()


def difference(wanted: DataFrame, found: DataFrame, query: ResolvedQuery) -> Difference:
    """Compute the rows to write, so that `found` becomes `wanted`.

    `wanted` has a `_position`; `found` has at least the view's columns. Raises MzplanError MZ019 if several
    rows of `wanted` have one key.
    """
    columns = [column.name for column in query.columns]
    new, old = _by_key(wanted, query.keys, columns, _NEW), _by_key(found, query.keys, columns, _OLD)
    matches = [new[_key(i)].eqNullSafe(old[_key(i)]) for i in range(len(query.keys))]
    joined = new.join(old, matches, "full_outer").select(new[_ROWS], new[_NEW], old[_OLD])
    type_: Any = new.schema[_NEW].dataType
    sides = (without_maps(f.col(side), type_, is_sorted=True) for side in (_NEW, _OLD))
    is_deleted = f.col(_NEW).isNull()
    changed = joined.where(~next(sides).eqNullSafe(next(sides)) | (f.col(_ROWS) > 1))
    present = f.coalesce(f.col(_NEW), f.col(_OLD))
    position = found.schema[POSITION].dataType  # with other inputs, the query has another one
    rows = changed.select(
        *(present.getField(f"c{i}").alias(name) for i, name in enumerate(columns)),
        f.lit(None).cast(position).alias(POSITION),
        f.when(is_deleted, f.lit(DELETE)).otherwise(f.lit(UPSERT)).alias(CHANGE),
        f.coalesce(f.col(_ROWS), f.lit(1)).alias(_ROWS),
    ).persist()
    try:
        totals = rows.agg(f.count(f.lit(1)).alias("count"), f.max(_ROWS).alias("most")).first()
        assert totals is not None
        if (totals["most"] or 0) > 1:
            raise _several_rows(rows, query)
    except BaseException:
        rows.unpersist()
        raise
    return Difference(rows.drop(_ROWS), int(totals["count"]))


def require_stored_types(collection: DataFrame, query: ResolvedQuery) -> None:
    """Raise MzplanError MZ230 if a collection has a column of an earlier query with another type."""
    stored = {field.name.lower(): canonical_type(ddl_of(field.dataType)) for field in collection.schema}
    for column in query.columns:
        type_ = stored.get(column.name.lower())
        if type_ is not None and spark_type(type_) != spark_type(column.type):
            raise error(
                "MZ230",
                f"The collection of {query.address} has another type for {column.name}",
                f"An earlier query has stored {column.name} as {type_}, and it is {column.type} now.",
                f"use another name, or begin a new generation: mzplan apply --replace {query.address} "
                "--allow-replace.",
                address=query.address,
                kind="unfit",
            )


def _by_key(rows: DataFrame, keys: Sequence[str], columns: Sequence[str], side: str) -> DataFrame:
    """Return one row per key: the key's columns, a struct of all columns, and the number of rows."""
    numbered = [f.col(quoted(name)).alias(f"c{i}") for i, name in enumerate(columns)]
    key = [f.col(quoted(name)).alias(_key(i)) for i, name in enumerate(keys)]
    structs = rows.select(*key, f.struct(*numbered).alias(side))
    if side == _OLD:
        return structs
    grouped = structs.groupBy(*(_key(i) for i in range(len(keys))))
    return grouped.agg(f.count(f.lit(1)).alias(_ROWS), f.first(side).alias(side))


def _key(number: int) -> str:
    return f"{OWN}key{number}"


def _several_rows(rows: DataFrame, query: ResolvedQuery) -> MzplanError:
    """Return the error for a key that several rows have. It names the key's values."""
    key = f.to_json(f.struct(*(f.col(quoted(name)) for name in query.keys)), {"ignoreNullFields": "false"})
    example = rows.where(f.col(_ROWS) > 1).select(key.alias("key"), _ROWS).orderBy("key").first()
    assert example is not None
    return error(
        "MZ019",
        f"The query of {query.address} returns several rows for one key",
        f"{example[_ROWS]} rows have the key {shortened(str(example['key']), _LONGEST_KEY)}, and no order "
        "decides which row wins. The step wasn't written.",
        "declare all columns that identify a row as `key`, or aggregate by the key.",
        address=query.address,
    )
