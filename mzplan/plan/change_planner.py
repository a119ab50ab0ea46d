"""Plans the changes of resources that differ, their effects on other queries, and the problems they cause."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from mzplan.model.address import Address, natural
from mzplan.model.cause import NEW, CauseKind
from mzplan.model.graph import DependencyGraph
from mzplan.model.observed import Status
from mzplan.model.plan import Change, Effect, FieldChange, Plan, heaviest
from mzplan.model.resources import Instance, Resource
from mzplan.model.state import ResourceState
from mzplan.plan.commit import wanted_state
from mzplan.plan.comparison import compare_resources
from mzplan.plan.dependencies import (
    Dependencies,
    DependencyEffects,
    EffectByDependency,
    paths_to,
    reason_for,
    weigh_references,
)
from mzplan.plan.difference import Difference
from mzplan.plan.effects.broken_columns import check_broken_columns
from mzplan.plan.effects.function_change import state_verdict
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
    check_delivery,
    check_overrides,
    known_losses,
    unready_generations,
)
from mzplan.plan.moves import as_move, check_undeclared, moved_references
from mzplan.plan.notices import check_current_views, notices_of
from mzplan.plan.warnings import check_joins, check_mixed_results, check_shared_targets, with_inputs
from mzplan.schema.description import digest_of
from mzplan.secrets.references import references_in


class ChangePlanner:
    """The work of one plan that changes something. `after`: the records that are planned so far."""

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
        self.wanted = wanted
        self.difference = difference
        self.forced = forced
        self.rotated = rotated
        self.upgraded = upgraded
        self.statuses = statuses
        self.instances = instances
        self.planned: dict[Address, Change] = {}
        self.effects: EffectByDependency = {}
        self.memo: dict[Address, Any] = {}
        self.after = dict(committed)
        for address in difference.deleted:
            del self.after[address]
        for address in difference.created | difference.updated:
            self.after[address] = wanted_state(wanted[address], committed.get(address))
        self.graph = DependencyGraph.of(self.after)
        self.dependencies = Dependencies(self.before, self.after, self.planned)

    def complete(self, plan: Plan, renames: Mapping[Address, Address]) -> Plan:
        """Return the plan with the changes, what they reach, and the problems that they cause.

        `renames`: new address → old address of resources that look renamed, without a `moved_from`.
        """
        changes = self.changes()
        downstream = self.downstream(changes)
        changed = {change.address for change in changes}
        losses = tuple(known_losses(changes, self.statuses))
        after, statuses = self.after, self.statuses
        return dataclasses.replace(
            plan,
            changes=changes,
            downstream=downstream,
            feeds=self.feeds(changed, downstream),
            unaffected=plan.unaffected - sum(a in self.wanted for a in changed) - len(downstream),
            losing=tuple(loss.address for loss in losses if loss.address is not None),
            diagnostics=(
                *plan.diagnostics,
                *check_undeclared({new: old for new, old in renames.items() if {new, old} <= changed}),
                *check_changes(changes, renames),
                *notices_of(changes),
                *check_overrides(after.values()),
                *losses,
                *unready_generations(changes, statuses),
                *check_mixed_results(changes, after, statuses),
                *check_migrations(changes, statuses, self.instances),
                *check_delivery(changes, after),
                *check_shared_targets(changes, after),
                *check_joins(changes, after),
                *check_current_views(changes, after),
                *check_broken_columns(changes, self.before, after),
            ),
        )

    def changes(self) -> tuple[Change, ...]:
        """Return every change, dependencies first; then the deletes, dependents first."""
        changed = self.difference.created | self.difference.updated | self.forced
        changed |= self.rotated.keys() | self.upgraded.keys()
        if changed:
            for address in self.graph.order(changed | self.graph.all_dependents(changed)):
                self._plan(address)
        changes = [self._with_effect(change) for change in self.planned.values()]
        changes = with_targets(with_inputs(changes, self.before, self.statuses), self.after, self.statuses)
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
