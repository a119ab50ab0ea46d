"""Writes a step of a history to a Delta table, as versions of each key's row (`mode: history`).

A row of the collection becomes a version when it appears or differs from the key's last version. The next
version of the key, or its deletion, ends it. All versions of a step are one commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mzplan.connectors.delta.replacement import alike
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.merges import TIME, VERSION, latest_rows, merge
from mzplan.connectors.frames.row_hash import without_maps
from mzplan.connectors.frames.types import quoted
from mzplan.schema.columns import CHANGE, DELETE, OWN, POSITION
from mzplan.schema.target_writes import IS_CURRENT, VALID_FROM, VALID_TO

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

_THERE, _AT, _ORDER, _BEGUN = (f"{OWN}{name}" for name in ("there", "at", "order", "begun"))
_ROW, _BEFORE, _THERE_BEFORE = (f"{OWN}{name}" for name in ("row", "before", "there_before"))
_NUMBER, _FROM, _TO = (f"{OWN}{name}" for name in ("number", "from", "to"))


def record_versions(
    batch: DataFrame, step: int, path: str, keys: Sequence[str], since: str | None, *, replaces: bool
) -> int | None:
    """Add the versions of a step to a Delta table, and end the versions before them, in one commit.

    `since`: the column that says when a version begins; None for the time of the collection's commit.
    `replaces`: end the current versions of keys that the batch doesn't have. Returns the number of changed
    rows, or None if Delta doesn't say.
    """
    table = batch.sparkSession.read.format("delta").load(path)
    changes, versions = alike(_changes(batch, keys, since, replaces=replaces), _versions(table))
    columns = [name for name in changes.columns if name not in (_THERE, _AT, _ORDER, _BEGUN)]
    if replaces:
        changes = changes.unionByName(_others(changes, versions, keys, _step_time(batch)))
    known = latest_rows(_joined(versions, changes, keys, "left_semi"), keys, order=_BEGUN)
    timeline = _timeline(known.unionByName(changes), keys, columns)
    written = [quoted(name) for name in columns if not name.startswith(OWN)]
    rows = timeline.where(f.col(_BEGUN).isNull() | f.col(_TO).isNotNull()).select(
        *written,
        f.coalesce(_BEGUN, _FROM).alias(VALID_FROM),
        f.col(_TO).alias(VALID_TO),
        f.col(_TO).isNull().alias(IS_CURRENT),
    )
    rows = rows.persist()
    try:
        updated = (VALID_TO, IS_CURRENT)
        return merge(rows, step, f"delta.{quoted(path)}", [*keys, VALID_FROM], updated=updated)
    finally:
        rows.unpersist()


def _changes(batch: DataFrame, keys: Sequence[str], since: str | None, *, replaces: bool) -> DataFrame:
    """Return the last change of each key in each version of the collection, or in the whole batch.

    An update removes the old row and adds the new one in one version, and the new one comes last.
    """
    is_there = f.col(CHANGE) != DELETE
    begins = f.when(is_there, f.col(quoted(since))) if since is not None else f.lit(None)
    changes = batch.withColumns(
        {
            _THERE: is_there.cast("int"),
            _AT: f.coalesce(begins.cast("timestamp"), f"{POSITION}.{TIME}", f.current_timestamp()),
            _ORDER: f.col(f"{POSITION}.{VERSION}"),
            _BEGUN: f.lit(None).cast("timestamp"),
        }
    ).drop(CHANGE)
    return latest_rows(changes, keys if replaces else [*keys, _ORDER])


def _versions(table: DataFrame) -> DataFrame:
    """Return the versions in the table as changes that came before all others."""
    end, begin = f.col(VALID_TO), f.col(VALID_FROM)
    return table.withColumns(
        {
            _THERE: end.isNull().cast("int"),
            _AT: f.coalesce(end, begin).cast("timestamp"),
            _ORDER: f.lit(-1).cast("bigint"),
            _BEGUN: begin,
        }
    )


def _others(changes: DataFrame, versions: DataFrame, keys: Sequence[str], at: Expression) -> DataFrame:
    """Return deletions of the keys that have a current version but no change."""
    current = _joined(versions.where(f.col(_THERE) == 1), changes, keys, "left_anti")
    no_time, order = f.lit(None).cast("timestamp"), f.lit(0).cast("bigint")
    return current.withColumns({_THERE: f.lit(0), _AT: at, _ORDER: order, _BEGUN: no_time})


def _joined(rows: DataFrame, others: DataFrame, keys: Sequence[str], how: str) -> DataFrame:
    right = others.select(*(f.col(quoted(key)).alias(f"{OWN}key{i}") for i, key in enumerate(keys)))
    same = [f.col(quoted(key)).eqNullSafe(f.col(f"{OWN}key{i}")) for i, key in enumerate(keys)]
    return rows.join(right, same, how)


def _step_time(batch: DataFrame) -> Expression:
    """Return the time of the collection's last commit in the batch."""
    last = batch.agg(f.max(f.unix_micros(f"{POSITION}.{TIME}")).alias("micros")).first()
    micros = last["micros"] if last is not None else None
    return f.timestamp_micros(f.lit(micros)) if micros is not None else f.current_timestamp()


def _timeline(points: DataFrame, keys: Sequence[str], columns: Sequence[str]) -> DataFrame:
    """Return the versions of each key, with the times at which they begin and end.

    Leaves out changes after which the row is as before. Each version begins at least a microsecond after the
    one before.
    """
    from pyspark.sql import Window

    in_order = Window.partitionBy(*(f.col(quoted(key)) for key in keys)).orderBy(_ORDER)
    rows = points.withColumn(_ROW, f.struct(*(f.col(quoted(name)) for name in columns)))
    type_ = rows.schema[_ROW].dataType
    rows = rows.withColumn(_BEFORE, f.lag(_ROW).over(in_order))
    rows = rows.withColumn(_THERE_BEFORE, f.lag(_THERE).over(in_order))
    now, then = (without_maps(f.col(side), type_, is_sorted=True) for side in (_ROW, _BEFORE))
    was_there = f.coalesce(f.col(_THERE_BEFORE), f.lit(0)) == 1
    is_new = (f.col(_THERE) == 1) & ~(was_there & now.eqNullSafe(then))
    is_end = (f.col(_THERE) == 0) & was_there
    rows = rows.where(f.col(_BEGUN).isNotNull() | is_new | is_end)
    rows = rows.withColumn(_NUMBER, f.row_number().over(in_order))
    latest = f.max(f.unix_micros(_AT) - f.col(_NUMBER)).over(in_order)
    rows = rows.withColumn(_FROM, f.timestamp_micros(latest + f.col(_NUMBER)))
    return rows.withColumn(_TO, f.lead(_FROM).over(in_order)).where(f.col(_THERE) == 1)
