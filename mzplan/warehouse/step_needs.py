"""Which steps of its source a sink has still to read."""

from __future__ import annotations

from mzplan.warehouse.step_history import StepHistory


def needed_by(sink: StepHistory) -> int | None:
    """The oldest step that the sink has not seen through, whether it runs or is paused; None when it has
    read all that is there. Raises OSError."""
    done = sink.log.committed()
    offset, _ = sink.log.offset(done)
    if done < 0 or not isinstance(offset, dict) or "reservoirVersion" not in offset:
        return 0
    if offset.get("isStartingVersion") and int(offset.get("index", -1)) >= 0:
        return 0  # in the middle of the snapshot with which it began
    version, index = int(offset["reservoirVersion"]), int(offset.get("index", -1))
    # Whatever the index of a file in it: this version is not read to its end, but for one of a MERGE.
    for commit in sink.collection.after(version - 1):
        is_read = commit.is_read_by(index if commit.version == version else -1)
        if commit.step is not None and not is_read:
            return commit.step
    return None


def given_up(sink: StepHistory, source: StepHistory) -> tuple[int, int] | None:
    """Where the collection has given up steps that the sink has not seen through: the first of these, as far
    as that is known, and the oldest step that is still there. Raises OSError."""
    done = sink.log.committed()
    offset, _ = sink.log.offset(done)
    since = source.index.since()
    if since == 0 or done < 0 or not isinstance(offset, dict):
        return None
    needed = needed_by(sink) if not offset.get("isStartingVersion") else None
    version = int(offset.get("reservoirVersion", 0))
    there = sink.collection.oldest()
    if there is not None and version < there:
        last = sink.index.last()
        read = last.sources[1] + 1 if last is not None and last.sources is not None else 0
        return min(read, since), since
    if needed is not None and int(offset.get("index", -1)) >= 0:
        needed += 1  # of this one it has read some files, perhaps all
    return (needed, since) if needed is not None and needed < since else None
