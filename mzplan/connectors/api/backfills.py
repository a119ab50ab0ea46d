"""Which backfills of a source are still to be done, and whether its upstream has what they are to write."""

from __future__ import annotations

from typing import Any

from mzplan.connectors.api.capabilities import ReadsTimes
from mzplan.connectors.api.protocols import ResolvedQuery, SourceConnector
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError, error
from mzplan.model.state import Backfill
from mzplan.model.times import instant
from mzplan.warehouse.checkpoints import Checkpoint


def backfills_to_do(query: ResolvedQuery, checkpoint: Checkpoint) -> list[Backfill]:
    """In the order in which they were asked for. Raises OSError."""
    wanted = query.description.backfills
    if not wanted:
        return []
    done = [one.backfill for one in checkpoint.backfills.all() if one.done]
    return [one for one in wanted if one not in done]


def range_of_backfill(
    connector: SourceConnector, query: ResolvedQuery, backfill: Backfill, position: str | None
) -> tuple[Any, Any]:
    """What its upstream holds of it before the `position` of the checkpoint: two entries of Spark's offset
    log. Raises MzplanError: MZ273 for a type that can't read by time, MZ277 for a range that is not there,
    MZ278 for one that was not read yet."""
    start, end = instant(backfill.start), instant(backfill.end)
    if not isinstance(connector, ReadsTimes) or start is None or end is None:
        raise error(
            "MZ273",
            f"{query.address} can't be backfilled",
            f"A source of type {query.description.type} has no times by which it could read a range again.",
            f"mzplan backfill {query.address} --cancel",
            address=query.address,
            exit_code=ExitCode.REFUSED,
        )
    return connector.between_times(query, start, end, position)


def check_backfills(
    connector: SourceConnector, query: ResolvedQuery, checkpoint: Checkpoint
) -> tuple[Diagnostic, ...]:
    """Why a source could not do its backfills now. Changes nothing, and never raises for what a server or the
    storage did."""
    try:
        todo = backfills_to_do(query, checkpoint)
        if todo and checkpoint.log.committed() < 0:
            return not_begun(query).diagnostics
        begun = [one.backfill for one in checkpoint.backfills.all() if one.step > checkpoint.log.committed()]
        for backfill in todo:
            if backfill not in begun:  # its offsets are known, and its rows may be there
                range_of_backfill(connector, query, backfill, checkpoint.position())
    except MzplanError as problem:
        return problem.diagnostics
    except OSError:  # what is wrong with it, the start says
        pass
    return ()


def not_begun(query: ResolvedQuery) -> MzplanError:
    """MZ278: there is no step yet that a backfill could come after."""
    return error(
        "MZ278",
        f"{query.address} has read nothing yet, so nothing can be backfilled",
        "A backfill is a step after others, and its checkpoint has none.",
        "wait for its first step (mzplan status); where a new source begins, its `start_offsets` says. "
        f"If it can't start for this: mzplan backfill {query.address} --cancel.",
        address=query.address,
        exit_code=ExitCode.REFUSED,
    )
