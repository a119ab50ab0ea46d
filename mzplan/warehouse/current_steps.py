"""The steps of a current view: which versions of its inputs a step reads, and how it computed its rows.

A step records its versions before it reads a row, so that it reads the same versions if it runs again:

    <warehouse>/checkpoints/<id>/g<n>/current/<step>.json

The folder keeps the newest steps.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mzplan.model.codec import decode, encode
from mzplan.model.stored import SPARSE
from mzplan.model.words import count
from mzplan.warehouse.folder import decoding, open_folder
from mzplan.warehouse.step_record import Count

FORMAT_VERSION = 1
RETAINED_STEPS = 1000

Refresh = Literal["full", "incremental"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentStep:
    """A step of a current view.

    - `computed`: a digest of the query, its columns and its inputs. With another digest, the rows of the
      collection follow from another query.
    - `versions`: the version of each input, by its place (see snapshot.name_of).
    - `refresh`: whether the step computed all rows, or only the rows of affected keys; None before it has.
    - `why`: why it computed all rows, as a clause.
    - `keys`: how many keys the changed rows of the inputs could affect.
    - `changes`: how many rows it inserted, updated or deleted.
    - `seconds`: how long it took to compute them.
    - `failed`: the last attempt has failed, and wrote nothing. The next attempt reads the newest versions,
      because rows may have been corrected meanwhile.
    """

    computed: str
    versions: Mapping[str, Count]
    refresh: Refresh | None = field(default=None, metadata=SPARSE)
    why: str = field(default="", metadata=SPARSE)
    keys: Count | None = None
    changes: Count | None = None
    seconds: float | None = field(default=None, metadata=SPARSE)
    failed: bool = field(default=False, metadata=SPARSE)

    def summary(self) -> str:
        """Return how the step has computed its rows, as a clause; "" if it hasn't."""
        if self.refresh is None or self.changes is None:
            return ""
        keys = count(self.keys or 0, "affected key")
        how = f"computed all rows, because {self.why}" if self.refresh == "full" else f"computed {keys}"
        return f"{how}; {count(self.changes, 'row')} differed"


class CurrentSteps:
    """The steps of a current view in its checkpoint. Only the leading runner writes.

    Raises OSError, also for a file with invalid content."""

    def __init__(self, checkpoint: str):
        self._place = f"{checkpoint}/current"
        self._folder = open_folder(self._place)

    def at(self, step: int) -> CurrentStep | None:
        """Return a step; None if it isn't recorded."""
        data = self._folder.read(_file_of(step))
        if data is None:
            return None
        with decoding(f"{self._place}/{_file_of(step)}"):
            content = json.loads(data)
            return decode(CurrentStep, {k: v for k, v in content.items() if k != "format_version"})

    def before(self, step: int) -> CurrentStep | None:
        """Return the newest recorded step before this one. It is finished, because steps run in order."""
        steps = (int(name.removesuffix(".json")) for name in self._folder.names() if name.endswith(".json"))
        last = max((number for number in steps if number < step), default=None)
        return self.at(last) if last is not None else None

    def record(self, step: int, content: CurrentStep) -> None:
        """Record a step durably, and forget the oldest step."""
        encoded = {"format_version": FORMAT_VERSION, **encode(content)}
        self._folder.write(_file_of(step), json.dumps(encoded, separators=(",", ":")).encode())
        if step >= RETAINED_STEPS:
            self._folder.delete(_file_of(step - RETAINED_STEPS))


def _file_of(step: int) -> str:
    return f"{step:020}.json"
