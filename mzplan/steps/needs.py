"""Which steps of its source a sink has still to read."""

from __future__ import annotations

from mzplan.steps.history import StepHistory


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
