"""The steps of a local source: each append is one durable step, an Arrow file beside the checkpoint.

    <storage>/00000000000000000007-<hash of the id>.arrow    step 7: its rows; id and hash as metadata
    <storage>/00000000000000000008-<hash of the id>+0.arrow  steps 8 and 9, separate steps of one append:
    <storage>/00000000000000000009-<hash of the id>+1.arrow  each becomes a micro-batch of its own
    <storage>/expired.json                                   the first step that hasn't expired
    <storage>/expired-ids.json                               the ids of expired appends, which let an append
                                                             recognise a repeated one

A step exists once its file and the files of all earlier steps exist. Each file is written under another name,
fsynced and renamed. An append of several steps writes its first step last, so the append exists completely or
not at all. A file lock serialises the appends of several processes. An object store has no lock, so the
caller must keep other writers out.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from mzplan.connectors.local.appender import (
    AppendedStep,
    Appender,
    DamagedStepError,
    StepFile,
    index_of,
    is_separate,
    key_of,
    step_of,
)
from mzplan.endpoints.interface import Step, StepError, checked_step
from mzplan.warehouse.folder import decoding, open_folder

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Table

_EXPIRED = "expired.json"
_IDS = "expired-ids.json"
RESERVED = "mzplan:"
"""The prefix of ids for steps that mzplan creates itself."""
MAX_KEPT_IDS = 100_000
"""How many ids of expired appends are kept, newest first."""
# Expired steps are removed once there are this many of them, or this many bytes.
_MIN_DISCARDED = 64
_MIN_DISCARDED_BYTES = 64 << 20
# The most file bytes of small steps that one micro-batch reads; a larger step gets its own.
_JOINED_BYTES = 16 << 20


class RecordedStep(NamedTuple):
    """A step, with the number and digest of its rows."""

    step: Step
    rows: int
    digest: str


class LostStepsError(OSError):
    """Raised if steps are missing that were already read, or that other steps follow; the message names them.
    Nothing can be appended, because an append would get the number of a lost step and never be read."""


@dataclass(frozen=True)
class FolderView:
    """The content of the folder.

    - `start`, `stop`: the range of the steps that haven't expired.
    - `files`: the name of each step's file.
    - `ids`: a function that reads the ids of expired appends.
    - `leftovers`: the files after a missing step, from a killed or running append.
    """

    start: Step
    stop: Step
    files: Mapping[Step, str]
    ids: Callable[[], Mapping[str, RecordedStep]]
    leftovers: Mapping[Step, str] = field(default_factory=dict)

    @cached_property
    def expired(self) -> Mapping[str, RecordedStep]:
        return self.ids()

    def are_separate(self, steps: range) -> bool:
        """Whether each of these steps is a micro-batch of its own."""
        return all(is_separate(self.files.get(step, "")) for step in steps)


class LocalSteps:
    """The steps in one folder. Raises OSError if the storage fails."""

    def __init__(self, storage: str):
        self.place = storage
        self.folder = open_folder(storage)
        self._last_view: FolderView | None = None

    def steps(self) -> range:
        view = self._look()
        return range(view.start, view.stop)

    def append(self, rows: Table, id_: str, expect: Step | None = None) -> AppendedStep:
        """Append one step, in a turn of its own (see Appender.append)."""
        with self.appender() as appender:
            appended = appender.append([rows], id_, expect)
            appender.write()
            return appended

    @contextlib.contextmanager
    def appender(self, next_unread: Step = 0) -> Iterator[Appender]:
        """Hold the lock, so that no other append can write. `next_unread` is the step after the last step
        that was read, according to the checkpoint and the collection. Raises LostStepsError."""
        with self.folder.lock():
            view = self._look()
            if view.stop < next_unread:
                raise LostStepsError(
                    f"its steps end before {view.stop}, but steps before {next_unread} were already read: an "
                    "earlier copy was restored, or part of it was removed"
                )
            self._tidy(view)
            yield Appender(self, view)

    def _tidy(self, view: FolderView) -> None:
        """Remove the files of a killed append. Raises LostStepsError if steps were lost: the steps after them
        may have been read, so their numbers must not be reused."""
        later_steps = [step for step, name in view.leftovers.items() if step - index_of(name) != view.stop]
        if later_steps:
            raise LostStepsError(
                f"step {view.stop} is missing, but step {min(later_steps)} exists: part of the folder was "
                "removed, or only part of it was restored"
            )
        for step in sorted(view.leftovers, reverse=True):
            self.folder.delete(view.leftovers[step])

    def _step_file(self, step: Step) -> StepFile:
        """Return a step's file. Raises StepError if it is missing, and OSError."""
        # A step's file never changes, so only a missing one requires a new look at the folder.
        view = self._last_view if self._last_view is not None else self._look()
        reader = self._open_step(view, step)
        if reader is None:
            view = self._look()
            reader = self._open_step(view, step)
        self._last_view = view
        if reader is None:
            raise StepError(
                f"there is no step {step}: only steps {view.start} to {view.stop} (excluded) exist"
            )
        return reader

    def _open_step(self, view: FolderView, step: Step) -> StepFile | None:
        return self._open(view.files[step]) if step in view.files and step >= view.start else None

    def joined(self, steps: range) -> range:
        """Return the first of these existing steps, as many as one micro-batch should read."""
        files = self._look().files
        names = [files.get(step, "") for step in steps]
        first_separate = next((at for at, name in enumerate(names) if is_separate(name)), len(names))
        number = max(1, first_separate)
        while number > 1 and self.folder.size(names[:number]) > _JOINED_BYTES:
            number //= 2
        return steps[:number]

    def batches(self, step: Step) -> list[RecordBatch]:
        """Return a step's rows, after checking that they are the appended ones. Raises StepError if the step
        is missing, and OSError if its file is damaged."""
        try:
            return self._step_file(step).rows()
        except DamagedStepError as problem:
            raise OSError(f"the file of step {step} in {self.place} is damaged: {problem}") from None

    def rows(self, steps: range) -> int:
        """Return the number of rows in these steps. Raises StepError if one is missing."""
        view = self._look()
        missing = next((step for step in steps if step not in view.files), None)
        if missing is not None:
            raise StepError(f"there is no step {missing}")
        return sum(self._recorded(step, view.files[step]).rows for step in steps)

    def appended(self) -> int:
        """Return the number of rows of all appends, read or not. Counts expired appends as far as they are
        recorded."""
        view = self._look()
        expired = (step.rows for step in view.expired.values() if step.step < view.start)
        return sum(expired) + self.rows(range(view.start, view.stop))

    def expire(self, step: Step) -> None:
        """Discard the steps before this one, once there are many. Always keeps the newest step."""
        with self.folder.lock():
            view = self._look()
            if step > view.stop:
                raise StepError(f"can't expire steps before {step}: the next one is {view.stop}")
            until = min(step, view.stop - 1)
            old_steps = [old_step for old_step in sorted(view.files) if old_step < until]
            names = [view.files[old_step] for old_step in old_steps]
            if len(names) < _MIN_DISCARDED and self.folder.size(names) < _MIN_DISCARDED_BYTES:
                return
            ids = dict(view.expired)
            for old_step in old_steps:
                if old_step >= view.start:
                    name = view.files[old_step]
                    ids[key_of(name)] = self._recorded(old_step, name)
            newest_ids = dict(sorted(ids.items(), key=lambda item: item[1].step)[-MAX_KEPT_IDS:])
            # Written first, so that an append which no longer finds a step's file finds its id here.
            self.folder.write(_IDS, json.dumps(newest_ids).encode())
            self.folder.write(_EXPIRED, json.dumps({"start": until}).encode())
            for name in names:
                self.folder.delete(name)

    def _look(self) -> FolderView:
        # List the files first. If steps expire in between, they are then known as expired, not missing.
        files = {step: name for name in self.folder.names() if (step := step_of(name)) is not None}
        expired = self._object(_EXPIRED)
        with decoding(f"{self.place}/{_EXPIRED}"):
            start = stop = checked_step(expired.get("start", 0))
        while stop in files:
            stop += 1
        leftovers = {step: files.pop(step) for step in sorted(files) if step >= stop}
        return FolderView(start, stop, files, self._ids, leftovers)

    def _ids(self) -> dict[str, RecordedStep]:
        ids = self._object(_IDS)
        with decoding(f"{self.place}/{_IDS}"):
            return _appends(ids)

    def _object(self, name: str) -> dict[str, Any]:
        data = self.folder.read(name)
        with decoding(f"{self.place}/{name}"):
            content = json.loads(data) if data is not None else {}
            if not isinstance(content, dict):
                raise ValueError("it is not an object")
            return content

    def find(self, view: FolderView, key: str) -> RecordedStep | None:
        """Return the step of the append whose id has this hash, or None."""
        if key in view.expired:
            return view.expired[key]
        for step, name in view.files.items():
            if key_of(name) == key:
                return self._recorded(step, name)
        return None

    def recorded(self, view: FolderView, step: Step) -> RecordedStep | None:
        """Return a step's record. None if the step doesn't exist, or is too old to be recorded."""
        if step in view.files:
            return self._recorded(step, view.files[step])
        return next((expired for expired in view.expired.values() if expired.step == step), None)

    def _recorded(self, step: Step, name: str) -> RecordedStep:
        file = self._open(name)
        if file is None:
            raise OSError(f"{name} no longer exists")
        try:
            return RecordedStep(step, *file.summary())
        except DamagedStepError as problem:
            raise OSError(f"{name} is damaged: {problem}") from None

    def _open(self, name: str) -> StepFile | None:
        data = self.folder.read(name)
        try:
            return None if data is None else StepFile(data)
        except DamagedStepError as problem:
            raise OSError(f"{name} is damaged: {problem}") from None


def _appends(content: Any) -> dict[str, RecordedStep]:
    """Return the step of each append, by the hash of the append's id. Raises the errors that decoding()
    handles."""
    appends = {
        key: RecordedStep(checked_step(step), checked_step(rows), digest)
        for key, (step, rows, digest) in content.items()
    }
    if not all(isinstance(append.digest, str) for append in appends.values()):
        raise ValueError("a digest is not text")
    return appends
