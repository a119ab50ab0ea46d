"""Renders a recomputed relational view for people and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mzplan.model.words import count
from mzplan.render.text import Paint, safe

if TYPE_CHECKING:
    from mzplan.connectors.api.recomputed import RecomputationResult


def recomputed_to_json(result: RecomputationResult) -> dict[str, Any]:
    """Return the part of `verify --from-upstream --json` about a relational view: numbers of rows."""
    return {
        "as_of": result.step,
        "equal": result.is_equal,
        "rows": {"query": result.expected_rows, "collection": result.collection_rows},
        "missing": result.missing,
        "more": result.more,
        "late": result.late,
        "excused": result.explanation or None,
        "examples": list(result.examples),
        "not_compared": list(result.not_compared),
    }


def render_recomputed(address: object, result: RecomputationResult, paint: Paint) -> list[str]:
    """Return lines that say what was compared and what differs."""
    subject = f"{address} as of step {result.step}, computed again from all rows that it has read"
    if result.is_equal:
        lines = [f"{subject}: {count(result.collection_rows, 'row')} as computed."]
    else:
        numbers = (
            f"{count(result.expected_rows, 'row')} computed, {result.collection_rows:,} in its collection; "
            f"{result.missing:,} missing, {result.more:,} more"
        )
        lines = [f"{subject}: {numbers}.", *(f"  {safe(example)}" for example in result.examples)]
        if result.is_wrong:
            lines = [paint(line, "red") for line in lines]
        else:
            lines.append(f"mzplan can't tell whether this is correct. {result.explanation}")
    if result.not_compared:
        columns = ", ".join(map(safe, result.not_compared))
        lines.append(
            f"Not compared: {columns} (sums of floating-point numbers depend on the order of the rows)."
        )
    return lines
