"""The trace of a current view: by which columns, and with which SQL, its affected rows are found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mzplan.schema.columns import DdlError, parse_columns, spark_type
from mzplan.schema.current.expressions import FaithfulSql, quoted
from mzplan.schema.current.rows import Rows, UntraceableError
from mzplan.schema.relations.nodes import windows_in
from mzplan.schema.relations.tree import Analysis, Block

WITHOUT_ORDER = ("MAP<", "VARIANT")
"""Types whose values Spark doesn't compare."""


@dataclass(frozen=True, slots=True)
class Affected:
    """The rows of a view that changed rows of an input can affect, at one place where the query reads it.

    - `input`: the name of the collection.
    - `sql`: a SELECT DISTINCT of the trace's keys, over the relations `_changed_NAME` and `_any_NAME` of the
      inputs (see rows.CHANGED and rows.ANY).
    """

    input: str
    sql: str


@dataclass(frozen=True, slots=True)
class Trace:
    """How the affected rows of a view are found.

    - `keys`: the columns of the view. All rows with the same values of them are computed again. Mostly the
      view's key, or a part of it.
    - `affected`: one for each use of an input.
    - `why_full`: if the rows can't be traced, the reason as a clause; then the others are empty.
    """

    keys: tuple[str, ...] = ()
    affected: tuple[Affected, ...] = ()
    why_full: str = ""


def trace(analysis: Analysis) -> Trace:
    """Return the trace of an analysed query."""
    root, uses = analysis.root, list(analysis.root.uses())
    items = [item.field for item in root.items]
    types = _types(analysis)
    positions = [p for p in range(len(items)) if not any(word in (types[p] or "") for word in WITHOUT_ORDER)]
    faithful = FaithfulSql(analysis.query.text)
    known = set(positions)
    try:
        for _, path in uses:
            rows = Rows(analysis.inputs, faithful).of_block(root, positions, path)
            known &= rows.columns.keys()
        key = {str(name).lower() for name in analysis.body.get("key") or ()}
        chosen = [p for p in positions if p in known and items[p].name.lower() in key] or sorted(known)
        if not chosen:
            return Trace(why_full=_reason(root))
        affected = []
        for name, path in uses:
            rows = Rows(analysis.inputs, faithful).of_block(root, chosen, path)
            columns = ", ".join(
                f"{_cast(rows.columns[p], types[p])} AS {quoted(items[p].name)}" for p in chosen
            )
            affected.append(Affected(name, f"SELECT DISTINCT {columns} FROM {rows.sql} AS affected"))
    except UntraceableError as untraceable:
        return Trace(why_full=str(untraceable))
    except RecursionError:
        return Trace(why_full="it is nested too deep")
    return Trace(tuple(items[p].name for p in chosen), tuple(affected))


def _types(analysis: Analysis) -> Sequence[str | None]:
    """Return the types of the view's columns: as declared, or as found in the query."""
    found = [item.field.type for item in analysis.root.items]
    declared = analysis.body.get("schema")
    try:
        columns = parse_columns(declared) if isinstance(declared, str) else ()
    except DdlError:
        columns = ()
    return [spark_type(column.type) for column in columns] if len(columns) == len(found) else found


def _cast(column: str, type_: str | None) -> str:
    return column if type_ is None else f"CAST({column} AS {type_})"


def _reason(block: Block) -> str:
    """Return why no column tells which rows a change affects, as a clause."""
    node = block.node
    if block.is_counted:
        return "LIMIT counts all rows"
    if block.arms:
        reasons = list(filter(None, map(_reason, block.arms)))
        return reasons[0] if reasons else "no column of the result is a column of its inputs"
    windows = [window for item in node.expressions for window in windows_in(item)]
    if block.groups == []:
        return "an aggregation without GROUP BY computes one row from all rows"
    if windows:
        return _reason_of_windows(block, windows)
    below = [relation.of for _, relation in block.sources if isinstance(relation.of, Block)]
    if block.groups is None and len(block.sources) == 1 and below:
        return _reason(below[0])
    if block.groups is not None:
        return "the SELECT leaves out the columns of GROUP BY, or computes them in a way that can't be traced"
    return "no column of the result is a column of its inputs"


def _reason_of_windows(block: Block, windows: Sequence[Any]) -> str:
    named = {one.name.lower(): one for one in block.node.args.get("windows") or ()}
    own = [named.get(window.alias.lower(), window) if window.alias else window for window in windows]
    partitions = {
        ", ".join(key.sql(dialect="spark") for key in window.args.get("partition_by") or ()) for window in own
    }
    if "" in partitions:
        return "a window function without PARTITION BY reads all rows"
    if len(partitions) > 1:
        return "its window functions compare different groups of rows (PARTITION BY)"
    return f"it doesn't select {min(partitions)}, by which its window functions group rows"
