"""The step record of an exactly-once Kafka sink: who writes, and which steps are written.

This module is sent to the executors whole (see task_code).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from mzplan.endpoints.interface import Step
from mzplan.endpoints.replay import Written
from mzplan.warehouse.content_hash import ContentHash

EMPTY = str(ContentHash())
UNKNOWN = ""
KEPT_STEPS = 40
"""So many steps before the last one are remembered, too: with them the record has at most some 2,000 bytes,
and the brokers take 4,096 (`offset.metadata.max.bytes`)."""

Verdict = Literal["write", "replay", "later", "gap"]
Older = tuple[tuple[int, int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """`step` is the last one written (-1: none), `rows` and `hash` are its count and content hash (UNKNOWN:
    of a sink that began later than its checkpoint). `older` are the same three of steps before it, in order.
    `epoch` is that of the newest runner, which notes it down before it writes: older ones see it, and stop.
    """

    generation: int
    epoch: int
    query: str
    step: int
    rows: int = 0
    hash: str = EMPTY
    older: Older = field(default=())

    @classmethod
    def parse(cls, text: str) -> StepRecord:
        """Raises ValueError for what is no step record."""
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError("no mapping")
        for name, least in (("generation", 1), ("epoch", 0), ("step", -1), ("rows", 0)):
            if type(data.get(name)) is not int or data[name] < least:
                raise ValueError(f"{name} is {data.get(name)!r}")
        for name in ("query", "hash"):
            if not isinstance(data.get(name), str):
                raise ValueError(f"{name} is {data.get(name)!r}")
        return cls(
            generation=data["generation"],
            epoch=data["epoch"],
            query=data["query"],
            step=data["step"],
            rows=data["rows"],
            hash=data["hash"],
            older=tuple((int(step), int(rows), str(hash_)) for step, rows, hash_ in data.get("older", ())),
        )

    @property
    def text(self) -> str:
        """As it stands in the metadata of a committed offset."""
        return json.dumps(self.fields(), sort_keys=True, separators=(",", ":"))

    def fields(self) -> Mapping[str, Any]:
        return asdict(self)

    def verdict(self, step: Step) -> Verdict:
        """What is to be done with a step: `write` what comes next; `replay` the last one; `later`: steps
        after it are written already; `gap`: steps before it are missing."""
        if step == self.step + 1:
            return "write"
        if step > self.step:
            return "gap"
        return "replay" if step == self.step else "later"

    def written(self) -> dict[Step, Written]:
        """What is known of the steps that are written."""
        listed = self.older if self.step < 0 else (*self.older, (self.step, self.rows, self.hash))
        return {step: Written(rows=rows, digest=hash_ or None) for step, rows, hash_ in listed}

    def with_step(self, step: Step, note: Written) -> StepRecord:
        """What the record becomes when a step is written (again)."""
        known = {**self.written(), step: note}
        last = max(known)
        listed = [(s, known[s].rows, known[s].digest or UNKNOWN) for s in sorted(known)]
        # One that this sink began after was not written by it.
        older = tuple(one for one in listed[:-1] if one[1:] != (0, UNKNOWN))
        return replace(self, step=last, rows=listed[-1][1], hash=listed[-1][2], older=older)

    def without(self, before: Step) -> StepRecord:
        """What it becomes when steps before that one are forgotten; the last one never is."""
        return replace(self, older=tuple(one for one in self.older if one[0] >= before))

    def is_newer_than(self, other: StepRecord) -> bool:
        """Whether this one's writer has replaced the other's."""
        return (self.generation, self.epoch) > (other.generation, other.epoch)

    def is_by(self, writer: StepRecord) -> bool:
        """Whether it is of the same run of the same query."""
        return (self.generation, self.epoch, self.query) == (writer.generation, writer.epoch, writer.query)
