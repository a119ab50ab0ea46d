"""One-off tasks: work that a query does once before it starts, such as a backfill or a replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mzplan.model.stored import SPARSE, Positive
from mzplan.model.times import instant_text

ERASURE = "erasure"
"""The kind of a task that erases rows of a source."""
CONDITION = "condition"
"""The argument of an erasure that names its condition (see mzplan.warehouse.erasures)."""
DEADLINE = "by"
"""The argument of an erasure that says when its old files must be gone, as a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Work that a query does once before it starts. Its kind defines the work.

    - `arguments`: the kind's arguments, as JSON.
    - `serial`: the commit that requested the task. It identifies the task within its query.
    - `generation`: the generation of the query. A task ends with it.
    - `title`: the task for people, such as "replay of step 3". It begins with the command that requests it.
    """

    kind: str
    arguments: Mapping[str, Any]
    serial: Positive
    generation: Positive
    title: str

    @property
    def command(self) -> str:
        """The command that requests and cancels such tasks."""
        return self.title.partition(" ")[0]

    def __str__(self) -> str:
        return self.title


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """The result of a finished task.

    - `serial`: the task's serial.
    - `text`: the result for people; "" if the title says it all.
    - `facts`: the result as JSON.
    """

    serial: Positive
    text: str = field(default="", metadata=SPARSE)
    facts: Mapping[str, Any] = field(default_factory=dict, metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProgress:
    """How far the work is that a query does before it starts.

    - `title`: the work for people: the title of a task, or "migration of its rows".
    - `since`: when it began, in seconds since the epoch; None if it waits for a thread.
    - `text`: how far it is, such as "writing 1,200 rows again"; "" if unknown.
    """

    title: str
    since: float | None = field(default=None, metadata=SPARSE)
    text: str = field(default="", metadata=SPARSE)

    def __str__(self) -> str:
        began = f"began at {instant_text(int(self.since) * 1000)}" if self.since is not None else "will begin"
        return f"its {self.title} {began}{f': {self.text}' if self.text else ''}"
