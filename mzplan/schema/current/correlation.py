"""The join of a SELECT with the changed rows of a subquery in one of its expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mzplan.schema.relations.nodes import own_columns
from mzplan.schema.relations.tree import Block, Path

if TYPE_CHECKING:
    from mzplan.schema.current.rows import Rows
    from mzplan.schema.current.select import SelectRows, Variant


def semi_join(rows: Rows, outer: SelectRows, node: Any, block: Block, path: Path, variant: Variant) -> str:
    """Return a semi join that keeps the rows for which the value of a subquery may change.

    The value for a row depends on the rows that the subquery's WHERE selects for it. So a changed row counts
    for the rows that meet the conditions that name both. Without such a condition, it counts for all rows.

    - `node`, `block`: the subquery in an expression of `outer`.
    - `path`: the way to the change, from the subquery.
    """
    from sqlglot import exp

    from mzplan.schema.current.select import SelectRows

    is_whole = not block.arms
    while block.arms:
        (_, arm), *below = path
        block, path = block.arms[arm], tuple(below)
    inner = SelectRows(rows, block, path)
    conditions = [tree for tree in inner.conditions if inner.is_plain(tree) and _is_correlated(inner, tree)]
    own = [c for tree in conditions for c in own_columns(tree) if inner.columns.find(c) is not None]
    compared = _compared(inner, node, block) if is_whole else None
    derived = inner.derived((), [*own, *([compared] if compared is not None else [])])
    alias, first = rows.alias(), len(block.items)

    def exported(number: int) -> str | None:
        name = derived.columns.get(first + number)
        return None if name is None else f"{alias}.{name}"

    is_of_groups = node.find_ancestor(exp.Having) is not None
    places = {id(column): number for number, column in enumerate(own)}

    def column_sql(column: Any) -> str | None:
        if id(column) in places:
            return exported(places[id(column)])
        if is_of_groups and len(column.parts) == 1:  # it may be the name of an item
            return None
        return outer.column_of_joins(column, variant)

    written = [rows.faithful.with_columns(tree, column_sql) for tree in conditions]
    value = exported(len(own)) if compared is not None else None
    if value is not None:
        written.append(_equal(outer, node, value, column_sql))
    on = " AND ".join(f"({sql})" for sql in written if sql is not None) or "true"
    return f"LEFT SEMI JOIN {derived.sql} AS {alias} ON {on}"


def _is_correlated(inner: SelectRows, tree: Any) -> bool:
    return any(inner.columns.find(column) is None for column in own_columns(tree))


def _compared(inner: SelectRows, node: Any, block: Block) -> Any:
    """Return the expression of the column that IN compares; None if a changed row doesn't tell its value."""
    is_compared = type(node.parent).__name__ == "In" and len(block.items) == 1
    return inner.item(0) if is_compared else None


def _equal(outer: SelectRows, node: Any, value: str, column_sql: Any) -> str | None:
    """Return the condition on the left side of IN under which its result may depend on a value.

    If WHERE consists of it, only equal values matter. Elsewhere, a NULL makes the result NULL.
    """
    left = node.parent.this
    if type(left).__name__ == "Tuple" or not outer.is_plain(left):
        return None
    sql = outer.rows.faithful.with_columns(left, column_sql)
    if sql is None:
        return None
    is_condition = any(condition is node.parent for condition in outer.conditions)
    return f"{sql} = {value}" if is_condition else f"coalesce({sql} = {value}, true)"
