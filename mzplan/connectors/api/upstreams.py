"""Decides whether an upstream is still the same, and moves the checkpoint if the source accepts another one.

A checkpoint's offsets are valid only on the upstream that they came from. For another upstream, the source
keeps the checkpoint and moves its position: it plans and commits an empty micro-batch at once. Step numbering
continues.

It also checks whether replacing a source loses rows: the new generation reads from the beginning, but the
upstream may no longer hold everything that the previous generation has read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from mzplan.connectors.api.connector import LastTimes, SourceConnector
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.api.targets import unreadable
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError
from mzplan.model.losses import Loss, as_refusal, as_warning
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.folder import open_folder
from mzplan.warehouse.step_index import StepIndex

_MAX_GENERATIONS = 20  # earlier generations to look at; only a few never start
_MAX_NAMES = 8  # partitions or files that a message names


def check_losses(
    connector: SourceConnector, query: ResolvedQuery, warehouse: str, upstream: Mapping[str, Any] | None
) -> tuple[Diagnostic, ...]:
    """Return MZ292 if a new generation can't read again all that the previous one has read.

    Once the new generation has begun, nothing is checked. MZ292 is a warning if the commit allowed the loss,
    otherwise an error. `upstream` is the identity that the probe found. Changes nothing. Raises MzplanError
    for a server's errors: then the loss is unknown, and the new generation must not start."""
    checkpoint, description = query.checkpoint, query.description
    if checkpoint is None or description.generation == 1 or description.predecessor is not None:
        return ()
    try:
        if checkpoint.log.has_begun():
            return ()
        former = _former_checkpoint(query, warehouse)
        if former is None:
            return ()
        loss = connector.loss(query, former) or _other_upstream_loss(connector, query, former, upstream)
    except OSError as problem:
        return (unreadable(query, problem),)
    if loss is None:
        return ()
    warning = as_warning(query.address, loss)
    return (warning if description.may_lose else as_refusal(warning),)


def _other_upstream_loss(
    connector: SourceConnector, query: ResolvedQuery, former: Checkpoint, found: Mapping[str, Any] | None
) -> Loss | None:
    """Return a loss of all rows if they were read from another upstream. Raises OSError."""
    recorded, newest = former.upstream(), StepIndex(former).last()
    if recorded is None or found is None or query.body.get("on_upstream_change") == "accept":
        return None
    if newest is None or newest.total == 0:  # nothing was read from it
        return None
    difference = connector.compare(query, recorded, found)
    return (
        Loss(lost=None, read=None, unit="rows", where=difference.detail.partition(". ")[0])
        if difference
        else None
    )


def _former_checkpoint(query: ResolvedQuery, warehouse: str) -> Checkpoint | None:
    """Return the checkpoint of the newest earlier generation that has read something, if it still exists."""
    own = query.description.generation
    for generation in range(own - 1, max(0, own - 1 - _MAX_GENERATIONS), -1):
        checkpoint = Checkpoint.of(warehouse, query.description.id, generation)
        if checkpoint.log.newest() >= 0 or open_folder(checkpoint.steps).names():
            return checkpoint
    return None


def list_names(names: Sequence[str], noun: str) -> str:
    """Return the names as text: `a, b and 3 more files`."""
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more:,} more {noun}" if more > 0 else "")


Policy = Literal["accept", "reset-earliest", "reset-latest", "translate-timestamp"]

_EFFECTS: Mapping[str, str] = {
    "accept": "continues at the same offsets in the new upstream",
    "reset-earliest": "continues with the earliest record in the upstream",
    "reset-latest": "continues with records that are written from now on",
    "translate-timestamp": "continues at the time of the last record that it has read",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamComparison:
    """The result of checking an upstream.

    - `diagnostic`: an error if the upstream is refused, or a notice of what `policy` will do.
    - `needs_position`: whether the source must find a new position.
    - `is_same`: whether this is still the recorded upstream, although it no longer holds some offsets.
    - `return_position`: the checkpoint's former position on this upstream, if the source has returned to it
      without reading anything elsewhere.
    """

    diagnostic: Diagnostic | None = None
    policy: Policy | None = None
    needs_position: bool = False
    is_same: bool = False
    return_position: str | None = None


def origin_of(query: ResolvedQuery) -> int:
    """Return the generation after which the source's objects on its upstream are named.

    This is the query's own generation, or the first generation whose rows were migrated. Raises
    MzplanError."""
    checkpoint, description = query.checkpoint, query.description
    if checkpoint is None or description.predecessor is None:
        return description.generation
    try:
        migrated = checkpoint.migrated_rows()
    except OSError as problem:
        raise MzplanError(unreadable(query, problem)) from None
    return migrated.origin if migrated is not None and migrated.origin else description.generation


def start_over_hint(query: ResolvedQuery) -> str:
    """Return the hint for a source whose steps no longer match its upstream."""
    return (
        f"let the source start over, with its sinks: mzplan apply --replace {query.address} --allow-replace"
    )


def another_upstream(query: ResolvedQuery, kind: str, difference: str) -> Diagnostic:
    """Return MZ043: the source would read another upstream.

    `kind` is a noun for the upstream, such as "folder". `difference` says where the upstreams differ."""
    return Diagnostic.of(
        "MZ043.read-another",
        address=query.address,
        kind_=kind,
        difference=difference,
        start_over_hint=start_over_hint(query),
    )


def compare_upstream(
    connector: SourceConnector, query: ResolvedQuery, checkpoint: Checkpoint, found: Mapping[str, Any]
) -> UpstreamComparison:
    """Decide whether a checkpoint's offsets are valid on the upstream that a probe found. Changes nothing."""
    try:
        recorded = checkpoint.upstream() if checkpoint.log.has_begun() else None
        position = checkpoint.position()
        departure = checkpoint.departure()
    except OSError as problem:
        return UpstreamComparison(diagnostic=unreadable(query, problem))
    difference = connector.compare(query, recorded, found) if recorded is not None else None
    policy: Policy | None = query.body.get("on_upstream_change")
    can_move = connector.can_reposition
    if difference is None:
        position_problem = connector.check_position(query, position) if position is not None else None
        if (
            position_problem is None
            or position_problem.kind != "offsets-gone"
            or policy in (None, "accept")
            or not can_move
        ):
            return UpstreamComparison(diagnostic=position_problem)
        return UpstreamComparison(
            diagnostic=_as_notice(position_problem, query, policy),
            policy=policy,
            needs_position=True,
            is_same=True,
        )
    if departure is not None and connector.compare(query, departure["upstream"], found) is None:
        # The source is back at its former upstream and has read nothing elsewhere.
        position_problem = connector.check_position(query, departure["position"])
        return (
            UpstreamComparison(diagnostic=position_problem)
            if position_problem
            else UpstreamComparison(policy="accept", return_position=departure["position"])
        )
    if policy is None or not can_move:
        return UpstreamComparison(diagnostic=difference)
    if policy == "accept" and position is not None:
        position_problem = connector.check_position(query, position)
        if position_problem is not None:
            return UpstreamComparison(diagnostic=position_problem)
    return UpstreamComparison(
        diagnostic=_as_notice(difference, query, policy),
        policy=policy,
        needs_position=policy != "accept" or position is None,
    )


def take_upstream(
    connector: SourceConnector,
    query: ResolvedQuery,
    checkpoint: Checkpoint,
    found: Mapping[str, Any],
    last_times: LastTimes,
    finish_step: Callable[[], None] | None = None,
) -> None:
    """Accept the found upstream, and move the checkpoint if the source's policy says so.

    `finish_step`: finishes an interrupted step, so that the checkpoint can get the positions of new topics;
    None while that step is being finished.

    Raises MzplanError if the policy doesn't allow another upstream. The query must not run. After a crash,
    this function runs again, because it records the upstream's identity last."""
    comparison = compare_upstream(connector, query, checkpoint, found)
    if comparison.diagnostic is not None and comparison.diagnostic.severity == "error":
        raise MzplanError(comparison.diagnostic)
    if comparison.policy is None:
        if not checkpoint.log.has_begun() or checkpoint.upstream() is None:
            checkpoint.record_upstream(found)
        else:
            _extend(connector, query, checkpoint, found, finish_step)
        return
    former, position = checkpoint.upstream(), checkpoint.position()
    if comparison.return_position is not None:
        checkpoint.log.move(comparison.return_position)
        checkpoint.forget_departure()
    elif comparison.needs_position:
        position_read = position if comparison.is_same else None
        new_position = connector.reposition(query, comparison.policy, position_read, last_times)
        if not comparison.is_same and former is not None and position is not None:
            # Recorded before the move, with the batch that the move makes. After a crash that follows the
            # move, the position already belongs to the new upstream, so the recorded departure stays.
            departure = checkpoint.departure()
            is_recorded = departure is not None and departure["upstream"] == former
            checkpoint.record_departure(
                former, departure["position"] if departure and is_recorded else position
            )
        checkpoint.log.move(new_position)
    checkpoint.record_upstream(found)


def _extend(
    connector: SourceConnector,
    query: ResolvedQuery,
    checkpoint: Checkpoint,
    found: Mapping[str, Any],
    finish_step: Callable[[], None] | None,
) -> None:
    """Add the positions of new topics to the checkpoint, after any interrupted step."""
    position = checkpoint.position() or checkpoint.log.entry(checkpoint.log.newest())
    if position is None or connector.extended(query, position, found) is None:
        return
    if checkpoint.log.unfinished() is not None:
        if finish_step is None:
            return
        finish_step()
    position = checkpoint.position()
    if position is not None and (extended := connector.extended(query, position, found)) is not None:
        checkpoint.log.move(extended)
        checkpoint.record_upstream(found)


def _as_notice(refusal: Diagnostic, query: ResolvedQuery, policy: str) -> Diagnostic:
    """Return a refusal as a notice of what the policy does instead."""
    return replace(
        refusal,
        severity="notice",
        summary=f"{query.address} {_EFFECTS[policy]} (on_upstream_change: {policy})",
        detail=refusal.detail.partition(". ")[0] + ".",
        hint="",
        exit_code=ExitCode.OK,
    )
