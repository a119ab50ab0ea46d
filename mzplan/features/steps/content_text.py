"""`verify --content`: for a person and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mzplan.model.words import count
from mzplan.render.text import Paint, safe

if TYPE_CHECKING:
    from mzplan.connectors.api.content import Compared


def compared_to_json(found: Compared, *, shared: bool) -> dict[str, Any]:
    """The document of `verify --content --json`. Numbers of rows; `first` and `last` are steps."""
    return {
        "address": str(found.address),
        "target": found.target,
        "first": found.first,
        "last": found.last if found.last >= 0 else None,
        "equal": found.is_equal(shared=shared),
        "rows": {"collection": found.wanted, "target": found.found},
        "missing": found.missing,
        "doubled": found.doubled,
        "more": found.more,
        "examples": {kind: list(listed) for kind, listed in found.examples.items() if listed},
        "not_compared": list(found.unseen),
    }


def render_compared(found: Compared, *, shared: bool, color: bool = False) -> str:
    """What was compared, what differs, and what was not looked at."""
    paint = Paint(color)
    lines = [_range(found)]
    wrong = {
        "missing": (found.missing, "missing in the target", True),
        "doubled": (found.doubled, "there more than once", not found.repeats),
        "more": (found.more, "more in the target: changed by hand, or written by others", not shared),
    }
    for kind, (number, what, counts) in wrong.items():
        if number:
            listed = "; ".join(safe(one) for one in found.examples.get(kind, ()))
            line = f"{count(number, 'row')} {'is' if number == 1 else 'are'} {what} ({listed})."
            lines.append(paint(line, "red") if counts else line)
    if found.is_equal(shared=shared):
        lines.append(_EQUAL if found.last >= 0 and found.first is not None else "Nothing differs.")
    lines += [f"Not compared: {safe(what)}." for what in found.unseen]
    return "\n".join(lines)


def _range(found: Compared) -> str:
    wanted = f"{found.wanted:,} row{'' if found.wanted == 1 else 's'} of the collection"
    rows = f"{wanted}, {found.found:,} in the target, {safe(found.target)}"
    if found.last < 0:
        return f"{found.address} has written nothing yet: {rows}."
    if found.first is None:
        gone = f"of none of its steps, up to {found.last}, does the target keep all rows any more"
        return f"{found.address}: {gone}: {rows}."
    kept = "" if found.first == 0 else f"; of steps before {found.first}, it keeps some rows or none"
    steps = str(found.last) if found.first == found.last else f"{found.first}..{found.last}"
    return f"{found.address}, steps {steps}: {rows}{kept}."


_EQUAL = "The target holds what it should."
