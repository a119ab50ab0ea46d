"""The step record of an exactly-once Kafka sink: its writer, and the written steps."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from mzplan.endpoints.interface import Step, Written
from mzplan.warehouse.rows.content_hash import ContentHash

EMPTY = str(ContentHash())
UNKNOWN = ""
KEPT_STEPS = 40
"""How many steps before the last one are kept. The record then has up to about 2,000 bytes; brokers accept
4,096 (`offset.metadata.max.bytes`)."""

StepRelation = Literal["write", "replay", "later", "gap"]
Older = tuple[tuple[int, int, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaStepRecord:
    """The record that a sink commits with each step.

    - `epoch`: the epoch of the newest runner, recorded before it writes. Older runners see it and stop.
    - `step`: the last written step; -1 for none.
    - `rows`, `hash`: the row count and content hash of that step. The hash is UNKNOWN if the sink didn't
      write the step, because the record was created after the checkpoint.
    - `older`: step, row count and hash of earlier steps, in order.
    """

    generation: int
    epoch: int
    query: str
    step: int
    rows: int = 0
    hash: str = EMPTY
    older: Older = field(default=())

    @classmethod
    def parse(cls, text: str) -> KafkaStepRecord:
        """Parse the text of a step record. Raises ValueError for any other text."""
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
            older=tuple((int(step), int(rows), str(hash_)) for step, rows, hash_ in data["older"]),
        )

    @property
    def text(self) -> str:
        """The record as stored in the metadata of a committed offset."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    def relation_of(self, step: Step) -> StepRelation:
        """Return how a step relates to the last written one. `write`: it is the next step. `replay`: it is
        the same step. `later`: later steps are already written. `gap`: steps before it are missing."""
        if step == self.step + 1:
            return "write"
        if step > self.step:
            return "gap"
        return "replay" if step == self.step else "later"

    def written(self) -> dict[Step, Written]:
        """Return the written steps that are still recorded."""
        entries = self.older if self.step < 0 else (*self.older, (self.step, self.rows, self.hash))
        return {step: Written(rows=rows, digest=hash_ or None) for step, rows, hash_ in entries}

    def with_step(self, step: Step, written: Written) -> KafkaStepRecord:
        """Return the record with `step` added. If it has the step already, `written` replaces the entry."""
        written_steps = {**self.written(), step: written}
        last = max(written_steps)
        entries = [
            (s, written_steps[s].rows, written_steps[s].digest or UNKNOWN) for s in sorted(written_steps)
        ]
        # The sink didn't write an UNKNOWN step.
        older = tuple(entry for entry in entries[:-1] if entry[1:] != (0, UNKNOWN))
        return replace(self, step=last, rows=entries[-1][1], hash=entries[-1][2], older=older)

    def without(self, first_kept: Step) -> KafkaStepRecord:
        """Return the record without steps before this one. The last step always stays."""
        return replace(self, older=tuple(entry for entry in self.older if entry[0] >= first_kept))

    def is_newer_than(self, other: KafkaStepRecord) -> bool:
        """Whether this record's writer has replaced the writer of `other`."""
        return (self.generation, self.epoch) > (other.generation, other.epoch)

    def is_by(self, writer: KafkaStepRecord) -> bool:
        """Whether the record comes from the same run of the same query as `writer`."""
        return (self.generation, self.epoch, self.query) == (writer.generation, writer.epoch, writer.query)
