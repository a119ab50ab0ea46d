"""Whether a folder's existing files have the sink's partition columns.

Readers refuse a folder with several sets of partition columns, but Spark silently writes one.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from urllib.parse import unquote

from mzplan.connectors.api.probes import bounded
from mzplan.connectors.api.queries import ResolvedQuery, empties_target
from mzplan.connectors.api.targets import unfit_target
from mzplan.connectors.files.manifest import LOG
from mzplan.connectors.network.folders import open_below
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.words import one_line

_MOST_FOLDERS = 40  # to search at most
_MOST_OF_ONE = 8  # of the same columns: truncating leaves folders behind


def unfit_divisions(query: ResolvedQuery, folder: str) -> list[Diagnostic]:
    """Return MZ053 for a folder with files of the sink's format under other partition columns. After the
    sink's first step, other files beside its own don't belong to its target, so they don't count."""
    try:
        if query.checkpoint is not None and query.checkpoint.log.has_begun():
            return []
        has_list = LOG in bounded(lambda: open_below(query, folder).names())
        if has_list and empties_target(query):
            return []  # they will be removed
        divisions = bounded(lambda: _divisions(query, folder))
    except (OSError, TimeoutError, ValueError):  # the start reports the problem
        return []
    wanted = query.body.get("partition_by", ())
    other = next((names for names in divisions if _lower(names) != _lower(wanted)), None)
    return [_of_other_divisions(query, folder, other, has_list)] if other is not None else []


def _divisions(query: ResolvedQuery, folder: str) -> list[tuple[str, ...]]:
    """Return each combination of columns that the folders of files are named after, outermost column
    first."""
    ending = f".{query.body['format']['type']}"
    divisions: dict[tuple[str, ...], None] = {}
    looked: Counter[tuple[str, ...]] = Counter()
    waiting: deque[tuple[str, tuple[str, ...]]] = deque([("", ())])
    while waiting and looked.total() < _MOST_FOLDERS:
        inner, columns = waiting.popleft()
        if looked[columns] >= _MOST_OF_ONE:
            continue
        looked[columns] += 1
        queued: Counter[tuple[str, ...]] = Counter()
        for name in open_below(query, folder, inner).names():
            if name.startswith("_"):
                continue
            if ending in name:
                divisions[columns] = None
            elif "=" in name:
                below = (*columns, unquote(name.partition("=")[0]))
                queued[below] += 1
                if queued[below] <= _MOST_OF_ONE:
                    waiting.append((f"{inner}/{name}", below))
    return list(divisions)


def _of_other_divisions(
    query: ResolvedQuery, folder: str, there: Sequence[str], has_list: bool
) -> Diagnostic:
    """Return MZ053 for a folder with other partition columns. `has_list`: a files sink has written there."""
    wanted = ", ".join(query.body.get("partition_by", ()))
    named = ", ".join(map(one_line, there))  # these names may hold any bytes
    lie = f"in folders of {named}" if there else "in no folders of columns"
    says = f"partition_by: [{wanted}]" if wanted else "no partition_by"
    as_it_is = f"write `partition_by: [{named}]`" if there else "remove `partition_by`"
    anew = (
        "or have all files written anew: on_replace: truncate in the sink, and mzplan apply --replace "
        f"{query.address} --allow-replace; "
        if has_list
        else ""
    )
    return unfit_target(
        query,
        f"Folder {folder} is divided by other columns than {query.address} names",
        f"files there lie {lie}, and the sink says {says}.",
        f"{as_it_is}; {anew}or name a path of its own for the sink.",
    )


def _lower(names: Sequence[str]) -> list[str]:
    """Return the names in lower case, because Spark ignores case when it compares names."""
    return [name.lower() for name in names]
