"""The planner: Configuration and State → Plan.

One pass finds the differing resources. The graph finds the queries that these could affect, and the digests
of inlined descriptions decide which ones they do affect. After the first pass, the cost grows with the
changes, not with the number of resources.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from mzplan.model.address import Address, natural
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.graph import DependencyGraph
from mzplan.model.observed import Status
from mzplan.model.plan import Plan
from mzplan.model.resources import Configuration, Instance
from mzplan.model.state import ResourceState, State
from mzplan.plan.canaries import queries_to_resume
from mzplan.plan.comparison import settings_changes
from mzplan.plan.difference import (
    all_without_new_defaults,
    check_assumed,
    check_known,
    find_difference,
    select,
)
from mzplan.plan.drift import find_pending
from mzplan.plan.effects.function_change import upgraded_functions
from mzplan.plan.guards import (
    check_clear_text,
    check_overrides,
    check_project,
    check_replaceable,
    same_place,
)
from mzplan.plan.moves import find_moves, rename_records, undeclared_moves

_NO_STATUS: Mapping[str, Status] = {}
_NOTHING_ROTATED: Mapping[Address, tuple[str, ...]] = {}
_NO_MOVES: Mapping[Address, Address] = {}


def build_plan(
    configuration: Configuration,
    state: State,
    statuses: Mapping[str, Status] = _NO_STATUS,
    targets: Collection[Address] = (),
    replace: Collection[Address] = (),
    rotated: Mapping[Address, tuple[str, ...]] = _NOTHING_ROTATED,
    moves: Mapping[Address, Address] = _NO_MOVES,
) -> Plan:
    """Return the changes that make the state equal to the configuration.

    Errors that forbid applying the plan are among its diagnostics. Raises MzplanError MZ070 for an unknown
    address in `targets` or `replace`, or a connection in `replace`.

    - `statuses`: by instance, to find pending queries and migrations that have run.
    - `targets`: limit the plan to these, the changed resources that they need, and the dependents of all of
      them.
    - `replace`: begins a new generation of these, whether they changed or not.
    - `rotated`: queries that run with an old value of a secret, and the references whose value has changed.
      These queries restart.
    - `moves`: renames that no `moved_from` declares: old address → new address.
    """
    wanted, committed = all_without_new_defaults(configuration.resources, state.resources), state.resources
    if targets:
        check_known(
            targets,
            wanted.keys() | committed.keys(),
            "--target",
            "Neither the files nor the state contain it.",
            wanted,
        )
    check_known(replace, wanted, "--replace", "No file declares it.", wanted)
    check_replaceable(replace)
    difference = find_difference(wanted, committed)
    problems: tuple[Diagnostic, ...] = ()
    originals: Mapping[Address, ResourceState] = {}
    if difference.created and difference.deleted:
        declared, problems = find_moves(wanted, committed, difference.created)
        if moves := {**declared, **moves}:
            committed, originals = rename_records(committed, moves)
            difference = find_difference(wanted, committed)
            renamed = originals.keys() & wanted.keys()
            difference = dataclasses.replace(difference, updated=difference.updated | renamed)
    renames = undeclared_moves(wanted, committed) if difference.created and difference.deleted else {}
    if targets and difference.addresses:
        difference = select(difference, targets, wanted, committed)
    upgraded = upgraded_functions(state.resources, statuses)
    if rotated or upgraded:
        renamed_to = {original.address: address for address, original in originals.items()}
        rotated = {renamed_to.get(address, address): references for address, references in rotated.items()}
        upgraded = {renamed_to.get(address, address): reason for address, reason in upgraded.items()}
        kept = committed.keys() & wanted.keys()
        if targets:
            kept &= {*targets, *DependencyGraph.of_both(wanted, committed).all_dependents(targets)}
        rotated = {address: references for address, references in rotated.items() if address in kept}
        upgraded = {address: reason for address, reason in upgraded.items() if address in kept}
    forced = frozenset(replace) & committed.keys()
    instances = _instances(configuration, state, bool(targets))
    keeps_settings = bool(targets) or configuration.settings == state.settings
    settings = None if keeps_settings else configuration.settings
    plan = Plan(
        project=configuration.project,
        lineage=state.lineage,
        serial=state.serial,
        warehouse=_warehouse(configuration, state),
        variables=configuration.variables,
        instances=instances,
        instances_changed=state.serial > 0 and dict(instances) != dict(state.instances),
        settings=settings,
        settings_changes=settings_changes(state, settings, instances),
        unaffected=len(wanted),
        pending=find_pending(state, statuses),
        resuming=queries_to_resume(wanted, state, statuses, targets),
        targets=tuple(sorted(targets, key=natural)),
        replacing=tuple(sorted(replace, key=natural)),
        analyses={address: resource.analysis for address, resource in wanted.items() if resource.analysis},
        diagnostics=(
            *check_project(configuration, state),
            *check_assumed(configuration.resources, state.resources),
            *check_clear_text(configuration.resources.values()),
            *problems,
        ),
    )
    if not (difference.addresses or forced or rotated or upgraded):
        found = check_overrides(committed.values())
        return dataclasses.replace(plan, diagnostics=(*plan.diagnostics, *found))

    from mzplan.plan.change_planner import ChangePlanner  # parses SQL, which a plan without changes doesn't

    planner = ChangePlanner(
        committed, originals, wanted, difference, forced, rotated, upgraded, statuses, state.instances
    )
    return planner.complete(plan, renames)


def _instances(configuration: Configuration, state: State, has_targets: bool) -> Mapping[str, Instance]:
    """Return the instances after the plan. With targets, all of the state's instances stay."""
    if has_targets:
        return {**state.instances, **configuration.instances}
    return configuration.instances


def _warehouse(configuration: Configuration, state: State) -> str:
    """Return the warehouse after the plan, in the committed spelling if both name the same warehouse."""
    if same_place(configuration.warehouse, state.warehouse):
        return state.warehouse
    return configuration.warehouse
