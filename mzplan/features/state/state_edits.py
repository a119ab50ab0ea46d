"""Edits of the state itself: rename, forget, adopt, roll back.

Each edit holds the lock and commits a new serial, which runners follow like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mzplan.features.state.edit_plans import (
    forgotten_by,
    importable,
    plan_adopt,
    plan_forget,
    plan_move,
    plan_rollback,
)
from mzplan.model.address import Address, natural
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.history import HistoryEntry
from mzplan.model.plan import Plan
from mzplan.model.state import State
from mzplan.operations.apply import ApplyOptions, ApplyResult, CommitRequest, carry_out, refuse
from mzplan.operations.commits import record_of, record_outcome
from mzplan.operations.local_checks import validate
from mzplan.operations.project import LOCK_WAIT, Project, Runners, Workbench, committing, locked, read_state
from mzplan.operations.validation import validate_changed
from mzplan.plan import apply_changes
from mzplan.secrets.policy import NO_SECRET_VALUES
from mzplan.warehouse.paths import absolute, local_path


def move(
    work: Workbench,
    old: Address,
    new: Address,
    message: str | None = None,
) -> Plan:
    """Rename a resource (`state mv`)."""
    why = message if message is not None else f"{old} is {new}"
    return _edit(work, "state mv", lambda state: plan_move(state, old, new), why)


def forget(
    work: Workbench,
    addresses: list[Address],
    message: str | None = None,
) -> Plan:
    """Take resources out of the state (`state rm`). Their storage stays and can be imported again."""

    def keep(plan: Plan, new: State) -> State:
        return replace(new, forgotten={**new.forgotten, **forgotten_by(plan)})

    why = message if message is not None else f"Forgot {', '.join(map(str, addresses))}"
    store = work.store
    return _edit(
        work,
        "state rm",
        lambda state: plan_forget(state, addresses, store.read_statuses()),
        why,
        finish=keep,
    )


def roll_back(
    work: Workbench,
    serial: int | None,
    approve: Callable[[Plan, list[HistoryEntry]], None],
    options: ApplyOptions,
) -> ApplyResult:
    """Restore an earlier serial (None: the previous one) as the next serial (`state rollback`).

    Waits for the runners, as `apply` does. `approve` also gets the commits to undo, newest first."""
    undone_commits: list[HistoryEntry] = []
    serials = work.store.serials()
    current = read_state(work.store, work.reporter).serial
    target = serial if serial is not None else max((s for s in serials if s < current), default=None)

    def plan_target(state: State) -> Plan:
        earlier = work.store.read_serial(target) if target is not None else None
        if earlier is None or earlier.lineage != state.lineage:
            available = f"{serials[0]} to {serials[-1]}" if serials else "none"
            raise error(
                "MZ038.no-serial-go" if target is not None else "MZ038.no-history",
                target=target,
                store_serial=state.serial,
                available=available,
            )
        undone_commits.extend(e for e in work.store.read_history() if e.serial > earlier.serial)
        return plan_rollback(state, earlier)

    why = options.message if options.message is not None else f"Back to serial {target}"
    request = CommitRequest(
        command="state rollback",
        make_plan=plan_target,
        approve=lambda plan: approve(plan, undone_commits),
        options=replace(options, message=why),
    )
    return carry_out(work, request)


def plan_import(
    work: Workbench,
    state: State,
    address: Address,
    id_: str | None,
    generation: int | None,
) -> Plan:
    """Return the plan of `import`: a declared resource adopts the checkpoint and table stored under `id_`.

    If `id_` is None, uses the id that `state rm` removed from this address. Raises MZ165 unless there is
    exactly one."""
    configuration = validate(work.project, work.reporter)
    importable(configuration, state, address)
    if id_ is None:
        candidates = {i: g for i, (a, g) in state.forgotten.items() if a == address}
        if len(candidates) != 1:
            raise error(
                "MZ165.mzplan-cannot",
                address=address,
                number=len(candidates),
                candidates=f": {', '.join(sorted(candidates, key=natural))}." if candidates else ".",
            )
        ((id_, forgotten_generation),) = candidates.items()
        generation = generation or forgotten_generation
    if generation is None:
        generation = state.forgotten[id_][1] if id_ in state.forgotten else 1
    plan = plan_adopt(configuration, state, address, id_, generation)
    _check_storage(work.project, plan.warehouse, address, id_, generation)
    return plan


def _edit(
    work: Workbench,
    command: str,
    make_plan: Callable[[State], Plan],
    message: str,
    *,
    finish: Callable[[Plan, State], State] | None = None,
) -> Plan:
    """Plan, let live runners validate, commit, and wake them.

    Starts no runner and waits for no query."""
    store = work.store
    with locked(store, work.reporter, command):
        state = read_state(store, work.reporter)
        plan = make_plan(state)
        refuse(plan, allow_replace=True)
        if plan.is_empty:
            return plan
        new = apply_changes(state, plan, record=record_of(work.project, command, plan, message))
        new = finish(plan, new) if finish is not None else new
        findings = validate_changed(work, plan, new, local_guard=None)
        if any(finding.severity == "error" for finding in findings):
            raise MzplanError(findings)
        with committing(work.reporter, new.serial):
            store.commit(new, state)
        record_outcome(store, work.reporter, new, None)
    wake(work.runners, new)
    return plan


def wake(runners: Runners, state: State) -> None:
    """Wake the runners on this machine, and wait until they take in the commit."""
    for instance in state.instances.values():
        runners.wake(instance, NO_SECRET_VALUES)
        runners.read_commit(instance, LOCK_WAIT)


def _check_storage(project: Project, warehouse: str, address: Address, id_: str, generation: int) -> None:
    """Raise MZ165 if the warehouse is on this machine and the storage to adopt is missing.

    If the warehouse is elsewhere, the runner checks the storage.
    """
    place = local_path(absolute(project.settings.directory, warehouse))
    if place is None:
        return
    below = f"{id_}/g{generation}"
    folders = [Path(place) / "checkpoints" / below]
    if address.writes_collection:
        folders.append(Path(place) / "collections" / below)
    missing = [str(path) for path in folders if not path.is_dir()]
    if missing:
        raise _nothing_to_adopt(address, missing)


def _nothing_to_adopt(address: Address, missing: list[str]) -> MzplanError:
    return error("MZ165.nothing-adopt", address=address, missing=missing)
