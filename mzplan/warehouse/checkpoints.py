"""Where a query keeps what it must not lose, below the warehouse; and the recorded identity of its upstream.

    <warehouse>/collections/<id>/g<n>              the Delta table of a source
    <warehouse>/checkpoints/<id>/g<n>/spark        Spark's checkpoint
    <warehouse>/checkpoints/<id>/g<n>/upstream.json
    <warehouse>/checkpoints/<id>/g<n>/collection.json
    <warehouse>/checkpoints/<id>/g<n>/steps        what a durable endpoint remembers of its steps
    <warehouse>/checkpoints/<id>/g<n>/tasks        the one-off tasks that have begun, and which are done
    <warehouse>/checkpoints/<id>/g<n>/delivery.json
    <warehouse>/checkpoints/<id>/g<n>/begun.json
    <warehouse>/checkpoints/<id>/g<n>/versions.json
    <warehouse>/checkpoints/<id>/g<n>/migrated.json
    <warehouse>/checkpoints/<id>/g<n>/read.json
    <warehouse>/checkpoints/<id>/g<n>/snapshots    see snapshot_versions.py

`collection.json` has the id of the source's table: a query that runs makes a table anew that somebody has
removed under it, and nobody would miss the rows. `upstream.json` is written before the very first start,
for Spark's offsets don't say what they count. It is read without Spark, so that a check works before a
session is open. `delivery.json` says how a sink has written last, and where to: what its target remembers
of steps means something only with that. `begun.json` says under which descriptions its steps began:
Spark runs a step again that a crash has interrupted, as the query is then. Of a step that began under another
description, part may be in the target already: so it is finished under that one, and the next steps begin
under the new one. Only what decides which rows a step makes is kept (`x-rows` in the schema of the sink).
A file of `tasks` (see docs/internals/protocol.md) that is a step of a source is written before the rows are,
so that whoever goes on after a kill writes the same ones. It is kept, because Spark's log says of such a step
only that it has read nothing. The file of a sink's task is written once its rows are in the target: done a
second time, it changes nothing there.
`versions.json`: which Spark and Delta have written here last, recorded before they do. `migrated.json`: of a
source that begins with the rows of its earlier generation, which rows these are, and where it goes on; it is
written before they are. `read.json`: of a source that reads a Delta table, the last version that it has read
or is about to read, and the digest of that commit: another copy of the table may have the same version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mzplan.model.codec import decode, encode
from mzplan.model.observed import Versions
from mzplan.model.stored import SPARSE, stored
from mzplan.model.tasks import Task, TaskOutcome
from mzplan.warehouse.checkpoint_log import CheckpointLog
from mzplan.warehouse.folder import decoding, open_folder, read_text, write_text
from mzplan.warehouse.paths import absolute
from mzplan.warehouse.step_record import Count

FORMAT_VERSION = 1
OUTCOMES = 8  # of done tasks, in a status
LAYOUT = 1  # of collections and checkpoints, as docs/internals/protocol.md describes it
BEGUN_KEPT = 100  # descriptions


def collection_path(warehouse: str, id_: str, generation: int) -> str:
    """The path or URI of a source's Delta table."""
    return absolute(warehouse, f"collections/{id_}/g{generation}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MigratedRows:
    """With which rows a generation of a source begins: those of an earlier `generation`, whose body was
    `body`, as of a `version` of its table, which has the id `table` (None: it has none, and no rows).
    `position`: the entry of Spark's offset log with which this one goes on; None where nothing was read.
    `origin`: the generation that has begun to count such positions, and has made on its upstream what they
    are read by; the carry-overs since then have gone on with both. None where nothing was read. `written`:
    the version of this one's table that has these rows, once it is `done`."""

    generation: Count
    body: Mapping[str, Any]
    table: str | None = None
    version: int = 0
    position: str | None = None
    origin: int | None = None
    written: int = 0
    done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """From `step` on, steps began under the description of this digest. `rows`: its properties that decide
    which rows a step makes, with references to secrets, never their values."""

    step: Count
    digest: str
    rows: Mapping[str, Any]

    def body(self, now: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        """The body of the sink as it is now, but for what decides its rows (properties of these names)."""
        return {**{name: value for name, value in now.items() if name not in names}, **self.rows}


@dataclass(frozen=True, slots=True)
class History:
    """Under which descriptions the steps of a sink began, in order; the oldest may be missing."""

    begun: tuple[Begun, ...] = ()

    def under(self, step: int) -> Begun | None:
        """What a step began under; None where that is not known."""
        return next((begun for begun in reversed(self.begun) if begun.step <= step), None)

    def to_finish(self, step: int | None, rows: Mapping[str, Any]) -> Begun | None:
        """What a step that was interrupted (None: there is none) is finished under, where that is not what
        the sink is now."""
        begun = self.under(step) if step is not None else None
        return begun if begun is not None and begun.rows != rows else None

    def changed_at(self, step: int) -> Begun | None:
        """Of a step at which the sink was changed, what it may have been pushed under as well: the
        description after it, or the first that is known."""
        return next((begun for begun in self.begun if 0 < begun.step in (step, step + 1)), None)

    def going_on(self, now: Begun) -> History:
        """The history once steps begin under another description; equal where they go on under the same.
        What it had of later steps is of a checkpoint that was set back since."""
        before = tuple(begun for begun in self.begun if begun.step < now.step)
        if before and (before[-1].digest, before[-1].rows) == (now.digest, now.rows):
            return History(before)
        return History((*before, now)[-BEGUN_KEPT:])


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """A task that a runner has begun.

    - `step`: the step of the collection that the task writes; None for a task of a sink.
    - `start`, `end`: the entries of Spark's offset log between which it reads its upstream, if it does.
    - `details`: what its kind needs to go on after a kill, as JSON.
    - `outcome`: what has become of it, or will have once it is done.
    - `done`: its rows are written, and the checkpoint is behind its step. A task that was given up stays.
    """

    task: Task
    outcome: TaskOutcome
    step: Count | None = None
    start: Any = field(default=None, metadata=stored("from"))
    end: Any = field(default=None, metadata=stored("to"))
    details: Mapping[str, Any] = field(default_factory=dict, metadata=SPARSE)
    done: bool = False


class TaskRecords:
    """The tasks that runners have begun on one checkpoint: one writer (the leading runner), readers anywhere.
    Raises OSError, also for a file that holds something else."""

    def __init__(self, folder: str):
        self.place = f"{folder}/tasks"
        self._folder = open_folder(self.place)

    def all(self) -> list[TaskRecord]:
        """Return the records in the order of their steps; those of a sink in the order of their serials."""
        records = [self.at(int(name[:20])) for name in sorted(self._folder.names()) if name[:20].isdecimal()]
        return [record for record in records if record is not None]

    def at(self, step: int) -> TaskRecord | None:
        """Return the task that is this step of a collection; None if the step is no task."""
        data = self._folder.read(_file_of(step))
        if data is None:
            return None
        with decoding(f"{self.place}/{_file_of(step)}"):
            return decode(TaskRecord, json.loads(data)["task"])

    def record(self, one: TaskRecord) -> None:
        """Write a record down, durably and whole."""
        data = {"format_version": FORMAT_VERSION, "task": encode(one)}
        number = one.step if one.step is not None else one.task.serial
        self._folder.write(_file_of(number), json.dumps(data, separators=(",", ":")).encode())

    def done(self) -> tuple[TaskOutcome, ...]:
        """Return the outcomes of the newest tasks that are done, by serial."""
        outcomes = {record.task.serial: record.outcome for record in self.all() if record.done}
        return tuple(outcomes[serial] for serial in sorted(outcomes)[-OUTCOMES:])


def _file_of(step: int) -> str:
    return f"{step:020}.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The checkpoint of one generation of a query."""

    folder: str

    @classmethod
    def of(cls, warehouse: str, id_: str, generation: int) -> Checkpoint:
        return cls(absolute(warehouse, f"checkpoints/{id_}/g{generation}"))

    @property
    def spark(self) -> str:
        """Spark's own checkpoint location."""
        return f"{self.folder}/spark"

    @property
    def log(self) -> CheckpointLog:
        """What Spark has logged there."""
        return CheckpointLog(self.spark)

    @property
    def tasks(self) -> TaskRecords:
        """The tasks that runners have begun."""
        return TaskRecords(self.folder)

    @property
    def steps(self) -> str:
        """Where a durable endpoint keeps what it must remember of its steps; it goes with the generation."""
        return f"{self.folder}/steps"

    def position(self) -> str | None:
        """The source's entry in Spark's offset log after which it resumes; None when no batch is done.

        Raises OSError.
        """
        log = self.log
        return log.entry(log.committed())

    def upstream(self) -> dict[str, Any] | None:
        """The recorded identity of the upstream, None if there is none. Raises OSError, also for a file
        that holds something else."""
        return self._fact("upstream")

    def record_upstream(self, upstream: Mapping[str, Any]) -> None:
        """Write the identity down, durably and whole."""
        self._record("upstream", upstream)

    def departure(self) -> dict[str, Any] | None:
        """The upstream that the checkpoint was last moved away from and its position there, `{upstream,
        position, batch}`; None once a batch of the new one is done. Raises OSError."""
        recorded = self._fact("departure")
        with decoding(f"{self.folder}/departure.json"):
            return recorded if recorded is not None and self.log.committed() <= recorded["batch"] else None

    def record_departure(self, upstream: Mapping[str, Any], position: str) -> None:
        """Write down, durably, what a move is about to leave."""
        fact = {"upstream": dict(upstream), "position": position, "batch": self.log.committed() + 1}
        self._record("departure", fact)

    def forget_departure(self) -> None:
        """It has been gone back to."""
        self._record("departure", {"upstream": {}, "position": "", "batch": -2})

    def was_moved(self) -> bool:
        """Whether part of what it has read was on another upstream than the recorded one. Raises OSError."""
        recorded = self._fact("departure")
        with decoding(f"{self.folder}/departure.json"):
            return recorded is not None and bool(recorded["upstream"])

    def last_read(self) -> tuple[int, str] | None:
        """The last version of an upstream Delta table that was read, and the digest of its commit; None if
        none was recorded. Raises OSError, also for a file that holds something else."""
        recorded = self._fact("read")
        with decoding(f"{self.folder}/read.json"):
            return (int(recorded["version"]), str(recorded["commit"])) if recorded is not None else None

    def record_last_read(self, version: int, commit: str) -> None:
        """Record, durably and whole, which version is read next at the latest."""
        self._record("read", {"version": version, "commit": commit})

    def collection(self) -> str | None:
        """The id of the Delta table that the source writes, None if it was not recorded. Raises OSError."""
        recorded = self._fact("collection")
        with decoding(f"{self.folder}/collection.json"):
            return str(recorded["table"]) if recorded is not None else None

    def record_collection(self, table_id: str) -> None:
        """Write down, durably and whole, which table the source writes: another one is not its own."""
        self._record("collection", {"table": table_id})

    def delivery(self) -> dict[str, Any] | None:
        """How the sink has written last: `{delivery, target}`, where `target` is its target's identity. None
        if nothing was recorded. Raises OSError, also for a file that holds something else."""
        return self._fact("delivery")

    def record_delivery(self, delivery: Mapping[str, Any]) -> None:
        """Write down, durably and whole, how the sink writes from now on."""
        self._record("delivery", delivery)

    def begun(self) -> History:
        """Under which descriptions the steps of a sink began. Raises OSError, also for a file that holds
        something else."""
        recorded = self._fact("begun")
        with decoding(f"{self.folder}/begun.json"):
            return decode(History, recorded) if recorded is not None else History()

    def record_begun(self, history: History) -> None:
        """Write it down, durably and whole, before a step begins under the last of them."""
        self._record("begun", encode(history))

    def migrated_rows(self) -> MigratedRows | None:
        """With which rows a source began; None for one that began without any. Raises OSError, also for a
        file that holds something else."""
        recorded = self._fact("migrated")
        with decoding(f"{self.folder}/migrated.json"):
            return decode(MigratedRows, recorded) if recorded is not None else None

    def record_migrated_rows(self, migrated: MigratedRows) -> None:
        """Write it down, durably and whole: before the rows are written, and when all is done."""
        self._record("migrated", encode(migrated))

    def versions(self) -> Versions | None:
        """Return what wrote here last; None if nothing was recorded. Raises OSError, also for a file that
        holds something else."""
        recorded = self._fact("versions")
        with decoding(f"{self.folder}/versions.json"):
            return decode(Versions, recorded) if recorded is not None else None

    def record_versions(self, versions: Versions) -> None:
        """Write down, durably and whole, what is about to write here."""
        self._record("versions", encode(versions))

    def leaves(self) -> dict[str, Any] | None:
        """The description (as JSON) of a query that has made something on its upstream or in its target, to
        be removed with this generation; None if nothing was recorded, empty once it is done. Raises
        OSError."""
        return self._fact("leaves")

    def record_leaves(self, description: Mapping[str, Any]) -> None:
        """Write down, durably and whole, whose it is."""
        self._record("leaves", description)

    def layout(self) -> int:
        """The version of mzplan's own layout here, 1 where nothing else was recorded. Raises OSError."""
        recorded = self._fact("layout")
        with decoding(f"{self.folder}/layout.json"):
            return int(recorded["version"]) if recorded is not None else 1

    def _fact(self, name: str) -> dict[str, Any] | None:
        text = read_text(f"{self.folder}/{name}.json")
        if text is None:
            return None
        with decoding(f"{self.folder}/{name}.json"):
            return dict(json.loads(text)[name])

    def _record(self, name: str, fact: Mapping[str, Any]) -> None:
        data = {"format_version": FORMAT_VERSION, name: dict(fact)}
        write_text(f"{self.folder}/{name}.json", json.dumps(data, indent=2, sort_keys=True) + "\n")
