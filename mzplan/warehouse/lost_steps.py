"""Steps that a checkpoint knows to be done and a Delta table does not hold: it was restored to an older copy.

Spark does not notice. The next step takes the version of the lost one, and nobody misses its rows. But each
step, also one without rows, is a commit that names its query and its number (`txn`), so a step that is done
without a commit, and a gap between the commits of one query, can only come from what somebody else has done.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from mzplan.warehouse.checkpoint_log import CheckpointLog
from mzplan.warehouse.collection_log import CollectionLog

_LOOKED_AT = 20  # commits of the query, where nothing is known of an earlier look


class Held(NamedTuple):
    """A version of a table, and the step of the query that is its commit."""

    version: int
    step: int


def lost_steps(table: CollectionLog, log: CheckpointLog, whole: Held | None = None) -> tuple[int, int] | None:
    """The first and the last step that the table lacks (of several gaps, the newest one); None where it lacks
    none, or where that can't be known: a query that somebody wrote by hand may not have named its steps.
    `whole`: where nothing was missing at an earlier look (see `newest_held`). Raises OSError."""
    query_id, done = log.query_id(), log.last_written()
    if query_id is None or done < 0:
        return None
    steps: list[int] = []
    for held in _held(table, query_id):
        if not steps and whole is not None and held.version - whole.version == held.step - whole.step:
            # Each version since then is a step.
            return (held.step + 1, done) if held.step < done else None
        steps.insert(0, held.step)
        if held.step <= whole.step if whole is not None else len(steps) == _LOOKED_AT:
            break
    if not steps:
        newest = table.last_transaction(query_id)
        if newest is None:
            return (0, done) if _names_its_steps(table) else None
        steps = [newest]
    if steps[-1] < done:
        return steps[-1] + 1, done
    planned = log.planned()
    for before, after in reversed(list(pairwise(steps))):
        # A commit may name any step: only those are looked at that the checkpoint has.
        if any(log.is_written(step) for step in planned if before < step < after):
            return before + 1, after - 1
    return None


def newest_held(table: CollectionLog, log: CheckpointLog) -> Held | None:
    """The newest step that the table holds. Raises OSError."""
    query_id = log.query_id()
    return next(_held(table, query_id), None) if query_id is not None else None


def _held(table: CollectionLog, query_id: str) -> Iterator[Held]:
    """The query's commits, as far as they are in the log, the newest first."""
    for version in reversed(table.versions()):
        commit = table.commit(version)
        if commit is not None and commit.transaction is not None and commit.transaction[0] == query_id:
            yield Held(version, commit.transaction[1])


def _names_its_steps(table: CollectionLog) -> bool:
    """Whether all rows in the log come from commits that name who has written them; it has at least one
    commit."""
    commits = [table.commit(version) for version in table.versions()]
    return bool(commits) and all(
        commit is None or commit.transaction is not None or not commit.adds for commit in commits
    )
