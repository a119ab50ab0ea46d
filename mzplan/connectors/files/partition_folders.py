"""Checks whether a folder's existing files have the sink's partition columns.

Readers refuse a folder with several sets of partition columns, but Spark would write one without an error.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from urllib.parse import unquote

from mzplan.connectors.api.probes import with_time_limit
from mzplan.connectors.api.queries import ResolvedQuery, empties_target
from mzplan.connectors.api.targets import unfit_target
from mzplan.connectors.files.manifest import LOG
from mzplan.connectors.network.folders import open_below
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
    other_columns = next((names for names in combinations if _lower(names) != _lower(wanted)), None)
    return [_partition_mismatch(query, folder, other_columns, has_list)] if other_columns is not None else []


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


def _partition_mismatch(
    query: ResolvedQuery, folder: str, columns: Sequence[str], has_list: bool
) -> Diagnostic:
    """Return MZ053 for a folder with other partition columns. `has_list`: a files sink has written there."""
    wanted = ", ".join(query.body.get("partition_by", ()))
    names = ", ".join(map(one_line, columns))  # these names may hold any bytes
    location = f"in folders of {names}" if columns else "in no partition folders"
    setting = f"partition_by: [{wanted}]" if wanted else "no partition_by"
    adapt = f"write `partition_by: [{names}]`" if columns else "remove `partition_by`"
    rewrite = (
        "or rewrite all files: on_replace: truncate in the sink, and mzplan apply --replace "
        f"{query.address} --allow-replace; "
        if has_list
        else ""
    )
    return unfit_target(
        query,
        f"The partition columns of folder {folder} differ from those of {query.address}",
        f"its files are {location}, but the sink has {setting}.",
        f"{adapt}; {rewrite}or give the sink a path of its own.",
    )


def _lower(names: Sequence[str]) -> list[str]:
    """Return the names in lower case, because Spark ignores case when it compares names."""
    return [name.lower() for name in names]
