"""Replays: which of them a sink has still to do, and why it could not do one."""

from __future__ import annotations

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.model.diagnostics import Diagnostic, ExitCode
from mzplan.model.state import Replay
from mzplan.warehouse.checkpoints import Checkpoint


def replays_to_do(query: ResolvedQuery, checkpoint: Checkpoint) -> list[Replay]:
    """In the order in which they were asked for. Raises OSError."""
    wanted = query.description.replays
    if not wanted:
        return []
    done = checkpoint.replays()
    return [one for one in wanted if not done.has(one)]


def check_replays(query: ResolvedQuery, checkpoint: Checkpoint) -> tuple[Diagnostic, ...]:
    """MZ295 for those of steps that are not there. Changes nothing, and never raises for what the storage
    did."""
    try:
        todo = replays_to_do(query, checkpoint)
        done = checkpoint.log.committed() if todo else -1
    except OSError:  # what is wrong with it, the start says
        return ()
    beyond = [one for one in todo if max(one.first, one.last or 0) > done]
    return tuple(_beyond(query, max(one.first, one.last or 0), done) for one in beyond)


def _beyond(query: ResolvedQuery, step: int, done: int) -> Diagnostic:
    there = f"Its last step is {done}." if done >= 0 else "It has written no step yet."
    return Diagnostic(
        code="MZ295",
        summary=f"Steps of {query.address} can't be replayed",
        detail=f"Step {step} is not there yet. {there}",
        hint=f"mzplan steps {query.address} lists them. To give up what was asked for: mzplan replay "
        f"{query.address} --cancel",
        address=query.address,
        exit_code=ExitCode.REFUSED,
    )
