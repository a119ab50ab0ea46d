"""Live validation: reaches the servers that queries need. Changes nothing.

A live runner of the instance validates if there is one, because it has the network, secrets and checkpoints.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.address import Address, natural, natural_item
from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.model.graph import DependencyGraph
from mzplan.model.plan import Plan
from mzplan.model.resources import Instance, is_dry, start_command
from mzplan.model.state import ResourceState, State
from mzplan.model.words import count
from mzplan.operations.connections import Reachability, idle_connections, reachability_of, unused_connections
from mzplan.operations.local_checks import by_cause, check_locally
from mzplan.plan.stages import is_validated
from mzplan.schema.description import Description, as_description, describe, references_of
from mzplan.schema.kinds import resource_kind
from mzplan.secrets.policy import NO_SECRET_VALUES, Guard, SecretValues
from mzplan.secrets.references import REFERENCE
from mzplan.store.proposals import new_proposal_id
from mzplan.store.store import Store

if TYPE_CHECKING:
    from mzplan.operations.project import Workbench

ANSWER_WAIT = 60.0  # seconds for a runner to answer a proposal


def queries_to_validate(plan: Plan, new: State) -> list[ResourceState]:
    """Return a plan's queries to validate before the commit, as they will be in the state `new`."""
    changed = [change.address for change in plan.changes if is_validated(change)]
    resuming = [
        a for a in plan.resuming if a not in changed and a in new.resources and not new.resources[a].paused
    ]
    return [new.resources[address] for address in (*changed, *resuming)]


def _without_validation(store: Store, plan: Plan, new: State) -> list[tuple[str, Sequence[Reachability]]]:
    """Return the connections that nothing would validate before the commit, by instance.

    This happens if no runner of the queries' cluster is alive. For a connection without queries, it happens
    if no runner of any cluster is alive. Only types that are validated by default are listed.
    """
    by_instance: dict[str, list[ResourceState]] = {}
    for query in queries_to_validate(plan, new):
        instance = new.instances.get(query.instance)
        if instance is not None and instance.type == "cluster":
            by_instance.setdefault(query.instance, []).append(query)
    unvalidated: list[tuple[str, Sequence[Reachability]]] = []
    for name, queries in sorted(by_instance.items(), key=natural_item):
        if store.leases.leader(name) is None:
            by_connection = [
                connection
                for connection in reachability_of(new, queries)
                if connection.queries
                and resource_kind("connection", new.resources[connection.address].type).validates_live
            ]
            unvalidated += [(name, by_connection)] if by_connection else []
    alone = _reached_alone(changed_alone(plan, new), new)
    clusters = [instance.name for instance in new.instances.values() if instance.type == "cluster"]
    if alone and clusters and not _runs_here(new) and _live_runner(store, new) is None:
        unvalidated.append((clusters[0], [Reachability(address=address, queries=()) for address in alone]))
    return unvalidated


def ensure_validated(work: Workbench, plan: Plan, new: State, *, refuses: bool) -> None:
    """Raise MZ149 (exit 7) if a part of the plan would be committed unvalidated.

    Without `refuses`, the user accepts this, and it is only reported.
    """
    unvalidated = _without_validation(work.store, plan, new)
    if unvalidated and refuses:
        environment = work.project.settings.environment
        raise MzplanError(
            [_unvalidated(new.instances[name], connections, environment) for name, connections in unvalidated]
        )
    for name, connections in unvalidated:
        work.reporter.stage(
            f"notice: Not validated before the commit, because no runner of instance {name} is alive: "
            + "; ".join(_with_queries(connections))
        )


def _with_queries(connections: Sequence[Reachability]) -> list[str]:
    return [
        f"{connection.address}, used by {', '.join(map(str, connection.queries)) or 'no running query'}"
        for connection in connections
    ]


def _unvalidated(instance: Instance, connections: Sequence[Reachability], environment: str) -> Diagnostic:
    return Diagnostic.of(
        "MZ149.no-runner",
        name=instance.name,
        not_validated="\n".join(["Nothing was changed. Not validated:", *_with_queries(connections)]),
        start_command=start_command(instance, environment),
    )


def validate_queries(
    work: Workbench,
    state: State,
    queries: Iterable[ResourceState],
    secret_values: SecretValues | None = None,
    *,
    local_guard: Guard | None,
) -> list[Diagnostic]:
    """Have the runners of their instances validate queries of a state. Return all findings.

    Without a live runner, this process validates, if `local_guard` says which secrets it may send. Without a
    guard, nothing is validated (see ensure_validated). `secret_values`: the values that runners of this
    machine get for this validation; by default the values known here.
    """
    secret_values = secret_values or own_secret_values(state)
    by_instance: dict[str, list[ResourceState]] = {}
    for query in queries:
        by_instance.setdefault(query.instance, []).append(query)
    findings: list[Diagnostic] = []
    for name, resources in sorted(by_instance.items(), key=natural_item):
        instance = state.instance(name)
        if instance.type == "dry":
            work.reporter.detail(
                f"instance {name} is dry: its queries contact no server, so nothing is validated"
            )
            continue
        descriptions = tuple(describe(resource, state.resources) for resource in resources)
        number = count(len(descriptions), "query", "queries")
        lease = work.store.leases.leader(name)
        if lease is not None:
            work.reporter.detail(f"its runner is process {lease.pid} on {lease.host}, epoch {lease.epoch}")
            with work.reporter.working(f"the runner of instance {name} validates {number}"):
                asking = f"Validating {number} on instance {name}"
                findings += _by_runner_first(
                    work, asking, instance, descriptions, secret_values, state, local_guard
                )
        elif local_guard is not None:
            work.reporter.stage(f"Validating {number} from here: no runner of instance {name} is alive")
            with work.reporter.working(f"validating {number} from here"):
                findings += check_locally(descriptions, work.directory, state.warehouse, local_guard)
        else:
            work.reporter.detail(f"no runner of instance {name} is alive: it will validate before it acts")
    return findings


def _by_runner_first(
    work: Workbench,
    asking: str,
    instance: Instance,
    descriptions: tuple[Description, ...],
    secret_values: SecretValues,
    state: State,
    local_guard: Guard | None,
) -> list[Diagnostic]:
    """Return the findings of a live runner.

    With `local_guard`, this process validates queries for which the runner would send no secret.
    """
    answers = _by_runner(work, asking, instance, descriptions, secret_values)
    # The runner skips a check if no committed state sends the secret there.
    skipped = {answer.address for answer in answers if answer.kind == "not-sent"}
    skipped &= {description.address for description in descriptions}
    if local_guard is None or not skipped:
        return answers
    unanswered = [description for description in descriptions if description.address in skipped]
    work.reporter.detail(
        f"validating {len(unanswered)} of them from here: the committed state doesn't let the runner send "
        "their secrets"
    )
    answered = [answer for answer in answers if answer.address not in skipped]
    return answered + check_locally(unanswered, work.directory, state.warehouse, local_guard)


def _by_runner(
    work: Workbench,
    asking: str,
    instance: Instance,
    descriptions: tuple[Description, ...],
    secret_values: SecretValues,
) -> list[Diagnostic]:
    announced: list[str] = []

    def wake(proposal: str) -> None:
        heard = work.runners.wake(instance, replace(secret_values, proposal=proposal)) is not None
        if not announced:
            announced.append(
                asking + whose_values(descriptions, secret_values if heard else NO_SECRET_VALUES)
            )
            work.reporter.stage(announced[0])

    return request_validation(
        work.store,
        instance.name,
        descriptions,
        wake=wake,
        ended=lambda: work.runners.ended(instance),
    )


def request_validation(
    store: Store,
    instance: str,
    descriptions: tuple[Description, ...],
    *,
    wake: Callable[[str], object],
    ended: Callable[[], MzplanError | None],
) -> list[Diagnostic]:
    """Let an instance's runner validate descriptions. Raises MZ060 if it doesn't answer in time.

    `wake` is called with the proposal's id twice: before the proposal exists, to send secret values, and
    after, to announce it.
    """
    id_ = new_proposal_id()
    wake(id_)
    proposal = store.proposals.make(instance, descriptions, id_)
    failpoint(Failpoint.APPLY_PROPOSED)
    try:
        wake(id_)
        until = time.monotonic() + ANSWER_WAIT
        while time.monotonic() < until:
            answer = store.proposals.read_answer(proposal)
            if answer is not None:
                return list(answer.diagnostics)
            problem = ended()
            if problem is not None:
                raise problem
            time.sleep(store.backend.poll_interval)
    finally:
        store.proposals.withdraw(proposal.id)
    raise error("MZ060.runner-instance", instance=instance, number=len(descriptions), answer_wait=ANSWER_WAIT)


def validate_changed(
    work: Workbench,
    plan: Plan,
    new: State,
    secret_values: SecretValues | None = None,
    *,
    local_guard: Guard | None,
    own_guard: Guard | None = None,
    more_queries: Sequence[ResourceState] = (),
) -> list[Diagnostic]:
    """Validate a plan's changes as they will be in the state `new`.

    Validates its queries, changed connections that nothing uses, and `more_queries`. `own_guard`: which
    secrets of connections this process may send in place of a runner that it would start.
    """
    queries = [*queries_to_validate(plan, new), *more_queries]
    looks = local_guard is not None
    dry = {query.instance for query in queries if looks and is_dry(new.instances, query.instance)}
    findings = [_dry(name) for name in sorted(dry, key=natural)]
    findings += validate_queries(work, new, queries, secret_values, local_guard=local_guard)
    alone = changed_alone(plan, new, looks)
    if local_guard is None and _runs_here(new) and _live_runner(work.store, new) is None:
        local_guard = own_guard  # a runner here has the same network and values, so start none for this
    findings += validate_unused(work, new, alone, secret_values, local_guard=local_guard)
    return by_cause(findings)


def _dry(name: str) -> Diagnostic:
    """Return the notice MZ143: the queries of this dry instance weren't validated."""
    return Diagnostic.of("MZ143.instance-dry", name=name)


def changed_alone(plan: Plan, new: State, on_request: bool = False) -> list[Address]:
    """Return changed connections that no running query uses, so that no query validates them.

    Includes connections changed below them. Without `on_request`, only types that are validated by default.
    """
    changed = {c.address for c in plan.changes if c.address.is_connection and c.after is not None}
    if not changed:
        return []
    affected = changed | {
        a for a in DependencyGraph.of(new.resources).all_dependents(changed) if a.is_connection
    }
    return [
        address
        for address in idle_connections(new)
        if address in affected
        and (on_request or resource_kind("connection", new.resources[address].type).validates_live)
    ]


def validate_unused(
    work: Workbench,
    state: State,
    connections: Sequence[Address],
    secret_values: SecretValues | None = None,
    *,
    local_guard: Guard | None,
) -> list[Diagnostic]:
    """Reach connections that no running query uses.

    They belong to no instance, so any live runner does it, or this process with `local_guard`.
    """
    able = _reached_alone(connections, state)
    for address in connections:
        if address not in able:
            type_ = state.resources[address].type
            work.reporter.detail(f"{address}: a connection of type {type_} can't be reached by itself")
    if not able:
        return []
    names = ", ".join(map(str, able))
    use = "Nothing uses" if set(able) <= set(unused_connections(state)) else "Only paused queries use"
    descriptions = tuple(as_description(state.resources[address], state.resources) for address in able)
    runner = _live_runner(work.store, state)
    if runner is not None:
        asking = f"{use} {names}: the runner of instance {runner.name} reaches it"
        return _by_runner_first(
            work, asking, runner, descriptions, secret_values or own_secret_values(state), state, local_guard
        )
    if local_guard is not None:
        work.reporter.stage(f"{use} {names}: reaching it from here")
        return check_locally(descriptions, work.directory, state.warehouse, local_guard)
    work.reporter.stage(
        f"notice: {use[0].lower()}{use[1:]} {names}, and every instance is dry: not validated (pass --live)"
    )
    return []


def _reached_alone(connections: Iterable[Address], state: State) -> list[Address]:
    """Return the connections that can be reached by themselves."""
    from mzplan.connectors.checks import is_reached_alone

    return [address for address in connections if is_reached_alone(state.resources[address].type)]


def _live_runner(store: Store, state: State) -> Instance | None:
    """Return an instance with a live runner that isn't dry; None if there is none."""
    able = (instance for instance in state.instances.values() if instance.type != "dry")
    return next((instance for instance in able if store.leases.leader(instance.name) is not None), None)


def _runs_here(state: State) -> bool:
    """Return whether the state's queries would run in a runner of this machine."""
    return not state.instances or any(instance.type == "embedded" for instance in state.instances.values())


def own_secret_values(state: State) -> SecretValues:
    """Return this process's values of the environment variables that a state refers to."""
    names = {
        match["name"]
        for address, resource in state.resources.items()
        for reference in resource_kind(address.kind, resource.type).secret_references(resource.body)
        if (match := REFERENCE.fullmatch(reference)) and match["provider"] == "env"
    }
    return SecretValues(values={name: os.environ[name] for name in sorted(names) if name in os.environ})


def whose_values(descriptions: Iterable[Description], secret_values: SecretValues) -> str:
    """Return the origin of a runner's secret values, such as `, with PG_PASSWORD from here`."""
    references = {reference for description in descriptions for reference in references_of(description)}
    ours = [name for name in secret_values.values if f"${{env:{name}}}" in references]
    parts = [f"{', '.join(ours)} from here"] if ours else []
    if len(ours) < len(references):
        parts.append("the runner's values for the others" if ours else "the runner's values of the secrets")
    return f", with {' and '.join(parts)}" if parts else ""
