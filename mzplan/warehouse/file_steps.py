"""Finds the steps in which a sink read each file of its source's collection, including merged files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.replay import files_of
from mzplan.warehouse.step_record import StepRecord

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
