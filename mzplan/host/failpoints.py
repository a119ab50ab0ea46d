"""Failpoints: named places where a test kills the process, as `kill -9` does.

`MZPLAN_FAILPOINT=apply.committed` kills the process at this place, without clean-up. Tests run through all
members of the enum, and docs/internals/protocol.md explains each.
"""

from __future__ import annotations

import os
import signal
from enum import StrEnum


class Failpoint(StrEnum):
    """The places where a crash has a consequence that a crash elsewhere doesn't have."""

    APPLY_LOCKED = "apply.locked"
    APPLY_PROPOSED = "apply.proposed"
    APPLY_VALIDATED = "apply.validated"
    COMMIT_BEFORE_HISTORY = "commit.before-history"
    COMMIT_BEFORE_RENAME = "commit.before-rename"
    COMMIT_AFTER_RENAME = "commit.after-rename"
    APPLY_COMMITTED = "apply.committed"
    APPLY_WOKEN = "apply.woken"
    ALTER_PREPARED = "alter.prepared"
    ALTER_JOURNALED = "alter.journaled"
    ALTER_COMMITTED = "alter.committed"
    ALTER_WRITTEN = "alter.written"
    APPEND_WRITTEN = "append.written"
    RUNNER_LEASED = "runner.leased"
    RUNNER_CHECKED = "runner.checked"
    RUNNER_STOPPED_OLD = "runner.stopped-old"
    RUNNER_STARTED_NEW = "runner.started-new"
    RUNNER_BEFORE_ACCEPT = "runner.before-accept"
    RUNNER_BEFORE_STATUS = "runner.before-status"
    # After each command from the runner to its controller. The name is the command's type.
    RUNNER_FOLLOWED = "runner.followed"
    STORAGE_JOURNALED = "storage.journaled"
    STORAGE_EXPIRED = "storage.expired"
    STORAGE_MERGED = "storage.merged"
    STORAGE_RECLAIMED = "storage.reclaimed"
    STORAGE_REMOVED = "storage.removed"
    CANARY_JUDGED = "canary.judged"
    CANARY_DECIDED = "canary.decided"
    CANARY_RELEASED = "canary.released"
    SOURCE_BEFORE_MERGE = "source.before-merge"
    SOURCE_MERGED = "source.merged"
    LETTERS_STORED = "letters.stored"
    VIEW_PLANNED = "view.planned"
    VIEW_RECORDED = "view.recorded"
    VIEW_COMPUTED = "view.computed"
    VIEW_WRITTEN = "view.written"
    BACKFILL_JOURNALED = "backfill.journaled"
    BACKFILL_WRITTEN = "backfill.written"
    DEAD_LETTERS_JOURNALED = "dead-letters.journaled"
    DEAD_LETTERS_WRITTEN = "dead-letters.written"
    DEAD_LETTERS_CLEARED = "dead-letters.cleared"
    RECOMPUTE_JOURNALED = "recompute.journaled"
    RECOMPUTE_WRITTEN = "recompute.written"
    RECOMPUTE_PLANNED = "recompute.planned"
    ERASURE_JOURNALED = "erasure.journaled"
    ERASURE_WRITTEN = "erasure.written"
    ERASURE_PURGED = "erasure.purged"
    ERASURE_CLEARED = "erasure.cleared"
    ERASURE_FORGOTTEN = "erasure.forgotten"
    TASK_PASSED_OVER = "task.passed-over"
    REPLAY_BEGUN = "replay.begun"
    REPLAY_WRITTEN = "replay.written"
    MIGRATION_JOURNALED = "migration.journaled"
    MIGRATION_WRITTEN = "migration.written"
    MIGRATION_PLACED = "migration.placed"
    MIGRATION_READ = "migration.read"
    MIGRATION_MOVED = "migration.moved"
    SINK_CLAIMED = "sink.claimed"
    SINK_BEFORE_STEP = "sink.before-step"
    SINK_WRITTEN = "sink.written"
    # In the Python process that writes a step on an executor. Executors of local[*] inherit the environment.
    TASK_BEGUN = "task.begun"
    TASK_SENT = "task.sent"
    TASK_NOTED = "task.noted"
    TASK_COMMITTED = "task.committed"


_armed = os.environ.get("MZPLAN_FAILPOINT", "")


def failpoint(point: Failpoint) -> None:
    """Kill this process if the failpoint is armed. Otherwise, it costs one string comparison."""
    if _armed == point.value:
        os.kill(os.getpid(), signal.SIGKILL)
