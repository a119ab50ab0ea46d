"""One-off tasks, as connectors see them: which are open, and why a task can't run.

Each kind of task has its check here, which needs no Spark. mzplan.spark.tasks runs the tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mzplan.connectors.api.connector import SourceConnector, no_times
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.api.recomputes import require_recomputable
from mzplan.model.address import Address
from mzplan.model.codec import decode
from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.model.tasks import CONDITION, ERASURE, Task
from mzplan.model.times import instant
from mzplan.schema.source_columns import included_columns, keys_of
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.erasures import EraseConditions


def tasks_to_do(query: ResolvedQuery, checkpoint: Checkpoint) -> list[Task]:
    """Return the open tasks, in the order in which they were requested. Raises OSError."""
    tasks = query.description.tasks
    done = [record.task for record in checkpoint.tasks.all() if record.done] if tasks else []
    return sorted((task for task in tasks if task not in done), key=lambda task: task.serial)


def check_tasks(
    query: ResolvedQuery, checkpoint: Checkpoint, source: SourceConnector | None = None
) -> tuple[Diagnostic, ...]:
    """Return why a query can't run its tasks now.

    Changes nothing. Doesn't raise if a server or the storage fails. `source` is the connector of a source.
    """
    diagnostics: list[Diagnostic] = []
    try:
        for task in tasks_to_do(query, checkpoint):
            try:
                _CHECKS[task.kind](query, checkpoint, task, source)
            except MzplanError as problem:
                diagnostics += [
                    diagnostic for diagnostic in problem.diagnostics if diagnostic not in diagnostics
                ]
    except OSError:  # the start of the query reports the error of the storage
        return ()
    return tuple(diagnostics)


def require_begun(query: ResolvedQuery, checkpoint: Checkpoint, task: Task) -> None:
    """Raise MzplanError MZ278 if the checkpoint has no step yet, because a task's step follows another."""
    if checkpoint.log.committed() >= 0:
        return
    raise error("MZ278.read-nothing", address=query.address, command=task.command)


def range_of_backfill(
    connector: SourceConnector, query: ResolvedQuery, task: Task, position: str | None
) -> tuple[Any, Any]:
    """Return the range of a backfill as two entries of Spark's offset log.

    The range ends before `position`, the checkpoint's position. Raises MzplanError: MZ273 for a type that
    can't read by time, MZ277 for a range that the upstream no longer holds, MZ278 for a range that the query
    hasn't read yet.
    """
    start, end = (instant(str(task.arguments.get(name))) for name in ("from", "to"))
    if start is None or end is None:
        raise no_times(query)
    return connector.between_times(query, start, end, position)


REPLAY_WRITER = "mzplan replay "
"""How the name begins under which a replay writes into a Delta table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedSteps:
    """The arguments of a replay.

    - `first`, `last`: the sink's first and last step to replay. If `last` is None, the replay ends with the
      newest step.
    - `missing`: replay only the rows that the target is missing.
    """

    first: int = 0
    last: int | None = None
    missing: bool = False

    @classmethod
    def of(cls, task: Task) -> ReplayedSteps:
        """Return the steps that a task replays. Raises ValueError if its arguments are malformed."""
        return decode(cls, task.arguments, task.title)

    @property
    def is_whole(self) -> bool:
        """Whether these are all steps that the sink has written."""
        return self.first == 0 and self.last is None

    def __str__(self) -> str:
        steps = "all steps" if self.is_whole else f"the steps from {self.first} on"
        if self.last is not None:
            steps = f"step {self.first}" if self.first == self.last else f"steps {self.first} to {self.last}"
        return f"{steps}, only missing rows" if self.missing else steps


def _check_backfill(
    query: ResolvedQuery, checkpoint: Checkpoint, task: Task, source: SourceConnector | None
) -> None:
    require_begun(query, checkpoint, task)
    records = checkpoint.tasks.all()
    committed = checkpoint.log.committed()
    has_begun = any(r.task == task and r.step is not None and r.step > committed for r in records)
    if source is not None and not has_begun:  # otherwise the range is recorded, and rows may be written
        range_of_backfill(source, query, task, checkpoint.position())


def _check_letters(
    query: ResolvedQuery, checkpoint: Checkpoint, task: Task, _: SourceConnector | None
) -> None:
    require_begun(query, checkpoint, task)
    ensure_letters(query.address, query.description.type, query.body)


def _check_erasure(
    query: ResolvedQuery, checkpoint: Checkpoint, task: Task, _: SourceConnector | None
) -> None:
    """Raise MzplanError MZ402 for an erasure whose condition is gone."""
    require_begun(query, checkpoint, task)
    is_begun = any(record.task == task for record in checkpoint.tasks.all())
    name = str(task.arguments.get(CONDITION))
    if not is_begun and EraseConditions(checkpoint.folder).read(name) is None:
        raise error("MZ402.condition-gone", address=query.address)


def _check_replay(
    query: ResolvedQuery, checkpoint: Checkpoint, task: Task, _: SourceConnector | None
) -> None:
    """Raise MzplanError MZ273 for a replay of steps that don't exist yet."""
    steps, committed = ReplayedSteps.of(task), checkpoint.log.committed()
    newest = max(steps.first, steps.last or 0)
    if newest <= committed:
        return
    last_step = f"Its last step is {committed}." if committed >= 0 else "It has written no step yet."
    raise error("MZ273.steps-cannot-replayed", address=query.address, newest=newest, last_step=last_step)


def _check_recompute(
    query: ResolvedQuery, checkpoint: Checkpoint, task: Task, _: SourceConnector | None
) -> None:
    require_begun(query, checkpoint, task)
    require_recomputable(query, checkpoint)


_CHECKS: Mapping[str, Callable[[ResolvedQuery, Checkpoint, Task, SourceConnector | None], None]] = {
    "backfill": _check_backfill,
    "dead-letters": _check_letters,
    "recompute": _check_recompute,
    ERASURE: _check_erasure,
    "replay": _check_replay,
}


def ensure_letters(address: Address, type_: str, body: Mapping[str, Any]) -> None:
    """Raise MzplanError MZ273 if a source's dead letters can't be replayed."""
    place = body.get("dead_letter") or {}
    again = f"let it read everything again: mzplan apply --replace {address} --allow-replace"
    if body.get("on_error") != "dead-letter" or not place:
        raise letters_refused(
            address,
            "It keeps no dead letters: it doesn't set `on_error: dead-letter`.",
            "if it kept dead letters earlier, set on_error and dead_letter as before.",
        )
    if "path" not in place:
        raise letters_refused(
            address,
            f"It sends them to the topic {place['topic']}, and a topic keeps its records: replayed "
            "letters would look like unread ones.",
            "declare a source of that topic, with columns that fit its records; and keep future letters in "
            "a table: dead_letter: {path: …}.",
        )
    if keys_of(type_, body):
        raise letters_refused(
            address,
            "Its collection holds the latest row of each key: an older record would replace a "
            "newer one, or bring back a deleted row.",
            again,
        )
    if "headers" in included_columns(type_, body):
        raise letters_refused(
            address,
            "It includes the headers of its records, and a dead letter has none: the column would be empty.",
            f"{again}; or read all records of that time again, including those that are already rows: "
            f"mzplan backfill {address} --from T --to T",
        )


def letters_refused(address: Address, why: str, hint: str) -> MzplanError:
    """Return MZ273 for dead letters that can't be replayed."""
    return error("MZ273.dead-letters", address=address, why=why, how=hint)
