"""Renders a recomputed relational view for people and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mzplan.model.words import count
from mzplan.render.text import Paint, safe

if TYPE_CHECKING:
    from mzplan.connectors.api.recomputed import Recomputed


def recomputed_to_json(found: Recomputed) -> dict[str, Any]:
    """Return the part of `verify --from-upstream --json` about a relational view: numbers of rows."""
    return {
        "as_of": found.step,
        "equal": found.is_equal,
        "rows": {"query": found.wanted, "collection": found.found},
        "missing": found.missing,
        "more": found.more,
        "late": found.late,
        "excused": found.excused or None,
        "examples": list(found.examples),
        "not_compared": list(found.unseen),
    }


def render_recomputed(address: object, found: Recomputed, paint: Paint) -> list[str]:
    """Return lines that say what was compared and what differs."""
    what = f"{address} as of step {found.step}, computed again from all rows that it has read"
    if found.is_equal:
        lines = [f"{what}: {count(found.found, 'row')} as computed."]
    else:
        numbers = (
            f"{count(found.wanted, 'row')} computed, {found.found:,} in its collection; "
            f"{found.missing:,} missing, {found.more:,} more"
        )
        lines = [f"{what}: {numbers}.", *(f"  {safe(example)}" for example in found.examples)]
        if found.is_wrong:
            lines = [paint(line, "red") for line in lines]
        else:
            lines.append(f"Whether that is right can't be told. {found.excused}")
    if found.unseen:
        columns = ", ".join(map(safe, found.unseen))
        lines.append(
            f"Not compared: {columns} (sums of floating-point numbers depend on the order of the rows)."
        )
    return lines
