"""The step record of an exactly-once Kafka sink: who writes, and the last step that is written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from mzplan.content_hash import ContentHash
from mzplan.model import reading

EMPTY = str(ContentHash())

Verdict = Literal["write", "replay", "later", "gap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """`step` is the last one written (-1: none), `rows` and `hash` are its count and content hash. `epoch` is
    that of the newest runner, which notes it down before it writes: older ones see it, and stop."""

    generation: int
    epoch: int
    query: str
    step: int
    rows: int = 0
    hash: str = EMPTY

    @classmethod
    def parse(cls, text: str) -> StepRecord:
        """Raises ValueError for what is no step record."""
        data = reading.mapping(reading.parse(text.encode()), "step record")
        return cls(
            generation=reading.integer(data, "generation", least=1),
            epoch=reading.integer(data, "epoch"),
            query=reading.text(data, "query"),
            step=reading.integer(data, "step", least=-1),
            rows=reading.integer(data, "rows"),
            hash=reading.text(data, "hash"),
        )

    @property
    def text(self) -> str:
        """As it stands in the metadata of a committed offset."""
        return json.dumps(self.fields(), sort_keys=True)

    def fields(self) -> Mapping[str, Any]:
        return asdict(self)

    def verdict(self, step: int) -> Verdict:
        """What is to be done with a step: `write` what comes next; `replay` the last one; `later`: steps
        after it are written already; `gap`: steps before it are missing."""
        if step == self.step + 1:
            return "write"
        if step > self.step:
            return "gap"
        return "replay" if step == self.step else "later"

    def next(self, step: int) -> StepRecord:
        """What the record becomes with the rows of that step, which are added to none."""
        return replace(self, step=step, rows=0, hash=EMPTY)

    def is_newer_than(self, other: StepRecord) -> bool:
        """Whether this one's writer has replaced the other's."""
        return (self.generation, self.epoch) > (other.generation, other.epoch)
