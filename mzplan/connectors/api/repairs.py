"""Replays: which of them a sink has still to do, and why a sink or a source could not do one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError, refusal
from mzplan.model.state import Replay
from mzplan.schema.source_columns import included_columns, keys_of
from mzplan.warehouse.checkpoints import Checkpoint


def replays_to_do(query: ResolvedQuery, checkpoint: Checkpoint) -> list[Replay]:
    """In the order in which they were asked for. Raises OSError."""
    wanted = query.description.replays
    if not wanted:
        return []
    done = checkpoint.replays()
    return [replay for replay in wanted if not done.has(replay)]


def check_replays(query: ResolvedQuery, checkpoint: Checkpoint) -> tuple[Diagnostic, ...]:
    """MZ273 for each replay of steps that do not exist yet. Changes nothing, and never raises for what the
    storage did."""
    try:
        todo = replays_to_do(query, checkpoint)
        done = checkpoint.log.committed() if todo else -1
    except OSError:  # what is wrong with it, the start says
        return ()
    beyond = [replay for replay in todo if max(replay.first, replay.last or 0) > done]
    return tuple(_beyond(query, max(replay.first, replay.last or 0), done) for replay in beyond)


def _beyond(query: ResolvedQuery, step: int, done: int) -> Diagnostic:
    last_step = f"Its last step is {done}." if done >= 0 else "It has written no step yet."
    return Diagnostic(
        code="MZ273",
        summary=f"Steps of {query.address} can't be replayed",
        detail=f"Step {step} is not there yet. {last_step}",
        hint=f"mzplan steps {query.address} lists them; mzplan replay {query.address} --cancel gives it up.",
        address=query.address,
        exit_code=ExitCode.REFUSED,
    )


def ensure_letters(address: Address, type_: str, body: Mapping[str, Any]) -> None:
    """Raise MzplanError MZ273 for a source whose dead letters can't be read once more, with why."""
    place = body.get("dead_letter") or {}
    again = f"let it read everything again: mzplan apply --replace {address} --allow-replace"
    if body.get("on_error") != "dead-letter" or not place:
        raise letters_refused(
            address,
            "It keeps none: it does not say `on_error: dead-letter`.",
            "where it has kept some before, declare on_error and dead_letter as they were.",
        )
    if "path" not in place:
        raise letters_refused(
            address,
            f"It sends them to the topic {place['topic']}, out of which nothing can be taken: those that "
            "have become rows could not be told from the others.",
            "declare a source of that topic, with columns that fit what is in it; and keep those to come in "
            "a table: dead_letter: {path: …}.",
        )
    if keys_of(type_, body):
        raise letters_refused(
            address,
            "Its collection holds the latest row of each key: an older record would take the place of a "
            "newer one, and bring back what was deleted since.",
            again,
        )
    if "headers" in included_columns(type_, body):
        raise letters_refused(
            address,
            "It includes the headers of its records, and a dead letter has none: the column would be empty.",
            f"{again}; or read the records of that time themselves, those that are rows already once more: "
            f"mzplan backfill {address} --from T --to T",
        )


def letters_refused(address: Address, why: str, hint: str) -> MzplanError:
    """MZ273 of dead letters."""
    summary = f"Dead letters of {address} can't be replayed"
    return refusal("MZ273", summary, why, hint, address=address)
