"""plan and live validation: find out what apply would do, without changing anything."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.observed import Status
from mzplan.model.plan import Plan
from mzplan.model.resources import Configuration, is_dry
from mzplan.model.state import ResourceState, State
from mzplan.model.times import shortest
from mzplan.model.words import count, size
from mzplan.operations.connections import (
    find_rotations,
    reachability_of,
    unused_connections,
    warehouses_elsewhere,
)
from mzplan.operations.local_checks import by_cause, read_only_guard, validate
from mzplan.operations.project import Project, Workbench, read_state
from mzplan.operations.status import find_drift
from mzplan.plan import apply_changes, build_plan
from mzplan.plan.canaries import choose_canaries
from mzplan.plan.drift import started_because
from mzplan.warehouse.paths import absolute, local_path

if TYPE_CHECKING:
    from mzplan.operations.connections import Reachability
    from mzplan.secrets.policy import Guard


def validate_live(
    work: Workbench, policy: Guard | None = None
) -> tuple[Configuration, tuple[Reachability, ...], tuple[Diagnostic, ...]]:
    """Run the static checks, and reach every connection through its queries or by itself.

    Changes nothing. `policy`: the user's policy for secrets sent from here (see operations.local_checks).
    Returns the configuration, the reached connections, and warnings. Raises MzplanError with every problem.
    """
    from mzplan.operations.validation import validate_queries, validate_unused

    configuration = validate(work.project, work.reporter)
    state = read_state(work.store, work.reporter)
    wanted = apply_changes(state, build_plan(configuration, state), allow_loss=True)
    queries = [r for r in wanted.resources.values() if r.address in configuration.resources and r.digest]
    guard = read_only_guard(work.project, state, policy, "error")
    findings = validate_queries(work, wanted, queries, local_guard=guard)
    findings += validate_unused(work, wanted, unused_connections(wanted), local_guard=guard)
    findings = by_cause(findings)
    if any(d.severity == "error" for d in findings):
        raise MzplanError(findings)
    return configuration, reachability_of(wanted, queries), tuple(findings)


def make_plan(
    work: Workbench,
    *,
    targets: Sequence[Address] = (),
    replacing: Sequence[Address] = (),
    live: bool = False,
    policy: Guard | None = None,
    canary: float | None = None,
) -> Plan:
    """Return the plan that apply would make now. Changes nothing.

    `live`: validate the plan's queries as apply does, and add the findings to the plan's diagnostics. Without
    a live runner, this process validates, with the secrets that `policy` permits. `canary`: one query of
    each connection restarts first and has this many seconds to make progress.
    """
    state = read_state(work.store, work.reporter)
    plan = plan_configuration(work, state, targets, replacing, with_drift=True, canary=canary)
    return validated(work, state, plan, policy) if live else plan


def validated(
    work: Workbench,
    state: State,
    plan: Plan,
    policy: Guard | None = None,
) -> Plan:
    """Return the plan with its live findings; a plan with errors is returned unchanged.

    Without a live runner, this process validates.
    """
    if plan.errors:
        return plan
    from mzplan.operations.validation import validate_changed  # only with --live

    new = apply_changes(state, plan, allow_loss=True)  # a plan shows losses; apply refuses them
    guard = read_only_guard(work.project, state, policy, "warning")
    findings = validate_changed(work, plan, new, local_guard=guard)
    counted = {diagnostic.address for diagnostic in findings if diagnostic.kind == "data-loss"}
    others = (
        diagnostic
        for diagnostic in plan.diagnostics
        if diagnostic.kind != "data-loss" or diagnostic.address not in counted
    )
    return replace(plan, diagnostics=(*others, *findings))


def plan_configuration(
    work: Workbench,
    state: State,
    targets: Sequence[Address],
    replacing: Sequence[Address],
    configuration: Configuration | None = None,
    *,
    with_drift: bool = False,
    canary: float | None = None,
    rotated: Collection[Address] | None = None,
) -> Plan:
    """Return the plan of a configuration, by default the one in the files.

    `with_drift`: also find drift. `canary`: see make_plan. `rotated`: the queries that restart because a
    secret's value changed; None to find them here.
    """
    configuration = configuration or validate(work.project, work.reporter, state.resources)
    statuses = work.store.read_statuses()
    with work.reporter.working("planning"):
        rotations = find_rotations(work.directory, state, statuses)
        queries = rotations.queries
        if rotated is not None:
            queries = {address: queries.get(address, ()) for address in rotated if address in state.resources}
        plan = build_plan(configuration, state, statuses, targets=targets, replace=replacing, rotated=queries)
        elsewhere = (found for _, found in warehouses_elsewhere(work.project, state, statuses))
        notices = [
            rotations.notice(),
            *version_notices(work.project, state, statuses),
            *(replace(found, severity="warning") for found in elsewhere),
        ]
        plan = replace(
            plan,
            canaries=choose_canaries(plan, state, canary) if canary is not None else (),
            drift=find_drift(work.project, state, statuses, rotations.queries) if with_drift else (),
            started=started_because(plan.changes, statuses),
            environment=work.project.settings.environment,
            diagnostics=(
                *plan.diagnostics,
                *stored_data_notices(plan, work.project, state),
                *filter(None, notices),
            ),
        )
    work.reporter.detail(f"planned: {count(len(plan.changes), 'change')}")
    return plan


def version_notices(project: Project, state: State, statuses: Mapping[str, Status]) -> Iterator[Diagnostic]:
    """Yield notices about the Spark versions of instances.

    MZ045: the runner, or the runner that a command would start here, has another Spark than the last writer
    of the queries' checkpoints. MZ243: PySpark was replaced under a runner.
    """
    for name, status in sorted(statuses.items()):
        if status.replaced and project.store.leases.leader(name) is not None:
            yield _replaced(name, status)
        if status.versions is None:
            continue
        before = {str(seen.written_with) for seen in status.observations.values() if seen.written_with}
        if before:
            yield _notice(name, f"runs {status.versions}", " or ".join(sorted(before)))
        instance = state.instances.get(name)
        if instance is None or instance.type != "embedded" or project.store.leases.leader(name) is not None:
            continue

        from mzplan.host.spark_lines import installed_spark  # its importlib.metadata starts slowly

        installed = installed_spark()
        if installed is not None and installed != status.versions.spark:
            yield _notice(name, f"will run Spark {installed}, which is installed here", str(status.versions))


def _replaced(instance: str, status: Status) -> Diagnostic:
    return Diagnostic.of(
        "MZ243.pyspark-replaced", instance=instance, replaced=status.replaced, versions=status.versions
    )


def _notice(instance: str, runs: str, before: str) -> Diagnostic:
    return Diagnostic.of("MZ045.instance-checkpoints", instance=instance, runs=runs, before=before)


MAX_LISTED = 8
_LOOK = 2.0  # seconds that a command spends on measuring sizes


def stored_data_notices(plan: Plan, project: Project, state: State) -> Iterator[Diagnostic]:
    """Yield a notice (MZ152) if a plan removes stored data.

    Shows sizes for a warehouse on this machine, as far as they can be measured in two seconds.
    """
    removals = [c for c in plan.changes if c.action in ("delete", "replace") and c.before is not None]
    stored = [
        change.before
        for change in removals
        if change.before is not None
        and change.before.digest  # else it is a connection
        and not is_dry(plan.instances, change.before.instance)
    ]
    if not stored:
        return
    settings = plan.settings or state.settings or project.settings.runner
    wait = shortest(settings.retain_dropped)
    number = count(len(stored), "query", "queries")
    deleted = [str(c.address) for c in removals if c.action == "delete" and c.before in stored]
    detail = [*_lines(stored, project, plan.warehouse)]
    if any(c.action == "delete" and c.address.writes_target for c in removals):
        detail.append("Rows that deleted sinks have written stay in their targets.")
    named = " ".join(deleted) if len(deleted) <= MAX_LISTED else "ADDRESS …"
    yield Diagnostic.of(
        "MZ152.data-removed" if deleted else "MZ152.data-removed-after",
        number=number,
        wait=wait,
        why="\n".join(detail),
        named=named,
        serial=plan.serial,
    )


def _lines(stored: list[ResourceState], project: Project, warehouse: str) -> Iterator[str]:
    from mzplan.warehouse.checkpoints import Checkpoint, collection_path  # see _size

    place, until = absolute(project.settings.directory, warehouse), time.monotonic() + _LOOK
    for record in stored[:MAX_LISTED]:
        folders = {"checkpoint": Checkpoint.of(place, record.id, record.generation).folder}
        if record.address.writes_collection:
            folders = {"collection": collection_path(place, record.id, record.generation), **folders}
        shown = (f"{kind}{_size(folder, until)}" for kind, folder in folders.items())
        yield f"{record.address}: {' and '.join(shown)} ({record.id}, generation {record.generation})"
    if len(stored) > MAX_LISTED:
        yield f"and the data of {len(stored) - MAX_LISTED} more"


def _size(folder: str, until: float) -> str:
    """Return ` of 1.5 MiB` or ` (nothing yet)`; "" without time left, or for a folder elsewhere."""
    from mzplan.warehouse.stored_files import stored_in  # only for a plan that removes storage

    local = local_path(folder)
    if local is None or time.monotonic() > until or not local.parents[2].is_dir():
        return ""
    try:
        stored = stored_in(folder)
    except OSError:  # a runner is changing the folder
        return ""
    return f" of {size(stored.bytes)}" if stored is not None else " (nothing yet)"
