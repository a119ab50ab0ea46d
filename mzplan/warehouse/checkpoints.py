"""The files of a query's generation in the warehouse.

    <warehouse>/collections/<id>/g<n>              the Delta table of a source
    <warehouse>/checkpoints/<id>/g<n>/spark        Spark's checkpoint
    <warehouse>/checkpoints/<id>/g<n>/upstream.json
    <warehouse>/checkpoints/<id>/g<n>/collection.json
    <warehouse>/checkpoints/<id>/g<n>/adopted.json
    <warehouse>/checkpoints/<id>/g<n>/first_copy.json
    <warehouse>/checkpoints/<id>/g<n>/steps        a durable endpoint's own records of its steps
    <warehouse>/checkpoints/<id>/g<n>/tasks        the one-off tasks that have begun or are done
    <warehouse>/checkpoints/<id>/g<n>/erasures     see erasures.py
    <warehouse>/checkpoints/<id>/g<n>/delivery.json
    <warehouse>/checkpoints/<id>/g<n>/begun.json
    <warehouse>/checkpoints/<id>/g<n>/started.json
    <warehouse>/checkpoints/<id>/g<n>/versions.json
    <warehouse>/checkpoints/<id>/g<n>/migrated.json
    <warehouse>/checkpoints/<id>/g<n>/read.json
    <warehouse>/checkpoints/<id>/g<n>/snapshots    see snapshot_versions.py
    <warehouse>/checkpoints/<id>/g<n>/violations   see violations.py

- `collection.json`: the id of the source's table. If somebody removes the table, the running query creates it
  again. Without the id, nobody would notice the lost rows.
- `adopted.json`: the version of the hand-written query's table that mzplan copied. The versions after it are
  mzplan's own: the original may have other versions with these numbers.
- `first_copy.json`: where the upstream ended when the source first started. A reader that needs the source's
  first copy waits until the source has read up to there. The connector defines the value.
- `upstream.json`: the identity of the upstream, because Spark's offsets don't say what they belong to. It is
  written before the first start, and can be read without Spark.
- `delivery.json`: how and where a sink last wrote. The target's record of steps is valid only for this
  delivery.
- `begun.json`: the descriptions under which the sink's steps began. Spark repeats an interrupted step with
  the current query, but the target may already hold part of the step. So mzplan finishes a step under the
  description that began it, and only then uses the new one. The file has only the properties that decide a
  step's rows (`x-rows` in the sink's schema).
- `started.json`: the description with which a sink last started. Its next generation finds there which rows
  this one has written, and where.
- `tasks` (see docs/internals/protocol.md): a source's task is recorded before its rows are written, so that a
  runner that resumes after a kill writes the same rows. The file is kept, because in Spark's log such a step
  has read nothing. A sink's task is recorded after its rows are in the target. Repeating it changes nothing
  there.
- `versions.json`: the Spark and Delta versions that last wrote here, recorded before they write.
- `function.json`: the package and version of the query's Python function that the last apply accepted.
- `migrated.json`: the rows of an earlier generation with which a source begins, and the position from which
  it continues. It is written before the rows.
- `read.json`: the last version that a Delta source has read or is about to read, and the digest of its
  commit: another copy of the table may have another commit with this version.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from mzplan.model.codec import decode, encode
from mzplan.model.observed import Versions
from mzplan.model.stored import SPARSE, stored
from mzplan.model.tasks import Task, TaskOutcome
from mzplan.schema.description import Description
from mzplan.schema.kinds import resource_kind
from mzplan.warehouse.checkpoint_log import CheckpointLog
from mzplan.warehouse.folder import decoding, open_folder, read_text, write_text
from mzplan.warehouse.paths import absolute
from mzplan.warehouse.step_record import Count

T = TypeVar("T")

FORMAT_VERSION = 1
OUTCOMES = 8  # of done tasks in a Status
LAYOUT = 1  # version of the layout of collections and checkpoints, see docs/internals/protocol.md
MAX_DESCRIPTIONS = 100


def collection_path(warehouse: str, id_: str, generation: int) -> str:
    """Return the path or URI of a source's Delta table."""
    return absolute(warehouse, f"collections/{id_}/g{generation}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MigratedRows:
    """The rows with which a generation of a source begins: the rows of an earlier generation.

    - `generation`, `body`: the earlier generation and its body.
    - `table`, `version`: the id and version of its table that has the rows. Without rows, `table` is None.
    - `position`: the entry of Spark's offset log where the new generation continues; None if nothing was
      read.
    - `origin`: the generation that first used these positions and created its objects on the upstream. Later
      generations use the same objects. None if nothing was read.
    - `written`: once `done`, the version of the new generation's table that has the rows.
    """

    generation: Count
    body: Mapping[str, Any]
    table: str | None = None
    version: int = 0
    position: str | None = None
    origin: int | None = None
    written: int = 0
    done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDescription:
    """The first step that began under a description, and the description's digest.

    `rows`: the properties that decide a step's rows, with references to secrets, never their values."""

    step: Count
    digest: str
    rows: Mapping[str, Any]

    def earlier(self, now: Description) -> Description:
        """Return the query's description `now`, but with the earlier values of its row properties."""
        names = resource_kind(now.address.kind, now.type).row_properties
        other = {name: value for name, value in now.body.items() if name not in names}
        return replace(now, body={**other, **self.rows})


@dataclass(frozen=True, slots=True)
class DescriptionHistory:
    """The descriptions under which a sink's steps began, in order. The oldest may be missing."""

    entries: tuple[StepDescription, ...] = field(default=(), metadata=stored("begun"))

    def description_of(self, step: int) -> StepDescription | None:
        """Return the description under which a step began; None if unknown."""
        return next((entry for entry in reversed(self.entries) if entry.step <= step), None)

    def to_finish(self, step: int | None, rows: Mapping[str, Any]) -> StepDescription | None:
        """Return the earlier description that must finish an interrupted step.

        Returns None if no step was interrupted, or if the current properties (`rows`) are the same."""
        entry = self.description_of(step) if step is not None else None
        return entry if entry is not None and entry.rows != rows else None

    def change_at(self, step: int) -> StepDescription | None:
        """Return the description that began with this step or with the next one, if any.

        The step's rows may also have been written under that description."""
        return next((entry for entry in self.entries if 0 < entry.step in (step, step + 1)), None)

    def extended_by(self, now: StepDescription) -> DescriptionHistory:
        """Return the history with `now` added, unless the description is unchanged.

        Drops the entries of later steps: they are older than a reset of the checkpoint."""
        earlier = tuple(entry for entry in self.entries if entry.step < now.step)
        if earlier and (earlier[-1].digest, earlier[-1].rows) == (now.digest, now.rows):
            return DescriptionHistory(earlier)
        return DescriptionHistory((*earlier, now)[-MAX_DESCRIPTIONS:])


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedSink:
    """The description with which a sink last started, with references to secrets, never their values.

    `compares`: whether its first step has read all of its collection, to compare it with the former
    generation's rows."""

    description: Description
    compares: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionRelease:
    """The package and version of a query's function, such as `shop_transforms 1.4.2`.

    `digest`: of the description under which it was accepted."""

    release: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """A task that a runner has begun.

    - `step`: the step of the collection that the task writes; None for a task of a sink.
    - `start`, `end`: the entries of Spark's offset log between which the task reads the upstream; None if it
      doesn't read the upstream.
    - `details`: the data that this kind of task needs to resume after a kill, as JSON.
    - `outcome`: the task's result, or the result that it will have once it is done.
    - `done`: whether the task's rows are written and the checkpoint is past the task's step. Abandoned tasks
      stay recorded.
    """

    task: Task
    outcome: TaskOutcome
    step: Count | None = None
    start: Any = field(default=None, metadata=stored("from"))
    end: Any = field(default=None, metadata=stored("to"))
    details: Mapping[str, Any] = field(default_factory=dict, metadata=SPARSE)
    done: bool = False


class TaskRecords:
    """The tasks that runners have begun on one checkpoint. Only the leading runner writes.

    Raises OSError, also for a file with invalid content."""

    def __init__(self, folder: str):
        self.place = f"{folder}/tasks"
        self._folder = open_folder(self.place)

    def all(self) -> list[TaskRecord]:
        """Return the records ordered by step, or for a sink by serial."""
        records = [self.at(int(name[:20])) for name in sorted(self._folder.names()) if name[:20].isdecimal()]
        return [record for record in records if record is not None]

    def at(self, step: int) -> TaskRecord | None:
        """Return the task that wrote this step of a collection; None if no task did."""
        data = self._folder.read(_file_of(step))
        if data is None:
            return None
        with decoding(f"{self.place}/{_file_of(step)}"):
            return decode(TaskRecord, json.loads(data)["task"])

    def record(self, record: TaskRecord) -> None:
        """Write a record durably and atomically."""
        data = {"format_version": FORMAT_VERSION, "task": encode(record)}
        number = record.step if record.step is not None else record.task.serial
        self._folder.write(_file_of(number), json.dumps(data, separators=(",", ":")).encode())

    def done(self) -> tuple[TaskOutcome, ...]:
        """Return the outcomes of the newest done tasks, by serial."""
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
    def warehouse(self) -> str:
        """The warehouse that has the checkpoint."""
        return self.folder.rsplit("/", 3)[0]

    @property
    def spark(self) -> str:
        """Spark's checkpoint location."""
        return f"{self.folder}/spark"

    @property
    def log(self) -> CheckpointLog:
        return CheckpointLog(self.spark)

    @property
    def tasks(self) -> TaskRecords:
        return TaskRecords(self.folder)

    @property
    def steps(self) -> str:
        """The folder for a durable endpoint's own records of its steps, removed with the generation."""
        return f"{self.folder}/steps"

    def position(self) -> str | None:
        """Return the source's entry in Spark's offset log where it resumes; None if no batch is done.

        Raises OSError."""
        log = self.log
        return log.entry(log.committed())

    def upstream(self) -> dict[str, Any] | None:
        """Return the recorded identity of the upstream, or None.

        Raises OSError, also for a file with invalid content."""
        return self._fact("upstream", dict)

    def record_upstream(self, upstream: Mapping[str, Any]) -> None:
        """Record the upstream's identity durably and atomically."""
        self._record("upstream", upstream)

    def first_end(self) -> Any:
        """Return where the upstream ended when the source first started; None if unrecorded.

        Raises OSError, also for a file with invalid content."""
        return self._fact("first_copy", lambda fact: fact["end"])

    def record_first_end(self, end: Any) -> None:
        """Record durably where the upstream ends, before the source starts for the first time."""
        self._record("first_copy", {"end": end})

    def departure(self) -> dict[str, Any] | None:
        """Return the upstream that the checkpoint last left, as `{upstream, position, batch}`.

        `position` is the checkpoint's last position on that upstream. Returns None once a batch of the new
        upstream is done. Raises OSError."""
        return self._fact("departure", lambda fact: fact if self.log.committed() <= fact["batch"] else None)

    def record_departure(self, upstream: Mapping[str, Any], position: str) -> None:
        """Record durably the upstream and the position that the checkpoint is about to leave."""
        fact = {"upstream": dict(upstream), "position": position, "batch": self.log.committed() + 1}
        self._record("departure", fact)

    def forget_departure(self) -> None:
        """Forget the departure, because the checkpoint has moved back."""
        self._record("departure", {"upstream": {}, "position": "", "batch": -2})

    def was_moved(self) -> bool:
        """Whether the checkpoint has read part of its rows from another upstream. Raises OSError."""
        return bool(self._fact("departure", lambda fact: fact["upstream"]))

    def last_read(self) -> tuple[int, str] | None:
        """Return the last version that was read of an upstream Delta table, and its commit's digest, if any.

        Raises OSError, also for a file with invalid content."""
        return self._fact("read", lambda fact: (int(fact["version"]), str(fact["commit"])))

    def record_last_read(self, version: int, commit: str) -> None:
        """Record, durably and atomically, the newest version that may be read next."""
        self._record("read", {"version": version, "commit": commit})

    def collection(self) -> str | None:
        """Return the id of the Delta table that the source writes; None if unrecorded. Raises OSError."""
        return self._fact("collection", lambda fact: str(fact["table"]))

    def record_collection(self, table_id: str) -> None:
        """Record durably which table the source writes, to detect a replaced table."""
        self._record("collection", {"table": table_id})

    def adopted(self) -> int | None:
        """Return the version of a hand-written query's table with which the collection begins; None if mzplan
        made the collection. Raises OSError."""
        return self._fact("adopted", lambda fact: int(fact["version"]))

    def record_adopted(self, version: int) -> None:
        """Record durably the version of the table that was copied."""
        self._record("adopted", {"version": version})

    def delivery(self) -> dict[str, Any] | None:
        """Return how the sink last wrote: `{delivery, target}`, with the target's identity.

        Returns None if nothing was recorded. Raises OSError, also for a file with invalid content."""
        return self._fact("delivery", dict)

    def record_delivery(self, delivery: Mapping[str, Any]) -> None:
        """Record durably how the sink writes from now on."""
        self._record("delivery", delivery)

    def descriptions(self) -> DescriptionHistory:
        """Return the descriptions under which a sink's steps began.

        Raises OSError, also for a file with invalid content."""
        return self._fact("begun", partial(decode, DescriptionHistory)) or DescriptionHistory()

    def record_descriptions(self, history: DescriptionHistory) -> None:
        """Record the history durably, before a step begins under its last description."""
        self._record("begun", encode(history))

    def started(self) -> StartedSink | None:
        """Return the description with which the sink last started; None if unrecorded.

        Raises OSError, also for a file with invalid content."""
        return self._fact("started", partial(decode, StartedSink))

    def record_started(self, started: StartedSink) -> None:
        """Record durably with which description the sink starts, before its first step."""
        self._record("started", encode(started))

    def migrated_rows(self) -> MigratedRows | None:
        """Return the rows with which a source began; None if it began without any.

        Raises OSError, also for a file with invalid content."""
        return self._fact("migrated", partial(decode, MigratedRows))

    def record_migrated_rows(self, migrated: MigratedRows) -> None:
        """Record the migration durably: before its rows are written, and again once it is done."""
        self._record("migrated", encode(migrated))

    def versions(self) -> Versions | None:
        """Return the versions of mzplan, Spark, Delta and Kafka connector that last wrote this checkpoint.

        Returns None if no versions are recorded. Raises OSError if the file can't be read or is invalid."""
        return self._fact("versions", partial(decode, Versions))

    def record_versions(self, versions: Versions) -> None:
        """Record durably the versions that are about to write this checkpoint."""
        self._record("versions", encode(versions))

    def function(self) -> FunctionRelease | None:
        """Return the release of the query's function that the last apply accepted; None if unrecorded.

        Raises OSError, also for a file with invalid content."""
        return self._fact("function", partial(decode, FunctionRelease))

    def record_function(self, release: FunctionRelease) -> None:
        """Record durably the release of the query's function, before it computes rows."""
        self._record("function", encode(release))

    def leaves(self) -> dict[str, Any] | None:
        """Return the description (as JSON) of the query that created objects on its upstream or target.

        These objects must be removed with this generation. Returns None if nothing was recorded, and an empty
        mapping once they are removed. Raises OSError."""
        return self._fact("leaves", dict)

    def record_leaves(self, description: Mapping[str, Any]) -> None:
        """Record durably the description of the query that created objects."""
        self._record("leaves", description)

    def layout(self) -> int:
        """Return the version of the checkpoint's own layout; 1 if none is recorded. Raises OSError."""
        return self._fact("layout", lambda fact: int(fact["version"])) or 1

    def _fact(self, name: str, parse: Callable[[dict[str, Any]], T]) -> T | None:
        """Return the parsed content of a file; None if it is missing. Raises OSError."""
        place = f"{self.folder}/{name}.json"
        text = read_text(place)
        if text is None:
            return None
        with decoding(place):
            return parse(dict(json.loads(text)[name]))

    def _record(self, name: str, fact: Mapping[str, Any]) -> None:
        data = {"format_version": FORMAT_VERSION, name: dict(fact)}
        write_text(f"{self.folder}/{name}.json", json.dumps(data, indent=2, sort_keys=True) + "\n")
