"""A durable record of steps, for inputs whose upstream has positions of its own.

For an upstream such as a table with increasing keys, it is enough to know where each step begins and ends.
The log stores these small bounds, one JSON file per step. Its folder is `config["storage"]`, next to the
checkpoint, and belongs to the endpoint's generation.
"""

from __future__ import annotations

import json
from typing import Any

from mzplan.endpoints.interface import Step, StepError, checked_step
from mzplan.warehouse.folder import Folder, decoding, open_folder

_DIGITS = 20
_START = "start.json"


class StepLog:
    """The log of one endpoint's steps: a note for each step. Only one process may write at a time.

    Raises OSError if the storage fails."""

    def __init__(self, storage: str):
        self._folder: Folder = open_folder(storage)
        self._storage = storage

    def steps(self) -> range:
        """Return the steps that are in the log and not expired."""
        names = self._folder.names()
        # List first, then read the start: a step that expires in between is still in the list.
        start = self._start(names)
        newest = max((step for step in map(_step_of, names) if step is not None), default=start - 1)
        return range(start, max(start, newest + 1))

    def note(self, step: Step) -> dict[str, Any]:
        """Return the note of a step. Raises StepError if the log doesn't have it."""
        note = self._read(_name(checked_step(step))) if step in self.steps() else None
        if note is None:
            steps = self.steps()
            raise StepError(
                f"step {step} is not in the log, which has {steps.start} to {steps.stop} (excluded)"
            )
        return note

    def newest(self) -> dict[str, Any] | None:
        """Return the note of the newest step, even if it has expired, or None if there never was one."""
        numbers = [step for step in map(_step_of, self._folder.names()) if step is not None]
        return self._read(_name(max(numbers))) if numbers else None

    def append(self, step: Step, note: dict[str, Any]) -> None:
        """Write the next step's note durably. An existing note doesn't change.

        Raises StepError for a gap.
        """
        steps = self.steps()
        if step in steps:
            return
        if step != steps.stop:
            raise StepError(f"step {step} can't be added to the log: the next step is {steps.stop}")
        self._folder.write(_name(step), json.dumps(note, sort_keys=True).encode())

    def expire(self, step: Step) -> None:
        """Delete the notes before a step, except the newest note, from which the count continues.

        Raises StepError if `step` is beyond the end of the log.
        """
        steps = self.steps()
        if step > steps.stop:
            raise StepError(f"can't expire steps before {step}: the newest is {steps.stop - 1}")
        if step <= steps.start:
            return
        self._folder.write(_START, json.dumps({"start": step}).encode())
        for expired in map(_step_of, self._folder.names()):
            if expired is not None and expired < min(step, steps.stop - 1):
                self._folder.delete(_name(expired))

    def _start(self, names: list[str]) -> Step:
        data = self._read(_START) if _START in names else None
        with decoding(f"{self._storage}/{_START}"):
            return checked_step(data["start"]) if data is not None else 0

    def _read(self, name: str) -> dict[str, Any] | None:
        data = self._folder.read(name)
        with decoding(f"{self._storage}/{name}"):
            return dict(json.loads(data)) if data is not None else None


def _name(step: Step) -> str:
    return f"{step:0{_DIGITS}}.json"


def _step_of(name: str) -> Step | None:
    stem = name.removesuffix(".json")
    return int(stem) if len(stem) == _DIGITS and stem.isdecimal() else None
