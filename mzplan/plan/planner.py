"""The planner: Configuration and State → Plan.

One pass finds the differing resources. The graph finds the queries that these could affect, and the digests
of inlined descriptions decide which ones they do affect. After the first pass, the cost grows with the
changes, not with the number of resources.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from mzplan.model.address import Address, natural
from mzplan.model.cause import NEW, CauseKind
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.graph import DependencyGraph
from mzplan.model.observed import Status
from mzplan.model.plan import Change, Effect, FieldChange, Plan, heaviest
from mzplan.model.resources import Configuration, Instance, Resource
from mzplan.model.state import ResourceState, State
from mzplan.plan.canaries import queries_to_resume
from mzplan.plan.commit import wanted_state
from mzplan.plan.comparison import compare_resources, settings_changes
from mzplan.plan.dependencies import (
    Dependencies,
    DependencyEffects,
    EffectByDependency,
    paths_to,
    reason_for,
    weigh_references,
)
from mzplan.plan.difference import (
    Difference,
    all_without_new_defaults,
    check_assumed,
    check_known,
    find_difference,
    select,
)
from mzplan.plan.drift import find_pending
from mzplan.plan.effects.broken_columns import check_broken_columns
from mzplan.plan.effects.function_change import state_verdict, upgraded_functions
from mzplan.plan.effects.later_columns import with_column_effects, with_later_columns
from mzplan.plan.effects.query_change import (
    query_change,
    with_input_effects,
    with_query_effects,
    with_recomputation,
    with_replace_costs,
)
from mzplan.plan.effects.row_migration import check_migrations, predecessor_of
from mzplan.plan.effects.state_partitions import with_partition_effects
from mzplan.plan.effects.targets import with_targets
from mzplan.plan.guards import (
    check_changes,
    check_clear_text,
    check_delivery,
    check_project,
    check_replaceable,
    known_losses,
    same_place,
    unready_generations,
)
from mzplan.plan.moves import (
    as_move,
    check_undeclared,
    find_moves,
    moved_references,
    rename_records,
    undeclared_moves,
)
from mzplan.plan.notices import check_current_views, check_overrides, notices_of
from mzplan.plan.warnings import check_joins, check_mixed_results, check_shared_targets, with_inputs
from mzplan.schema.description import digest_of
from mzplan.secrets.references import references_in

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
    planner = _Planner(
        committed, originals, wanted, difference, forced, rotated, upgraded, statuses, state.instances
    )
    changes = planner.changes()
    downstream = planner.downstream(changes)
    instances = _instances(configuration, state, bool(targets))
    keeps_settings = bool(targets) or configuration.settings == state.settings
    settings = None if keeps_settings else configuration.settings
    changed = {change.address for change in changes}
    losses = tuple(known_losses(changes, statuses))
    return Plan(
        project=configuration.project,
        lineage=state.lineage,
        serial=state.serial,
        warehouse=_warehouse(configuration, state),
        variables=configuration.variables,
        instances=instances,
        instances_changed=state.serial > 0 and dict(instances) != dict(state.instances),
        settings=settings,
        settings_changes=settings_changes(state, settings, instances),
        changes=changes,
        downstream=downstream,
        feeds=planner.feeds(changed, downstream),
        unaffected=len(wanted) - sum(a in wanted for a in changed) - len(downstream),
        pending=find_pending(state, statuses),
        resuming=queries_to_resume(wanted, state, statuses, targets),
        targets=tuple(sorted(targets, key=natural)),
        replacing=tuple(sorted(replace, key=natural)),
        losing=tuple(loss.address for loss in losses if loss.address is not None),
        analyses={address: resource.analysis for address, resource in wanted.items() if resource.analysis},
        diagnostics=(
            *check_project(configuration, state),
            *check_assumed(configuration.resources, state.resources),
            *check_clear_text(configuration.resources.values()),
            *problems,
            *check_undeclared({new: old for new, old in renames.items() if {new, old} <= changed}),
            *check_changes(changes, renames),
            *notices_of(changes),
            *check_overrides((planner.after or committed).values()),
            *losses,
            *unready_generations(changes, statuses),
            *check_mixed_results(changes, planner.after or state.resources, statuses),
            *check_migrations(changes, statuses, state.instances),
            *check_delivery(changes, planner.after or state.resources),
            *check_shared_targets(changes, planner.after or state.resources),
            *check_joins(changes, planner.after or state.resources),
            *check_current_views(changes, planner.after or state.resources),
            *check_broken_columns(changes, planner.before, planner.after),
        ),
    )


class _Planner:
    """The work of one plan. `after`: the records planned so far, at first the committed ones."""

    def __init__(
        self,
        committed: Mapping[Address, ResourceState],
        originals: Mapping[Address, ResourceState],
        wanted: Mapping[Address, Resource],
        difference: Difference,
        forced: frozenset[Address],
        rotated: Mapping[Address, tuple[str, ...]],
        upgraded: Mapping[Address, str],
        statuses: Mapping[str, Status],
        instances: Mapping[str, Instance],
    ):
        """`committed` holds the records under their new names.

        `originals` holds, by new address, the committed records of resources that move or refer to a moved
        resource. `upgraded` holds the queries with another version of their function, and the reason.
        """
        self.before = committed
        self.originals = originals
        self.difference = difference
        self.forced = forced
        self.rotated = rotated
        self.upgraded = upgraded
        self.statuses = statuses
        self.instances = instances
        self.after: dict[Address, ResourceState] = {}
        self.planned: dict[Address, Change] = {}
        self.effects: EffectByDependency = {}
        self.memo: dict[Address, Any] = {}
        if not difference.addresses and not forced and not rotated and not upgraded:
            self.graph = DependencyGraph({})
            return
        self.after = dict(committed)
        for address in difference.deleted:
            del self.after[address]
        for address in difference.created | difference.updated:
            self.after[address] = wanted_state(wanted[address], committed.get(address))
        self.graph = DependencyGraph.of(self.after)
        self.dependencies = Dependencies(self.before, self.after, self.planned)

    def changes(self) -> tuple[Change, ...]:
        """Return every change, dependencies first; then the deletes, dependents first."""
        changed = self.difference.created | self.difference.updated | self.forced
        changed |= self.rotated.keys() | self.upgraded.keys()
        if changed:
            for address in self.graph.order(changed | self.graph.all_dependents(changed)):
                self._plan(address)
        changes = [self._with_effect(change) for change in self.planned.values()]
        changes = with_targets(with_inputs(changes, self.before, self.statuses), self.statuses)
        changes = with_replace_costs(changes, self.after, self.statuses)
        return (*changes, *self._deletes())

    def downstream(self, changes: tuple[Change, ...]) -> tuple[Address, ...]:
        """Return the queries downstream of queries that stop and start. They keep running."""
        stopped = [
            change.address
            for change in changes
            if change.before is not None and _runs(change.after) and change.effect in ("restart", "replace")
        ]
        changed = {change.address for change in changes}
        return tuple(sorted(self.graph.all_dependents(stopped) - changed, key=natural)) if stopped else ()

    def feeds(
        self, changed: Collection[Address], downstream: tuple[Address, ...]
    ) -> tuple[tuple[Address, Address], ...]:
        """Return the connected pairs (changed resource, downstream query)."""
        involved = {*changed, *downstream}
        return tuple(
            (used, user)
            for user in downstream
            for used in sorted(set(self.after[user].references.values()), key=natural)
            if used in involved
        )

    def _plan(self, address: Address) -> None:
        before, after = self.before.get(address), self.after[address]
        if before is None:
            created = dataclasses.replace(after, digest=self._digest(after))
            self._record(Change(address=address, action="create", effect="none", reason=NEW, after=created))
            return
        effects = self.dependencies.of(before, after)
        fields: tuple[FieldChange, ...] = ()
        if before is not after:
            fields = weigh_references(compare_resources(before, after), effects.repointed)
            fields = with_recomputation(fields, before, after)
        original = self.originals.get(address)
        if original is not None:
            fields = tuple(
                sorted((*fields, *moved_references(original, before)), key=lambda f: natural(f.path))
            )
        change = self._change(before, after, fields, effects)
        if change is not None:
            self._record(change if original is None else as_move(change, original))

    def _change(
        self,
        before: ResourceState,
        after: ResourceState,
        fields: tuple[FieldChange, ...],
        effects: DependencyEffects,
    ) -> Change | None:
        forced, upgraded = after.address in self.forced, self.upgraded.get(after.address, "")
        starts_over = forced or (upgraded and state_verdict(after)[0] != "kept")
        changed = query_change(before, after, (self.before, self.after))
        fields = with_input_effects(with_query_effects(fields, changed, after), before, after)
        fields = with_column_effects(fields, before, after)
        fields = with_partition_effects(fields, before, after, self.statuses)
        own = heaviest([change.effect for change in fields])
        # Whether the upstream stays the same: another connection may lead to another upstream.
        keeps_upstream = all(field.effect != "replace" for field in fields if field.path in after.references)
        may_migrate = not forced and keeps_upstream and effects.effect != "replace"
        effect: Effect
        cause_kind: CauseKind | None = None
        if _runs(before) and (starts_over or "replace" in (own, effects.effect)):
            effect = "replace"
            predecessor = None
            if may_migrate:
                predecessor = predecessor_of(before, after, self.statuses, self.instances)
            after = dataclasses.replace(
                after, generation=before.next_generation, predecessor=predecessor, later_columns=""
            )
            after = dataclasses.replace(after, digest=self._digest(after))
        else:
            after = with_later_columns(after, before)
            digest = self._digest(after)
            same = digest == before.digest or self._same_description(before, digest)
            effect = "in-place" if same else "restart"
            after = dataclasses.replace(after, digest=before.digest if same else digest)
            if same and (after.address in self.rotated or upgraded):
                # Like a manual restart: the description is unchanged, and the query restarts.
                effect, cause_kind = "restart", "upgrade" if upgraded else "secret"
                after = dataclasses.replace(after, restart_token=before.restart_token + 1)
                after = dataclasses.replace(after, digest=self._digest(after))
        original = self.originals.get(after.address)
        renamed = original is not None and original.address != after.address
        if effect == "in-place" and not fields and not renamed:
            return None
        # Digests decide: a change that doesn't change the description causes nothing.
        causes = {} if effect == "in-place" else effects.causes
        for cause, weight in causes.items():
            self.effects[cause] = heaviest([self.effects.get(cause, "none"), weight])
        paths = paths_to(after, causes.__contains__, self.after) if causes else {}
        rotated = self.rotated.get(after.address, ())
        holders = (
            paths_to(after, lambda connection: self._holds(connection, rotated), self.after)
            if rotated
            else {}
        )
        return Change(
            address=after.address,
            action="replace" if effect == "replace" else "update" if fields else "restart",
            effect="forbidden" if own == "forbidden" else effect,
            fields=fields,
            reason=reason_for(fields, causes, paths, forced, rotated, holders, upgraded),
            triggered_by=tuple(sorted(causes, key=natural)),
            ways=paths,
            before=before,
            after=after,
            cause=cause_kind,
            query=changed,
        )

    def _holds(self, address: Address, references: Collection[str]) -> bool:
        return not set(references).isdisjoint(references_in(self.after[address].body))

    def _digest(self, resource: ResourceState) -> str:
        return digest_of(resource, self.after, self.memo)

    def _same_description(self, before: ResourceState, digest: str) -> bool:
        """Whether the committed digest differs only because an older mzplan computed it differently."""
        if before.digest.partition(":")[0] == digest.partition(":")[0]:
            return False
        return digest_of(before, self.before) == digest

    def _record(self, change: Change) -> None:
        assert change.after is not None
        self.planned[change.address] = change
        self.after[change.address] = change.after

    def _with_effect(self, change: Change) -> Change:
        """Return the change of a connection with the heaviest effect that it has on any query."""
        effect = self.effects.get(change.address)
        if effect is None:
            return change
        return dataclasses.replace(change, effect=heaviest([change.effect, effect]))

    def _deletes(self) -> list[Change]:
        if not self.difference.deleted:
            return []
        order = DependencyGraph.of(self.before).order(self.difference.deleted)
        return [
            Change(
                address=address,
                action="delete",
                effect="none",
                reason="no longer declared",
                before=self.originals.get(address, self.before[address]),
            )
            for address in reversed(order)
        ]


def _runs(resource: ResourceState | None) -> bool:
    """Whether the record is a query's. A connection has no digest."""
    return resource is not None and resource.digest != ""


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
