"""The rows of each step that violate an expectation, counted before the step writes its rows.

A step that runs again counts the same rows again, and replaces its record. So each row counts once:

    <warehouse>/checkpoints/<id>/g<n>/violations/<step>.json

Only steps with a violation have a file, which also has the totals of all steps so far. The folder keeps the
newest files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from mzplan.model.codec import decode, encode
from mzplan.model.stored import SPARSE
from mzplan.model.violations import ViolationCount
from mzplan.warehouse.folder import decoding, open_folder

FORMAT_VERSION = 1
RETAINED = 1000  # files


@dataclass(frozen=True, slots=True, kw_only=True)
class StepViolations:
    """The violations of one step, by expectation. `total`: those of this and all earlier steps."""

    rows: Mapping[str, int] = field(default_factory=dict, metadata=SPARSE)
    total: Mapping[str, ViolationCount] = field(default_factory=dict, metadata=SPARSE)


class Violations:
    """The violations in one checkpoint. Only the leading runner writes.

    Raises OSError, also for a file with invalid content."""

    def __init__(self, checkpoint: str):
        self._place = f"{checkpoint}/violations"
        self._folder = open_folder(self._place)

    def steps(self) -> list[int]:
        """Return the steps with a record, in order."""
        names = self._folder.names()
        return sorted(int(name.removesuffix(".json")) for name in names if name.endswith(".json"))

    def at(self, step: int) -> StepViolations | None:
        """Return the record of a step; None if it has none."""
        data = self._folder.read(_file_of(step))
        if data is None:
            return None
        with decoding(f"{self._place}/{_file_of(step)}"):
            content = json.loads(data)
            return decode(StepViolations, {k: v for k, v in content.items() if k != "format_version"})

    def total(self, before: int | None = None) -> Mapping[str, ViolationCount]:
        """Return the violations of all steps, or of all steps `before` one, by expectation."""
        last = max((step for step in self.steps() if before is None or step < before), default=None)
        record = self.at(last) if last is not None else None
        return record.total if record is not None else {}

    def record(self, step: int, rows: Mapping[str, int]) -> Mapping[str, ViolationCount]:
        """Record durably how many rows of a step violate each expectation. Return the new totals.

        Replaces the record of an earlier attempt at the step."""
        steps, counted = self.steps(), {name: number for name, number in rows.items() if number}
        total = dict(self.total(before=step))
        if not counted:
            if step in steps:
                self._folder.delete(_file_of(step))
            return total
        for name, number in counted.items():
            earlier = total.get(name, ViolationCount())
            total[name] = ViolationCount(rows=earlier.rows + number, last_step=step)
        content = encode(StepViolations(rows=counted, total=total))
        encoded = json.dumps({"format_version": FORMAT_VERSION, **content}, separators=(",", ":"))
        self._folder.write(_file_of(step), encoded.encode())
        for old in [known for known in steps if known != step][: -(RETAINED - 1)]:
            self._folder.delete(_file_of(old))
        return total


def _file_of(step: int) -> str:
    return f"{step:020}.json"
