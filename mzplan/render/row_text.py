"""The rows that a new generation reads and overwrites, in one line for each collection and target."""

from __future__ import annotations

from collections.abc import Iterator

from mzplan.model.plan import Change, InputExtent
from mzplan.model.times import instant_text
from mzplan.plan.targets import target_lines


def row_lines(change: Change) -> Iterator[str]:
    """Yield a line for the sink's target, and a line for each collection that is read from the start."""
    yield from target_lines(change)
    yield from _input_lines(change)


def _input_lines(change: Change) -> Iterator[str]:
    """Yield `reads all of source.orders: 1,200 rows in steps 0 to 12, since 2026-11-20T14:00:00Z`."""
    for extent in change.inputs:
        now = " as it is now, not as it was at each step" if extent.is_table else ""
        rows = f"{_rows(extent)}{_since(extent)}"
        yield f"reads {'' if now else 'all of '}{extent.address}{now}: {rows}"


def _rows(extent: InputExtent) -> str:
    steps = f"steps 0 to {extent.last_step}" if extent.last_step else "step 0"
    if extent.is_keyed:
        changes = f"{extent.rows:,} changes in " if extent.rows is not None else ""
        return f"the latest row of each key, after {changes}{steps}"
    return f"{extent.rows:,} rows in {steps}" if extent.rows is not None else steps


def _since(extent: InputExtent) -> str:
    if extent.since is None or extent.since_time is None:
        return ""
    time = instant_text(int(extent.since_time) * 1000)
    if extent.since == 0:
        return f", since {time}"
    stays = "" if extent.is_keyed else ", but their rows are still there"
    return f"; steps before {extent.since} ({time}) have expired{stays}"
