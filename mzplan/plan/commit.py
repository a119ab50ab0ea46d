"""Commit: the State after a plan, with its records. The store writes it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

from mzplan.model.history import CommitRecord
from mzplan.model.plan import Plan
from mzplan.model.resources import Resource
from mzplan.model.state import ResourceState, State, needed_by
from mzplan.plan.canaries import canaries_after
from mzplan.plan.commit_causes import causes_of


def new_id() -> str:
    """Return a random id of 16 hex digits, which names a checkpoint and a collection."""
    return os.urandom(8).hex()  # like secrets.token_hex, without that module's imports


def new_lineage() -> str:
    """Return a new lineage. It tells apart the states of two projects with equal serials."""
    import uuid  # needed only for a project's first apply

    return str(uuid.uuid4())


def apply_changes(
    state: State,
    plan: Plan,
    make_id: Callable[[], str] = new_id,
    make_lineage: Callable[[], str] = new_lineage,
    *,
    record: CommitRecord | None = None,
    allow_loss: bool = False,
) -> State:
    """Return the state after the plan: one serial later, with ids for created resources.

    Records that the plan doesn't change stay as they are, except their analyses. The caller checks the plan's
    diagnostics, which say whether it may be applied.

    - `record`: who commits the plan, when, from what, and why.
    - `allow_loss`: sources that the plan replaces may begin without the records that can't be read again.
    """
    resources = dict(state.resources)
    causes = causes_of(plan, state.serial + 1)
    for change in plan.changes:
        if change.after is None:
            resources.pop(change.address, None)
        else:
            after = change.after
            if allow_loss and change.action == "replace" and change.address.reads_upstream:
                after = dataclasses.replace(after, may_lose=after.generation)
            former = None
            if change.before is not None:
                former = resources.pop(change.before.address, None)  # another address if it was moved
            because = causes.get(change.address) or (former.because if former is not None else None)
            after = dataclasses.replace(after, because=because)
            resources[change.address] = after if after.id else dataclasses.replace(after, id=make_id())
    for address, analysis in plan.analyses.items():
        if address in resources and resources[address].analysis != analysis:
            resources[address] = dataclasses.replace(resources[address], analysis=analysis)
    used_ids = {resource.id for resource in resources.values()} if state.forgotten else set()
    return State(
        format_version=state.format_version,
        project=plan.project,
        lineage=state.lineage or make_lineage(),
        serial=state.serial + 1,
        warehouse=plan.warehouse,
        instances=plan.instances,
        resources=resources,
        forgotten={id_: place for id_, place in state.forgotten.items() if id_ not in used_ids},
        canaries=canaries_after(state, plan, resources) if state.canaries or plan.canaries else (),
        commit=record,
        environment=plan.environment,
        settings=plan.settings or state.settings,
    )


def wanted_state(resource: Resource, before: ResourceState | None) -> ResourceState:
    """Return the planned record: the declaration, with everything else from the committed record."""
    record = before or ResourceState(address=resource.address, id="", type=resource.type, body={})
    return dataclasses.replace(
        record,
        address=resource.address,
        type=resource.type,
        body=resource.body,
        dependencies=needed_by(resource.references),
        references=resource.references,
        because=None,
        analysis="",
    )
