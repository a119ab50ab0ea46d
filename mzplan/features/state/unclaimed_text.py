"""`state gc`: for a person and as JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mzplan.model.words import count, size
from mzplan.render.text import Paint

if TYPE_CHECKING:
    from mzplan.features.state.storage_gc import Unclaimed


def unclaimed_to_json(found: Unclaimed) -> dict[str, Any]:
    """`changed` in seconds since the epoch."""
    return {
        "id": found.id,
        "generation": found.generation,
        "address": str(found.address) if found.address is not None else None,
        "what": list(found.what),
        "bytes": found.bytes,
        "changed": found.changed,
        "removed": found.removed,
        "kept": found.kept,
    }


def render_unclaimed(found: list[Unclaimed], *, applied: bool, color: bool = False) -> str:
    """A table, and a summary of what would be removed, or (`applied`) was."""
    paint = Paint(color)
    if not found:
        return "Everything in the warehouse is claimed."
    header = ("WAS", "ID", "GENERATION", "WHAT", "SIZE", "LAST WRITTEN (UTC)", "")
    rows = [_row(one, applied) for one in found]
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = [paint(_line(header, widths), "bold"), *(_line(row, widths) for row in rows)]
    gone = [one for one in found if (one.removed if applied else one.kept is None)]
    total = size(sum(one.bytes for one in gone))
    if applied:
        lines.append(f"Removed {count(len(gone), 'generation')}, {total}.")
    elif gone:
        lines.append(f"`mzplan state gc --apply` removes {count(len(gone), 'generation')}, {total}.")
    else:
        lines.append("Nothing of it would be removed now.")
    return "\n".join(lines)


def _row(one: Unclaimed, applied: bool) -> tuple[str, ...]:
    when = datetime.fromtimestamp(one.changed, UTC).strftime("%Y-%m-%d %H:%M:%S") if one.changed else "?"
    note = "removed" if one.removed else f"kept: {one.kept}" if one.kept else "" if applied else "to remove"
    name = str(one.address) if one.address is not None else "?"
    return name, one.id, str(one.generation), "+".join(one.what), size(one.bytes), when, note


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
