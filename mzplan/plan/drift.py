"""Drift between the state and the runners' observations, and queries that are still converging."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from mzplan.model.address import Address, natural, natural_item
from mzplan.model.cause import Cause
from mzplan.model.diagnostics import ProblemKind
from mzplan.model.observed import Observation, Status
from mzplan.model.plan import Change, DriftItem, Pending
from mzplan.model.resources import is_dry
from mzplan.model.state import ResourceState, State
from mzplan.model.times import seconds
from mzplan.plan.effects.function_change import upgrade_of
from mzplan.schema.description import DIGEST_VERSION, digest_of
from mzplan.schema.kinds import resource_kind
from mzplan.schema.triggers import interval_of

STALLED = 300.0  # seconds; a query is stalled after this and three trigger intervals
_NOTHING_ROTATED: Mapping[Address, tuple[str, ...]] = {}


# The kind of drift, by the kind of the query's problem.
DRIFT_BY_PROBLEM: Mapping[ProblemKind, str] = {
    "another-upstream": "upstream-changed",
    "target-behind": "target-behind",
    "offsets-gone": "upstream-changed",
    "target-restored": "upstream-changed",
    "checkpoint-missing": "checkpoint-missing",
    "code-changed": "code-changed",
    "collection-missing": "collection-missing",
    "steps-missing": "collection-missing",
    "stopped-by-hand": "missing-query",
    "steps-given-up": "collection-missing",
}


def drift_between(
    state: State,
    statuses: Mapping[str, Status],
    alive: Mapping[str, bool],
    rotated: Mapping[Address, tuple[str, ...]] = _NOTHING_ROTATED,
    now: float = 0.0,
) -> tuple[DriftItem, ...]:
    """Return the drift of all queries, also of queries that the state doesn't have, by address.

    - `alive`: by instance, whether a runner leads it. A dry instance needs no runner.
    - `rotated`: queries that run with old values of secrets, and the references to these secrets.
    - `now`: seconds since the epoch, to find stalled queries.
    """
    drift = [*_foreign(state, statuses), *_failed_beside(state, statuses)]
    for resource in state.resources.values():
        if not resource.digest:
            continue  # a connection isn't a query
        runs = alive.get(resource.instance, False) or is_dry(state.instances, resource.instance)
        seen = resource.observed_in(statuses)
        if runs:
            kind, detail = _query_drift(resource, seen)
        else:
            kind, detail = _without_runner(resource, statuses.get(resource.instance))
        if runs and not kind:
            kind, detail = _stalled(resource, seen, now)
        if runs and not kind and resource.address not in rotated:  # an old secret explains a refusal
            kind, detail = _unreachable(resource, seen)
        if runs and resource.address in rotated:
            detail_of = f"it runs with an old value of {', '.join(rotated[resource.address])}"
            drift.append(DriftItem(address=str(resource.address), kind="secret-rotated", detail=detail_of))
        if kind:
            drift.append(DriftItem(address=str(resource.address), kind=kind, detail=detail))
        if runs and kind != "code-changed" and seen is not None and (detail := upgrade_of(resource, seen)):
            drift.append(DriftItem(address=str(resource.address), kind="code-changed", detail=detail))
        if seen is not None and seen.foreign_change and seen.generation == resource.generation:
            detail = seen.foreign_change
            drift.append(DriftItem(address=str(resource.address), kind="unmanaged-change", detail=detail))
    return tuple(sorted(drift, key=lambda item: (natural(item.address), item.kind)))


def started_because(changes: Iterable[Change], statuses: Mapping[str, Status]) -> dict[Address, Cause]:
    """Return why each changed query was started, if its runner reports it."""
    causes = {}
    for change in changes:
        seen = change.before.observed_in(statuses) if change.before is not None else None
        if seen is not None and seen.started_because is not None:
            causes[change.address] = seen.started_because
    return causes


def drift_of_instance(state: State, status: Status, now: float) -> tuple[DriftItem, ...]:
    """Return the drift of one instance's queries, as its runner sees it.

    It is empty until the runner has read the state's serial. It doesn't look for rotated secrets, because
    that is slow.
    """
    if status.serial != state.serial:
        return ()
    name = status.instance
    own = {address: resource for address, resource in state.resources.items() if resource.instance == name}
    return drift_between(replace(state, resources=own), {name: status}, {name: True}, now=now)


def copied_environments(state: State) -> frozenset[str]:
    """Return the environments whose collections the queries of a state copy."""
    return frozenset(str(record.body[name]) for record, name in _copies(state))


def drift_of_copies(state: State, others: Mapping[str, State]) -> tuple[DriftItem, ...]:
    """Return the copies whose collection another environment has replaced or no longer has.

    `others`: the states of other environments, by name.
    """
    drift = []
    for record, name in _copies(state):
        environment, copied = str(record.body[name]), record.body["collection"]
        if (other := others.get(environment)) is None:
            continue
        found = next((r for r in other.resources.values() if r.id == copied["id"]), None)
        if found is None:
            detail = f"environment {environment} no longer has {record.body['source']}"
        elif found.generation != copied["generation"]:
            detail = (
                f"environment {environment} has replaced {found.address}: it is in generation "
                f"{found.generation}, and this copy reads generation {copied['generation']}"
            )
        else:
            continue
        drift.append(DriftItem(address=str(record.address), kind="upstream-changed", detail=detail))
    return tuple(drift)


def _copies(state: State) -> Iterator[tuple[ResourceState, str]]:
    """Yield each copy of another environment's collection, with the property that names the environment."""
    for address, record in state.resources.items():
        if (name := resource_kind(address.kind, record.type).environment_property) is not None:
            yield record, name


def edits_by_hand(state: State) -> tuple[DriftItem, ...]:
    """Return the manual edits of a state file whose checksum doesn't match.

    There is one item for each record whose digest doesn't match its content, or else one for the whole file.
    """
    edits = []
    for address, record in sorted(state.resources.items(), key=natural_item):
        same_version = record.digest.startswith(f"{DIGEST_VERSION}:")
        if same_version and digest_of(record, state.resources) != record.digest:
            detail = "its committed record, or the record of a connection it uses, was edited by hand"
            edits.append(DriftItem(address=str(address), kind="unmanaged-change", detail=detail))
    if not edits:
        detail = "the file was edited by hand: its checksum doesn't match its content"
        edits.append(DriftItem(address="state", kind="unmanaged-change", detail=detail))
    return tuple(edits)


def _foreign(state: State, statuses: Mapping[str, Status]) -> Iterator[DriftItem]:
    for status in statuses.values():
        for address, seen in status.observations.items():
            committed = state.resources.get(address.resource)
            if seen.run_id is None or (committed is not None and committed.instance == status.instance):
                continue
            detail = f"it runs on instance {status.instance}, where the state has no such query"
            yield DriftItem(address=str(address), kind="foreign-query", detail=detail)
        for name in status.foreign:
            detail = f"the query {name[:200]} runs in its Spark application, but mzplan didn't start it"
            yield DriftItem(address=f"instance.{status.instance}", kind="foreign-query", detail=detail)


def _failed_beside(state: State, statuses: Mapping[str, Status]) -> Iterator[DriftItem]:
    """Yield the failed generations that run beside the ones in service."""
    for status in statuses.values():
        for address, seen in status.observations.items():
            if not address.is_beside or seen.condition not in ("failed", "rejected"):
                continue
            detail = f"{seen.error_code}: {seen.error}; {address.resource} serves its former generation"
            yield DriftItem(address=str(address), kind="failed-query", detail=detail)


def _without_runner(resource: ResourceState, status: Status | None) -> tuple[str, str]:
    if resource.paused:
        return "", ""
    seen = status.observations.get(resource.address) if status is not None else None
    if seen is not None and seen.completed and seen.digest == resource.digest:
        return "", ""
    if status is not None and status.caught_up_at is not None:  # its queries run from time to time
        has_failed = seen is not None and seen.condition in ("failed", "rejected")
        return _query_drift(resource, seen) if has_failed else ("", "")
    why = f": {status.ended}" if status is not None and status.ended else ""
    return "missing-query", f"no runner of instance {resource.instance} is alive{why}"


def _query_drift(resource: ResourceState, seen: Observation | None) -> tuple[str, str]:
    """Return the kind and detail of one query's drift; two empty strings for none."""
    if resource.paused:
        running = seen is not None and seen.condition in ("running", "starting")
        return ("outdated-query", "it runs although it is paused") if running else ("", "")
    if seen is None:
        return "missing-query", "its runner does not report it"
    why = ": ".join(filter(None, (seen.error_code, seen.error)))
    if seen.error_kind in DRIFT_BY_PROBLEM:
        return DRIFT_BY_PROBLEM[seen.error_kind], why
    if seen.condition == "failed" or (seen.condition == "starting" and seen.error):
        return "failed-query", why or "it ended with an error"
    if seen.held:
        return "", ""  # the state requires a held query to run as before, or to wait
    wanted = (seen.wanted_generation, seen.wanted_digest)
    if seen.condition == "starting" and wanted == (resource.generation, resource.digest):
        return "", ""  # still converging
    if (seen.generation, seen.digest) != (resource.generation, resource.digest):
        return "outdated-query", why or "it still runs with its previous description"
    if seen.condition in ("stopped", "paused") and not seen.completed:
        return "missing-query", f"it is {seen.condition}"
    return "", ""


def _stalled(resource: ResourceState, seen: Observation | None, now: float) -> tuple[str, str]:
    """Return the drift of a query whose micro-batch takes too long.

    A query without input has no `quiet_since`.
    """
    if seen is None or seen.condition not in ("running", "starting") or seen.quiet_since is None:
        return "", ""
    quiet = now - seen.quiet_since
    interval = interval_of(resource.address.kind, resource.type, resource.body)
    if quiet < max(STALLED, 3 * seconds(interval)):
        return "", ""
    return "stalled-query", f"it has input, but no micro-batch has finished for {quiet / 60:.0f} min"


def _unreachable(resource: ResourceState, seen: Observation | None) -> tuple[str, str]:
    """Return the drift of a query that only a faulty connection keeps from running."""
    if seen is None or seen.at_fault is None or seen.held or resource.paused:
        return "", ""
    return "connection-unreachable", f"{seen.at_fault}: {seen.fault}"


def find_pending(state: State, statuses: Mapping[str, Status]) -> tuple[Pending, ...]:
    """Return the observed queries that aren't as the state requires, sorted by address.

    The cost grows with the observations, not with the state. Queries that no runner has reported are left
    out.
    """
    pending_queries = []
    for status in statuses.values():
        for address, observation in status.observations.items():
            resource = state.resources.get(address)
            if resource is None or resource.instance != status.instance:
                continue
            reason = _why_pending(resource, observation)
            if reason:
                condition = "held" if observation.held else observation.condition
                pending_queries.append(Pending(address=address, condition=condition, reason=reason))
    return tuple(sorted(pending_queries, key=lambda pending: natural(pending.address)))


def _why_pending(resource: ResourceState, seen: Observation) -> str:
    """Return why the query isn't as committed; "" if it is."""
    if resource.paused:
        return "" if seen.condition in ("paused", "stopped") else _error(seen) or "to be paused"
    if seen.held:
        return seen.held
    if seen.condition in ("rejected", "failed"):
        return _error(seen) or seen.condition
    if (seen.generation, seen.digest) != (resource.generation, resource.digest):
        tasks = _tasks(resource, seen)
        return _error(seen) or tasks or seen.waits or "the committed description is not running yet"
    if seen.runs_or_completed:
        return ""
    return _error(seen) or seen.waits or ("to be resumed" if seen.condition == "paused" else seen.condition)


def _tasks(resource: ResourceState, seen: Observation) -> str:
    return "; ".join(f"the {task} is not done yet" for task in resource.open_tasks(seen))


def _error(seen: Observation) -> str:
    if not seen.error:
        return ""
    return f"{seen.error_code}: {seen.error}" if seen.error_code else seen.error
