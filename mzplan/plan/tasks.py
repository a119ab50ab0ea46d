"""Plans of tasks: one-off work before a query starts, such as a backfill.

The state holds a task until it is done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from mzplan.model.address import Address, natural
from mzplan.model.diagnostics import Diagnostic, error
from mzplan.model.graph import DependencyGraph
from mzplan.model.observed import Status
from mzplan.model.plan import Change, Plan
from mzplan.model.state import ResourceState, State, committed_record
from mzplan.model.tasks import Task
from mzplan.plan.dependencies import task_reason
from mzplan.plan.manual_changes import plan_of
from mzplan.schema.description import digest_of

MAX_LISTED = 5  # addresses in a message


def unfinished_tasks(record: ResourceState, statuses: Mapping[str, Status]) -> tuple[Task, ...]:
    """Return the tasks of a query that aren't known to be done."""
    seen = record.observed_in(statuses)
    return tuple(task for task in record.own_tasks if not record.has_done(task, seen))


def plan_task(
    state: State,
    before: ResourceState,
    kind: str,
    title: str,
    arguments: Mapping[str, Any],
    statuses: Mapping[str, Status],
    notices: tuple[Diagnostic, ...] = (),
) -> Plan:
    """Plan another task of a query (see Task). Raises MzplanError MZ275 if an equal task is open."""
    address, unfinished = before.address, unfinished_tasks(before, statuses)
    new = Task(
        kind=kind,
        arguments=arguments,
        serial=state.serial + 1,
        generation=before.generation,
        title=title,
    )
    if same := next((task for task in unfinished if (task.kind, task.arguments) == (kind, arguments)), None):
        cancel = f"mzplan {new.command} {address} --cancel"
        raise error("MZ275.already-requested", address=address, same=same, serial=same.serial, cancel=cancel)
    return _plan_tasks(state, before, (*unfinished, new), statuses, notices)


def sinks_by_mode(state: State, address: Address) -> tuple[list[Address], list[Address]]:
    """Return the sinks downstream of a query that append, and the sinks that write by key, each in order."""
    downstream = DependencyGraph.of(state.resources).all_dependents([address]) - {address}
    sinks: tuple[list[Address], list[Address]] = ([], [])
    for sink in sorted((address for address in downstream if address.writes_target), key=natural):
        sinks[state.resources[sink].body.get("mode", "append") != "append"].append(sink)
    return sinks


def shown_addresses(addresses: Sequence[Address]) -> str:
    """Return the first addresses of a list as text."""
    return ", ".join(map(str, addresses[:MAX_LISTED])) + (" …" if len(addresses) > MAX_LISTED else "")


def overwriting_sinks(address: Address, sinks: Sequence[Address], rows: str, hint: str) -> Diagnostic:
    """Return MZ045 for sinks that would upsert old rows. `rows`: these rows of the query, in words."""
    return Diagnostic.of(
        "MZ045.over-newer",
        address=address,
        number=len(sinks),
        rows=rows,
        shown_addresses=shown_addresses(sinks),
        how=hint,
    )


def plan_without_tasks(state: State, address: Address, command: str, statuses: Mapping[str, Status]) -> Plan:
    """Plan to cancel the open tasks of a command. Raises MzplanError MZ275 if there are none."""
    before = committed_record(state, address)
    unfinished = unfinished_tasks(before, statuses)
    others = [task for task in unfinished if task.command != command]
    if len(others) == len(unfinished):
        raise error("MZ275.no-open", address=address, command=command)
    return _plan_tasks(state, before, others, statuses)


def _plan_tasks(
    state: State,
    before: ResourceState,
    tasks: Sequence[Task],
    statuses: Mapping[str, Status],
    notices: tuple[Diagnostic, ...] = (),
) -> Plan:
    """Return a plan that replaces all tasks of a query with these. The query restarts for them."""
    after = dataclasses.replace(before, tasks=tuple(tasks), restart_token=before.restart_token + 1)
    after = dataclasses.replace(after, digest=digest_of(after, state.resources))
    change = Change(
        address=before.address,
        action="restart",
        effect="restart",
        reason=task_reason(before, after),
        before=before,
        after=after,
        cause="hand",
    )
    return plan_of(state, [change], statuses, notices, restarting=True)
