"""Checks whether a folder's existing files have the sink's partition columns.

Readers refuse a folder with several sets of partition columns, but Spark would write one without an error.
"""

from __future__ import annotations

from collections import Counter, deque
from urllib.parse import unquote

from mzplan.connectors.api.probes import with_time_limit
from mzplan.connectors.api.queries import ResolvedQuery, empties_target
from mzplan.connectors.files.manifest import LOG
from mzplan.connectors.network.folders import are_same_columns, open_below, partition_mismatch
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.words import one_line

_MAX_FOLDERS = 40  # folders to search
_MAX_PER_COLUMNS = 8  # folders to search for the same columns: truncating leaves empty folders behind


def unfit_partition_folders(query: ResolvedQuery, folder: str) -> list[Diagnostic]:
    """Return MZ053 for a folder with files of the sink's format under other partition columns. Checks only
    before the sink's first step, because later on, other files don't belong to the target."""
    try:
        if query.checkpoint is not None and query.checkpoint.log.has_begun():
            return []
        has_list = LOG in with_time_limit(lambda: open_below(query, folder).names())
        if has_list and empties_target(query):
            return []  # they will be removed
        combinations = with_time_limit(lambda: _partition_columns(query, folder))
    except (OSError, TimeoutError, ValueError):  # the start reports the problem
        return []
    wanted = query.body.get("partition_by", ())
    other_columns = next((names for names in combinations if not are_same_columns(names, wanted)), None)
    if other_columns is None:
        return []
    printable_names = [one_line(name) for name in other_columns]  # folder names may contain any bytes
    return [partition_mismatch(query, folder, printable_names, can_rewrite=has_list)]


def _partition_columns(query: ResolvedQuery, folder: str) -> list[tuple[str, ...]]:
    """Return the combinations of columns that the files' folders are named after, outermost column first."""
    ending = f".{query.body['format']['type']}"
    combinations: dict[tuple[str, ...], None] = {}
    visits: Counter[tuple[str, ...]] = Counter()
    queue: deque[tuple[str, tuple[str, ...]]] = deque([("", ())])
    while queue and visits.total() < _MAX_FOLDERS:
        inner, columns = queue.popleft()
        if visits[columns] >= _MAX_PER_COLUMNS:
            continue
        visits[columns] += 1
        queued_counts: Counter[tuple[str, ...]] = Counter()
        for name in open_below(query, folder, inner).names():
            if name.startswith("_"):
                continue
            if ending in name:
                combinations[columns] = None
            elif "=" in name:
                inner_columns = (*columns, unquote(name.partition("=")[0]))
                queued_counts[inner_columns] += 1
                if queued_counts[inner_columns] <= _MAX_PER_COLUMNS:
                    queue.append((f"{inner}/{name}", inner_columns))
    return list(combinations)
