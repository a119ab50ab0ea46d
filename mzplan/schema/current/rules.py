"""The pass that checks the rules of current views: a key, and rows that follow from the inputs alone."""

from __future__ import annotations

from mzplan.schema.current.order import check_order
from mzplan.schema.current.trace import WITHOUT_ORDER, trace
from mzplan.schema.faults import varying_in
from mzplan.schema.relations.nodes import QueryError
from mzplan.schema.relations.rules import WrongKeyError
from mzplan.schema.relations.tree import Analysis, Block, Item

_INCREMENTAL = "incremental"


def check_current(analysis: Analysis) -> None:
    """Raise QueryError for the first rule that a query breaks."""
    if (varying := varying_in(analysis.query.tree, analysis.query.text.sql)) is not None:
        raise QueryError(
            f"{varying[0]} changes each time, but rows of this view are computed again",
            varying[1],
            "use columns of the rows only.",
        )
    _check_key(analysis)
    check_order(analysis)
    if analysis.body.get("refresh") == _INCREMENTAL and (why := trace(analysis).why_full):
        problem = f"`refresh: incremental` can't find the rows that a change affects: {why}"
        raise QueryError(
            problem, 0, "remove it; then each step computes all rows, and writes the difference."
        )


def _check_key(analysis: Analysis) -> None:
    """Raise WrongKeyError unless `key` names columns by which rows can be found."""
    items = {item.field.name.lower(): item for item in analysis.root.items}
    keys = analysis.body.get("key")
    if not isinstance(keys, list) or not keys:
        wanted = ", ".join(item.field.name for item in _identifying(analysis.root)) or "…"
        raise WrongKeyError(
            "a view with `output: current` needs a key, by which its rows are updated and deleted",
            f"write `key: [{wanted}]`, with columns that no two rows have in common.",
        )
    for name in keys:
        item = items.get(str(name).lower())
        if item is None:
            columns = ", ".join(item.field.name for item in items.values())
            raise WrongKeyError(f"the key has {name}, and the query selects {columns}", f"select {name}.")
        if any(part in (item.field.type or "") for part in WITHOUT_ORDER):
            problem = f"{name} is {item.field.type}, and rows can't be found by such a value"
            raise WrongKeyError(problem, "use columns of other types as the key.")


def _identifying(root: Block) -> list[Item]:
    """Return the items that surely identify a row; none if that isn't known."""
    if root.groups is not None:
        return [item for item in root.items if root.groups_in(item)]
    return root.items if root.node.args.get("distinct") else []
