"""The appends to a local source by one writer, while it holds the lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mzplan.connectors.local.step_files import digest_difference, encode_step, file_name, hash_of
from mzplan.endpoints.interface import Step
from mzplan.warehouse.content_hash import content_hash

if TYPE_CHECKING:
    from pyarrow import Table

    from mzplan.connectors.local.steps import FolderView, LocalSteps


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendedStep:
    """The result of an append.

    - `is_repeat`: whether an append with this id already existed, from `step` on. Then nothing was written.
    - `digests`: the recorded digest and the digest of the new rows, if a repeated append has other rows.
    - `differing_step`: the step whose rows differ.
    """

    step: Step
    rows: int
    is_repeat: bool = False
    digests: tuple[str, str] | None = None
    differing_step: Step | None = None

    @property
    def differs(self) -> bool:
        return self.digests is not None


class StaleStepError(Exception):
    """Raised if the next step isn't the expected one. Nothing was written."""

    def __init__(self, expected: Step, next_step: Step):
        super().__init__(f"the next step is {next_step}, not {expected}")
        self.next_step = next_step


class Turn:
    """Writes appends while it holds the lock. `view` is the folder's content when the turn began."""

    def __init__(self, steps: LocalSteps, view: FolderView):
        self._steps = steps
        self.view = view
        self._planned: dict[str, tuple[str, Table]] = {}  # by the name of the file

    @property
    def stop(self) -> Step:
        """The step after the existing steps and the planned ones."""
        return self.view.stop + len(self._planned)

    def append(
        self, steps: Sequence[Table], id_: str, expect: Step | None = None, *, separate: bool = False
    ) -> AppendedStep:
        """Plan rows as the next steps, unless an append with this id already exists. `separate`: each step
        becomes a micro-batch of its own. Raises StaleStepError."""
        earlier = self._steps.find(self.view, hash_of(id_))
        if earlier is not None:
            repeat = AppendedStep(step=earlier.step, rows=earlier.rows, is_repeat=True)
            for step, rows in enumerate(steps, earlier.step):
                recorded = self._steps.recorded(self.view, step)
                if recorded is None:
                    continue
                digests = digest_difference(recorded.rows, recorded.digest, content_hash([rows]))
                if digests is not None:
                    return replace(repeat, digests=digests, differing_step=step)
            return repeat
        first = self.stop
        if expect is not None and expect != first:
            raise StaleStepError(expect, first)
        for index, rows in enumerate(steps):
            own_id = id_ if index == 0 else f"{id_}+{index}"
            name = file_name(first + index, hash_of(own_id), *([index] if separate else []))
            self._planned[name] = (own_id, rows)
        return AppendedStep(step=first, rows=sum(rows.num_rows for rows in steps))

    def plans(self, id_: str) -> bool:
        """Whether an append with this id is planned."""
        return any(own_id == id_ for own_id, _ in self._planned.values())

    def known(self, id_: str) -> Step | None:
        """Return the first step of the append with this id, or None."""
        append = self._steps.find(self.view, hash_of(id_))
        return append.step if append is not None else None

    def write(self) -> None:
        """Write all planned steps or none. Call it once."""
        for name, (id_, rows) in reversed(self._planned.items()):
            self._steps.folder.write(name, encode_step(rows, id_))
