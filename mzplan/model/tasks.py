"""One-off tasks: work that a query does once before it starts, such as a backfill or a replay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mzplan.model.stored import SPARSE, Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Work that a query does once before it starts. What it does is up to its kind.

    - `arguments`: what the kind needs to know, as JSON.
    - `serial`: the commit that requested the task. It tells the task from all others of its query.
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
        """The command that requests such a task, and cancels it."""
        return self.title.partition(" ")[0]

    def __str__(self) -> str:
        return self.title


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """What has become of a task that is done.

    - `serial`: the task's serial.
    - `text`: what it has done, for people; "" if its title says all.
    - `facts`: the same, as JSON.
    """

    serial: Positive
    text: str = field(default="", metadata=SPARSE)
    facts: Mapping[str, Any] = field(default_factory=dict, metadata=SPARSE)
