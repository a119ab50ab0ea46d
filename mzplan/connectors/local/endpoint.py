"""The local source's endpoint: each append is one durable step, an Arrow file beside the checkpoint.

    <storage>/00000000000000000007-<hash of the id>.arrow    step 7: its rows; id and hash as metadata
    <storage>/00000000000000000008-<hash of the id>+0.arrow  step 8, of an append that names its steps: each
    <storage>/00000000000000000009-<hash of the id>+1.arrow  is a micro-batch of its own; step 9 of the same
    <storage>/expired.json                                   the first step that is not expired
    <storage>/expired-ids.json                               the ids of expired appends, to recognise repeated
                                                             ones; only an append looks at them

A step is there when its file and those of all steps before it are. Each file is written under another name,
fsynced, renamed; an append of several steps writes the first one last, so it is there whole or not at all.
Appends of several processes take turns by a file lock; in an object store, which has none, the caller keeps
others out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from mzplan.connectors.local.step_files import (
    DamagedStepError,
    StepFile,
    differing,
    encode_step,
)
from mzplan.endpoints.arrow import arrow_schema, columns_of_config
from mzplan.endpoints.interface import InputConsumer, Step, StepError, checked_step
from mzplan.warehouse.content_hash import content_hash
from mzplan.warehouse.folder import decoding, open_folder

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Table

RESERVED = "mzplan:"
"""Ids that begin so are those of steps that mzplan makes itself."""
_DIGITS = 20
_EXPIRED = "expired.json"
_IDS = "expired-ids.json"
KEPT_IDS = 100_000
"""Number of expired appends, the newest, whose ids are kept."""
# Expired steps are removed when there are so many of them, or so many bytes.
_DISCARD = 64
# What one micro-batch reads of small steps, in bytes of their files; a larger step is one of its own.
_JOINED_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The result of an append. `repeated`: an append with its id was there, from `step` on, and nothing was
    written. `digests`: what was recorded of that one's rows, and the digest of these, if they are other
    rows; of the step `other`."""

    step: Step
    rows: int
    repeated: bool = False
    digests: tuple[str, str] | None = None
    other: Step | None = None

    @property
    def differs(self) -> bool:
        return self.digests is not None


class LostStepsError(OSError):
    """Steps are not there that were, and others have gone on from them: nothing can be appended, for it would
    take the number of a lost one, and nobody would read it. The message says which."""


class StaleStepError(Exception):
    """The next step is not the expected one; nothing was written."""

    def __init__(self, expected: Step, next_step: Step):
        super().__init__(f"the next step is {next_step}, not {expected}")
        self.next_step = next_step


@dataclass(frozen=True)
class _FolderView:
    """The content of the folder: the steps that are not expired, the file of each, expired ids (read when
    first asked for), and the files after a missing step, which are of a killed or running append."""

    start: Step
    stop: Step
    files: Mapping[Step, str]
    ids: Callable[[], Mapping[str, tuple[Step, int, str]]]
    left: Mapping[Step, str] = field(default_factory=dict)

    @cached_property
    def expired(self) -> Mapping[str, tuple[Step, int, str]]:
        return self.ids()

    def are_alone(self, steps: range) -> bool:
        """Whether each of these steps is a micro-batch of its own."""
        return all(_is_alone(self.files.get(step, "")) for step in steps)


class LocalSteps:
    """The steps in one folder. Raises OSError for a failure of the storage."""

    def __init__(self, storage: str):
        self.place = storage
        self.folder = open_folder(storage)
        self._read_from: _FolderView | None = None

    def steps(self) -> range:
        view = self._look()
        return range(view.start, view.stop)

    def append(self, rows: Table, id_: str, expect: Step | None = None) -> Appended:
        """As Turn.append of one step, in a turn of its own."""
        with self.turn() as turn:
            appended = turn.append([rows], id_, expect)
            turn.write()
            return appended

    @contextlib.contextmanager
    def turn(self, passed: Step = 0) -> Iterator[Turn]:
        """While no other append can write. `passed`: the step after those that were read, as far as others
        know. Raises LostStepsError."""
        with self.folder.lock():
            view = self._look()
            if view.stop < passed:
                raise LostStepsError(
                    f"its steps end before {view.stop}, and those before {passed} have been read: it was "
                    "restored as it was earlier, or part of it removed"
                )
            self._tidy(view)
            yield Turn(self, view)

    def _tidy(self, view: _FolderView) -> None:
        """Remove the files of a killed append. Raises LostStepsError where steps were lost: the steps after
        them may have been read, so their numbers must not be used again."""
        lost = [step for step, name in view.left.items() if step - _index_of(name) != view.stop]
        if lost:
            raise LostStepsError(
                f"step {view.stop} is missing, and step {min(lost)} is there: part of the folder was "
                "removed, or only part of it restored"
            )
        for step in sorted(view.left, reverse=True):
            self.folder.delete(view.left[step])

    def _read(self, step: Step) -> StepFile:
        """Raises StepError for one that is not there, and OSError."""
        # A step's file never changes: the folder is looked at again only for one that was not there.
        view = self._read_from if self._read_from is not None else self._look()
        reader = self._opened(view, step)
        if reader is None:
            view = self._look()
            reader = self._opened(view, step)
        self._read_from = view
        if reader is None:
            raise StepError(
                f"there is no step {step}: steps {view.start} to {view.stop} (excluded) are there"
            )
        return reader

    def _opened(self, view: _FolderView, step: Step) -> StepFile | None:
        return self._open(view.files[step]) if step in view.files and step >= view.start else None

    def joined(self, steps: range) -> range:
        """The first of these steps, all of which are there: as many as one micro-batch is to read."""
        files = self._look().files
        names = [files.get(step, "") for step in steps]
        alone = next((at for at, name in enumerate(names) if _is_alone(name)), len(names))
        number = max(1, alone)
        while number > 1 and self.folder.size(names[:number]) > _JOINED_BYTES:
            number //= 2
        return steps[:number]

    def batches(self, step: Step) -> list[RecordBatch]:
        """A step's rows, once they are those that were appended. Raises StepError when it is not there, and
        OSError, before anybody has seen a row, when its file is damaged."""
        try:
            return self._read(step).rows()
        except DamagedStepError as problem:
            raise OSError(f"the file of step {step} in {self.place} is damaged: {problem}") from None

    def rows(self, steps: range) -> int:
        """The rows of these steps. Raises StepError for one that is not there."""
        view = self._look()
        missing = next((step for step in steps if step not in view.files), None)
        if missing is not None:
            raise StepError(f"there is no step {missing}")
        return sum(self._summary(view.files[step])[0] for step in steps)

    def appended(self) -> int:
        """The rows of all appends, whether they were read or not; of expired ones as far as they are
        remembered."""
        view = self._look()
        expired = [rows for step, rows, _ in view.expired.values() if step < view.start]
        return sum(expired) + self.rows(range(view.start, view.stop))

    def expire(self, step: Step) -> None:
        """Discard steps before this one when they have become many, but always keep the newest."""
        with self.folder.lock():
            view = self._look()
            if step > view.stop:
                raise StepError(f"can't expire steps before {step}: the next one is {view.stop}")
            until = min(step, view.stop - 1)
            old = [old_step for old_step in sorted(view.files) if old_step < until]
            if len(old) < _DISCARD and not self._is_much(view, old):
                return
            ids = dict(view.expired)
            for old_step in old:
                if old_step >= view.start:
                    ids[_key_of(view.files[old_step])] = (old_step, *self._summary(view.files[old_step]))
            kept = dict(sorted(ids.items(), key=lambda item: item[1][0])[-KEPT_IDS:])
            # First: an append that no longer finds a step's file finds its id here.
            self.folder.write(_IDS, json.dumps(kept).encode())
            self.folder.write(_EXPIRED, json.dumps({"start": until}).encode())
            for old_step in old:
                self.folder.delete(view.files[old_step])

    def _is_much(self, view: _FolderView, old: list[Step]) -> bool:
        return self.folder.size([view.files[step] for step in old]) >= 64 << 20

    def _look(self) -> _FolderView:
        # The files first: when what is expired is read later, none that was discarded is thought missing.
        files = {step: name for name in self.folder.names() if (step := _step_of(name)) is not None}
        expired = self._object(_EXPIRED)
        with decoding(f"{self.place}/{_EXPIRED}"):
            start = stop = checked_step(expired.get("start", 0))
        while stop in files:
            stop += 1
        left = {step: files.pop(step) for step in sorted(files) if step >= stop}
        return _FolderView(start, stop, files, self._ids, left)

    def _ids(self) -> dict[str, tuple[Step, int, str]]:
        ids = self._object(_IDS)
        with decoding(f"{self.place}/{_IDS}"):
            return _appends(ids)

    def _object(self, name: str) -> dict[str, Any]:
        data = self.folder.read(name)
        with decoding(f"{self.place}/{name}"):
            content = json.loads(data) if data is not None else {}
            if not isinstance(content, dict):
                raise ValueError("it is no object")
            return content

    def find(self, view: _FolderView, key: str) -> tuple[Step, int, str] | None:
        """Step, rows and digest of the append whose id has this hash; None where there is none."""
        if key in view.expired:
            return view.expired[key]
        for step, name in view.files.items():
            if _key_of(name) == key:
                return (step, *self._summary(name))
        return None

    def recorded(self, view: _FolderView, step: Step) -> tuple[Step, int, str] | None:
        """Step, rows and digest of a step; None if there is no such step, or it is so old that it is
        forgotten."""
        if step in view.files:
            return (step, *self._summary(view.files[step]))
        return next((append for append in view.expired.values() if append[0] == step), None)

    def _summary(self, name: str) -> tuple[int, str]:
        """The number of rows, and their digest."""
        file = self._open(name)
        if file is None:
            raise OSError(f"{name} is not there any more")
        try:
            return file.summary()
        except DamagedStepError as problem:
            raise OSError(f"{name} is damaged: {problem}") from None

    def _open(self, name: str) -> StepFile | None:
        data = self.folder.read(name)
        try:
            return None if data is None else StepFile(data)
        except DamagedStepError as problem:
            raise OSError(f"{name} is damaged: {problem}") from None


class Turn:
    """The turn of one append, while it has the lock. `view`: the folder at its beginning."""

    def __init__(self, steps: LocalSteps, view: _FolderView):
        self._steps = steps
        self.view = view
        self._planned: dict[str, tuple[str, Table]] = {}  # by the name of the file

    @property
    def stop(self) -> Step:
        """The step after those that are there, and those that `write` makes."""
        return self.view.stop + len(self._planned)

    def append(
        self, steps: Sequence[Table], id_: str, expect: Step | None = None, *, apart: bool = False
    ) -> Appended:
        """Plan rows as the next steps, unless an append of this id has made them. `apart`: each is to be a
        micro-batch of its own. Raises StaleStepError."""
        known = self._steps.find(self.view, _hash(id_))
        if known is not None:
            differences = ((step, self._differing(step, rows)) for step, rows in enumerate(steps, known[0]))
            other, digests = next(
                (difference for difference in differences if difference[1] is not None), (None, None)
            )
            return Appended(step=known[0], rows=known[1], repeated=True, digests=digests, other=other)
        first = self.stop
        if expect is not None and expect != first:
            raise StaleStepError(expect, first)
        for index, rows in enumerate(steps):
            own = id_ if index == 0 else f"{id_}+{index}"
            name = _name(first + index, _hash(own), *([index] if apart else []))
            self._planned[name] = (own, rows)
        return Appended(step=first, rows=sum(rows.num_rows for rows in steps))

    def plans(self, id_: str) -> bool:
        """Whether an append of this id is planned."""
        return any(own == id_ for own, _ in self._planned.values())

    def known(self, id_: str) -> Step | None:
        """The first step of the append of this id; None where none has been made."""
        known = self._steps.find(self.view, _hash(id_))
        return known[0] if known is not None else None

    def _differing(self, step: Step, rows: Table) -> tuple[str, str] | None:
        """Of a step that was appended: what was recorded of its rows, and the digest of these, if they are
        other rows."""
        recorded = self._steps.recorded(self.view, step)
        return differing(*recorded[1:], content_hash([rows])) if recorded is not None else None

    def write(self) -> None:
        """Write what is planned; all or none. Once."""
        for name, (id_, rows) in reversed(self._planned.items()):
            self._write(name, id_, rows)

    def _write(self, name: str, id_: str, rows: Table) -> None:
        self._steps.folder.write(name, encode_step(rows, id_))


class LocalEndpoint:
    """A DurableInputEndpoint over the appended steps. The step after them is the next append's, or empty if
    none is made before it is committed."""

    def __init__(self, storage: str, config: Mapping[str, Any]):
        self._steps = LocalSteps(storage)
        self._config = config
        self._pending: tuple[Step, InputConsumer] | None = None

    def steps(self) -> range:
        return self._steps.steps()

    def read(self, step: Step, consumer: InputConsumer) -> None:
        steps = self.steps()
        if checked_step(step) == steps.stop:
            self._pending = (step, consumer)
        elif step in steps:
            self._feed(step, consumer)
        else:
            raise StepError(
                f"step {step} can't be read: steps {steps.start} to {steps.stop} (excluded) are there"
            )

    def commit(self, step: Step) -> None:
        pending, self._pending = self._pending, None
        if pending is not None and pending[0] == step:
            if step not in self.steps():
                empty = arrow_schema(columns_of_config(self._config)).empty_table()
                # An append at this moment becomes the step instead.
                with contextlib.suppress(StaleStepError):
                    self._steps.append(empty, f"{RESERVED}empty step {step}", expect=step)
            self._feed(step, pending[1])
        elif step not in self.steps():
            raise StepError(f"step {step} can't be committed: it is not the one that was read last")

    def expire(self, step: Step) -> None:
        self._steps.expire(checked_step(step))

    def rows(self, steps: range) -> int:
        return self._steps.rows(steps)

    def joined(self, steps: range) -> range:
        return self._steps.joined(steps)

    def _feed(self, step: Step, consumer: InputConsumer) -> None:
        for batch in self._steps.batches(step):
            consumer.push(batch)
        consumer.eoi()
        consumer.committed()


class LocalFactory:
    """Makes LocalEndpoints from `config["storage"]` and `config["columns"]`."""

    def name(self) -> str:
        return "local"

    def new_endpoint(self, name: str, config: Mapping[str, Any]) -> LocalEndpoint:
        return LocalEndpoint(config["storage"], config)


def _hash(id_: str) -> str:
    return hashlib.sha256(id_.encode()).hexdigest()[:32]


def _name(step: Step, key: str, index: int | None = None) -> str:
    """The name of a step's file. `index`: of an append that names its steps, that of this one."""
    return f"{step:0{_DIGITS}}-{key}{f'+{index}' if index is not None else ''}.arrow"


def _step_of(name: str) -> Step | None:
    digits, _, rest = name.partition("-")
    is_step = len(digits) == _DIGITS and digits.isdecimal() and rest.endswith(".arrow")
    return int(digits) if is_step else None


def _key_of(name: str) -> str:
    return name.partition("-")[2].removesuffix(".arrow").partition("+")[0]


def _is_alone(name: str) -> bool:
    return "+" in name


def _index_of(name: str) -> int:
    digits = name.removesuffix(".arrow").partition("+")[2]
    return int(digits) if digits.isdecimal() else 0


def _appends(content: Any) -> dict[str, tuple[Step, int, str]]:
    """Step, rows and digest of each append, by the hash of its id. Raises what decoding() knows."""
    appends = {
        key: (checked_step(step), checked_step(rows), digest) for key, (step, rows, digest) in content.items()
    }
    if not all(isinstance(digest, str) for _, _, digest in appends.values()):
        raise ValueError("a digest is no text")
    return appends
