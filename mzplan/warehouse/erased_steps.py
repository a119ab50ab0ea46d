"""Which steps of a collection have erased rows, and when the files with these rows must be gone."""

from __future__ import annotations

import math

from mzplan.model.tasks import DEADLINE, ERASURE
from mzplan.model.times import instant
from mzplan.warehouse.checkpoints import TaskRecord, TaskRecords

ERASED_AT = "erased_at"
"""The detail of an erasure's record: when no version of the table had the rows any more, in seconds."""
SWEPT_AT = "swept_at"
"""The detail of an erasure's record: when files were removed that no version ever had, in seconds."""


def last_erasure(tasks: TaskRecords, *, due: float = math.inf) -> TaskRecord | None:
    """Return the last erasure that is done, and whose old files must be gone at a time; None without one.

    `due`: in seconds since the epoch. Raises OSError.
    """
    return max(
        (record for record in tasks.all() if record.done and _is_due(record, due)),
        key=lambda record: record.step or 0,
        default=None,
    )


def _is_due(record: TaskRecord, due: float) -> bool:
    if record.task.kind != ERASURE:
        return False
    deadline = instant(str(record.task.arguments.get(DEADLINE)))
    return deadline is None or deadline / 1000 <= due
