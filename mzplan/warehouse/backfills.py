"""The backfills of a source that have begun: what each of them writes, as which step. See docs/protocol.md.

    <checkpoint>/backfills/00000000000000000042.json    step 42

It is written before the rows are, so that whoever goes on after a kill writes the same ones; it is kept, for
Spark's log says of such a step only that it has read nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from mzplan.model.codec import decode, encode
from mzplan.model.state import Backfill
from mzplan.model.stored import stored
from mzplan.warehouse.folder import open_folder
from mzplan.warehouse.step_record import Count

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillStep:
    """The step of a backfill. `start` and `end`: entries of Spark's offset log that its records lie between.
    `done`: its rows are in the collection, and the checkpoint is behind it. One that was given up stays."""

    step: Count
    backfill: Backfill
    start: Any = field(metadata=stored("from"))
    end: Any = field(metadata=stored("to"))
    done: bool = False


class Backfills:
    """Of one checkpoint. One writer (the leading runner), readers anywhere. Raises OSError, also for a file
    that holds something else."""

    def __init__(self, folder: str):
        self.place = f"{folder}/backfills"
        self._folder = open_folder(self.place)

    def all(self) -> list[BackfillStep]:
        """In the order of their steps."""
        found = [self.at(int(name[:20])) for name in sorted(self._folder.names()) if name[:20].isdecimal()]
        return [one for one in found if one is not None]

    def at(self, step: int) -> BackfillStep | None:
        """The one that is this step; None where it is no backfill."""
        data = self._folder.read(_name(step))
        if data is None:
            return None
        try:
            return decode(BackfillStep, json.loads(data)["backfill"])
        except (ValueError, KeyError, TypeError) as problem:
            raise OSError(f"{self.place}/{_name(step)} is damaged: {problem}") from None

    def record(self, one: BackfillStep) -> None:
        """Write it down, durably and whole."""
        data = {"format_version": FORMAT_VERSION, "backfill": encode(one)}
        self._folder.write(_name(one.step), json.dumps(data, separators=(",", ":")).encode())


def _name(step: int) -> str:
    return f"{step:020}.json"
