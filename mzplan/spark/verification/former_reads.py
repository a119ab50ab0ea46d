"""Finds the steps in which a sink read each file of its source's collection, or a former generation of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.api.tasks import ReplayedSteps
from mzplan.schema.columns import Column, spark_type
from mzplan.schema.source_columns import columns_of
from mzplan.warehouse.checkpoint_log import table_of
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.rows.replay import files_of
from mzplan.warehouse.step_history import StepHistory
from mzplan.warehouse.step_record import StepRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerReads:
    """The steps of a sink, some of which may have read former generations whose rows were migrated.

    `first_current`: the first step that read the current collection; 0 if every step did.
    `columns`: the collection's columns with their former types; None if the types haven't changed.
    `records`: the steps from `first_current` on. If there is no such step: the last step, changed to end
    after the migrated rows.
    """

    first_current: int
    columns: tuple[Column, ...] | None
    records: tuple[StepRecord, ...]

    def require_known(self, replay: ReplayedSteps) -> None:
        """Raise GoneError for a replay of only some steps before `first_current`: their rows are mixed."""
        last = self.first_current - 1
        if 0 < replay.first <= last or (replay.last is not None and replay.last < last):
            raise GoneError(
                f"The steps up to {last} have read a former generation of the source, and which of its rows "
                f"came with which step is no longer known. Replay all of them, or steps from "
                f"{self.first_current} on."
            )


def former_reads(
    warehouse: str, query: ResolvedQuery, history: StepHistory, records: Sequence[StepRecord]
) -> FormerReads:
    """Return the steps of a sink that have read former generations. Raises GoneError, OSError.

    `records`: the steps that the target holds, in order.
    """
    former = [record for record in records if _is_former(record, history)]
    if not former:
        return FormerReads(first_current=0, columns=None, records=tuple(records))
    first_current = former[-1].step + 1
    current_records = tuple(record for record in records if record.step >= first_current)
    if not current_records:
        end, _ = history.log.offset(former[-1].step)  # rewritten when the sink moved to this collection
        if not history.has_read(end):
            raise GoneError("The sink still has to read the rest of a former generation of its source.")
        current_records = (replace(former[-1], start=end, end=end),)
    tables = {table_of(offset) for record in former for offset in (record.start, record.end)}
    columns = _former_columns(warehouse, query, tables)
    return FormerReads(first_current=first_current, columns=columns, records=current_records)


def _is_former(record: StepRecord, history: StepHistory) -> bool:
    """Return whether a step read a former generation.

    When the sink moved, the entry of the last such step was rewritten to begin where it ends.
    """
    was_rewritten = record.start is not None and record.start == record.end
    return was_rewritten or not (history.has_read(record.start) and history.has_read(record.end))


def _former_columns(warehouse: str, query: ResolvedQuery, tables: set[Any]) -> tuple[Column, ...] | None:
    """Return the query's columns with their types in the former generations with these tables.

    Raises GoneError if the types differ between these generations.
    """
    source = query.description.input
    assert source is not None
    place = source.place
    former_columns: list[tuple[Column, ...]] = []
    tables = tables - {Checkpoint.of(warehouse, *place).collection(), None}
    while tables:
        migrated = Checkpoint.of(warehouse, *place).migrated_rows()
        if migrated is None:
            raise GoneError("The columns of a former generation of its source are no longer known.")
        if migrated.table in tables:
            then = {column.name.lower(): column.type for column in columns_of(source.type, migrated.body)}
            columns = (replace(c, type=then.get(c.name.lower(), c.type)) for c in query.columns)
            former_columns.append(tuple(columns))
        tables.discard(migrated.table)
        place = (source.id, migrated.generation)
    differing = {columns for columns in former_columns if _types(columns) != _types(query.columns)}
    if len(differing) > 1 or (differing and len(former_columns) > 1):
        raise GoneError(
            "The sink has read several former generations of its source with columns of other types, and "
            "which rows came from which generation is no longer known."
        )
    return differing.pop() if differing else None


def _types(columns: Sequence[Column]) -> list[str]:
    return [spark_type(column.type) for column in columns]


OLDEST = -1
"""Stands for a step before all known ones."""
Span = tuple[int, int]
"""The first and last step whose rows are in a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSteps:
    """The first and last step in which a sink read each file of a collection.

    - `spans`: by the file's name without folders. Any other file has the span (OLDEST, OLDEST).
    - `known_from`: the logs still list the files of this step and of all later steps.
    """

    spans: dict[str, Span]
    known_from: int


def steps_of_files(log: CollectionLog, records: Iterable[StepRecord]) -> FileSteps:
    """Return the steps in which a sink read the files, as far back as the logs go. Raises OSError.

    A file that OPTIMIZE wrote has the rows, and so the steps, of the files that it replaced."""
    spans: dict[str, Span] = {}
    listed = list(records)
    known_from = listed[0].step if listed else 0
    for record in listed:
        try:
            for place in files_of(log, record):
                # Each file is read once, even if several steps read parts of its version.
                spans[_name(place)] = record.step, record.step
        except GoneError:
            known_from = record.step + 1
    for commit in log.after(-1):
        merged = [add for add in commit.adds if not add.has_new_rows]
        if merged:
            before = [spans.get(_name(name), (OLDEST, OLDEST)) for name in commit.removes]
            span = (
                min((first for first, _ in before), default=OLDEST),
                max((last for _, last in before), default=OLDEST),
            )
            for add in merged:
                spans.setdefault(_name(add.place), span)
    return FileSteps(spans=spans, known_from=known_from)


def _name(path: str) -> str:
    return path.rpartition("/")[2]
