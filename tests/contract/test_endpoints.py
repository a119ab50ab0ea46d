"""The endpoint contracts over what mzplan itself has: the local source, and an output in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import RecordBatch

from mzplan.connectors.local.source import LocalFactory
from mzplan.connectors.local.steps import LocalSteps
from mzplan.endpoints import OutputEndpoint, Step, StepError, checked_step
from mzplan.endpoints.interface import Written
from mzplan.endpoints.replay import StepReplay
from mzplan.endpoints.testing import (
    InputSubject,
    OutputSubject,
    batch_of,
    config_columns,
    input_contract,
    output_contract,
)


def local(folder: Path) -> InputSubject:
    storage = str(folder / "steps")
    fed = iter(range(1_000))

    def feed(rows: list[dict[str, Any]]) -> None:
        LocalSteps(storage).append(pa.Table.from_batches([batch_of(rows)]), f"append {next(fed)}")

    return InputSubject(
        factory=LocalFactory(), config={"storage": storage, "columns": config_columns()}, feed=feed
    )


class Memory:
    """An output of one process: rows and what is recorded of each step; both change in finish_step only."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.written: dict[Step, Written] = {}

    def name(self) -> str:
        return "memory"

    def new_endpoint(self, name: str, config: Mapping[str, Any]) -> OutputEndpoint:
        return MemoryOutput(self, config["compare"])


class MemoryOutput:
    def __init__(self, memory: Memory, compare: Any):
        self.memory, self.compare = memory, compare
        self.replay: StepReplay | None = None

    def start_step(self, step: Step) -> None:
        written = self.memory.written
        self.fresh: list[dict[str, Any]] = []
        self.replay = StepReplay(
            step, written=written.get(step), last=max(written, default=None), compare=self.compare
        )

    def push_buffer(self, batch: RecordBatch) -> None:
        if self.replay is None:
            raise StepError("no step is started")
        self.fresh += self.replay.push(batch).to_pylist()

    def finish_step(self) -> None:
        if self.replay is None:
            raise StepError("no step is started")
        note = self.replay.finish()
        self.memory.rows += self.fresh
        self.memory.written[self.replay.step] = note
        self.replay = None

    def expire_step(self, step: Step) -> None:
        until = min(checked_step(step), max(self.memory.written, default=0))
        for old in [one for one in self.memory.written if one < until]:
            del self.memory.written[old]


def memory(folder: Path) -> OutputSubject:
    made = Memory()
    return OutputSubject(factory=made, config={}, contents=lambda: made.rows)


TestLocalInput = input_contract(local)
TestMemoryOutput = output_contract(memory)
