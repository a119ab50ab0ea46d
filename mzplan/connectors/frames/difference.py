"""The difference between the rows that a keyed table should have and the rows that it has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.row_hash import without_maps
from mzplan.connectors.frames.types import quoted
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError, error
from mzplan.schema.columns import CHANGE, DELETE, OWN, UPSERT
from mzplan.secrets.resolved import shortened

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROWS, _NEW, _OLD = f"{OWN}rows", f"{OWN}new", f"{OWN}old"
_LONGEST_KEY = 200  # characters


@dataclass(frozen=True, slots=True)
class Difference:
    """The rows to write: one per key, with `_change`. `count`: their number. `cached`: what Spark caches."""

    rows: DataFrame
    count: int
    cached: DataFrame

    def close(self) -> None:
        """Release the cached rows."""
        self.cached.unpersist()


def difference(
    wanted: DataFrame, found: DataFrame, columns: Sequence[str], keys: Sequence[str], address: Address
) -> Difference:
    """Compute the rows to write, so that `found` becomes `wanted`.

    `columns`: the columns to compare, which both have. `address`: the query that makes the wanted rows.
    Raises MzplanError MZ019 if several of them have one key.
    """
    new, old = _by_key(wanted, keys, columns, _NEW), _by_key(found, keys, columns, _OLD)
    matches = [new[_key(i)].eqNullSafe(old[_key(i)]) for i in range(len(keys))]
    joined = new.join(old, matches, "full_outer").select(new[_ROWS], new[_NEW], old[_OLD])
    type_: Any = new.schema[_NEW].dataType
    sides = (without_maps(f.col(side), type_, is_sorted=True) for side in (_NEW, _OLD))
    is_deleted = f.col(_NEW).isNull()
    changed = joined.where(~next(sides).eqNullSafe(next(sides)) | (f.col(_ROWS) > 1))
    present = f.coalesce(f.col(_NEW), f.col(_OLD))
    rows = changed.select(
        *(present.getField(f"c{i}").alias(name) for i, name in enumerate(columns)),
        f.when(is_deleted, f.lit(DELETE)).otherwise(f.lit(UPSERT)).alias(CHANGE),
        f.coalesce(f.col(_ROWS), f.lit(1)).alias(_ROWS),
    ).persist()
    try:
        totals = rows.agg(f.count(f.lit(1)).alias("count"), f.max(_ROWS).alias("most")).first()
        assert totals is not None
        if (totals["most"] or 0) > 1:
            raise _several_rows(rows, keys, address)
    except BaseException:
        rows.unpersist()
        raise
    return Difference(rows.drop(_ROWS), int(totals["count"]), rows)


def count_changes(changes: Difference, found: DataFrame, keys: Sequence[str]) -> tuple[int, int, int]:
    """Return how many of the rows to write delete a row of `found`, change one, and are new."""
    old = found.select(*(f.col(quoted(name)).alias(_key(i)) for i, name in enumerate(keys)))
    matches = [changes.rows[quoted(name)].eqNullSafe(old[_key(i)]) for i, name in enumerate(keys)]
    written = changes.rows.where(f.col(CHANGE) == UPSERT)
    upserted, changed = written.count(), written.join(old, matches, "left_semi").count()
    return changes.count - upserted, changed, upserted - changed


def require_own_keys(changes: Difference, others: DataFrame, keys: Sequence[str], address: Address) -> None:
    """Raise MzplanError MZ019 if a row to write has the key of one of the `others`, which stay."""
    written = changes.rows.where(f.col(CHANGE) == UPSERT)
    stay = others.select(*(f.col(quoted(name)).alias(_key(i)) for i, name in enumerate(keys)))
    matches = [written[quoted(name)].eqNullSafe(stay[_key(i)]) for i, name in enumerate(keys)]
    several = written.join(stay, matches, "left_semi").withColumn(_ROWS, f.lit(2))
    if not several.isEmpty():
        raise _several_rows(several, keys, address)


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


def _several_rows(rows: DataFrame, keys: Sequence[str], address: Address) -> MzplanError:
    """Return the error for a key that several rows have. It names the key's values."""
    key = f.to_json(f.struct(*(f.col(quoted(name)) for name in keys)), {"ignoreNullFields": "false"})
    example = rows.where(f.col(_ROWS) > 1).select(key.alias("key"), _ROWS).orderBy("key").first()
    assert example is not None
    return error(
        "MZ019",
        f"The query of {address} returns several rows for one key",
        f"{example[_ROWS]} rows have the key {shortened(str(example['key']), _LONGEST_KEY)}, and no order "
        "decides which row wins. The step wasn't written.",
        "declare all columns that identify a row as `key`, or aggregate by the key.",
        address=address,
    )
