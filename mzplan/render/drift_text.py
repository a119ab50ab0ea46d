"""Drift for people: a line for each cause."""

from __future__ import annotations

from collections.abc import Iterable

from mzplan.model.plan import DriftItem
from mzplan.render.text import brief, safe

MAX_NAMED = 5  # addresses of one cause


def drift_lines(drift: Iterable[DriftItem], longest: int) -> list[str]:
    """Return a line for each cause, with at most `longest` characters of detail. Findings with the same kind
    and detail, such as those of one dead runner, have one cause."""
    causes: dict[tuple[str, str], list[str]] = {}
    for item in drift:
        causes.setdefault((item.kind, item.detail), []).append(safe(item.address))
    return [f"{_named(names)}: {kind}: {brief(detail, longest)}" for (kind, detail), names in causes.items()]


def _named(names: list[str]) -> str:
    more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more
