"""The changed dependencies of a query, their effects on it, and the reason in the plan.

A query's description contains its connections. So the resources before and after are compared as the query
sees them: role by role, through connections of connections, whatever their names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from mzplan.model.address import Address, natural, natural_item
from mzplan.model.plan import Change, Effect, FieldChange, heaviest
from mzplan.model.state import ResourceState
from mzplan.plan.comparison import compare_resources
from mzplan.plan.effects.row_migration import sinks_continue
from mzplan.schema.description import collection_columns, columns_used
from mzplan.schema.relations.parse import recomputes

Records = Mapping[Address, ResourceState]
EffectByDependency = dict[Address, Effect]


@dataclass(frozen=True, slots=True)
class DependencyEffects:
    """The effects of a resource's dependencies on it.

    - `causes`: each changed dependency that has an effect, with the effect.
    - `repointed`: each role that names another connection than before, with the effect of the difference
      between the two connections (`in-place` if their descriptions are equal).
    """

    causes: EffectByDependency = field(default_factory=dict)
    repointed: dict[str, Effect] = field(default_factory=dict)

    @property
    def effect(self) -> Effect:
        return heaviest(list(self.causes.values()))


class Dependencies:
    """Compares the dependencies of resources before and after a plan."""

    def __init__(self, before: Records, after: Records, changes: Mapping[Address, Change]):
        """`changes`: the changes planned so far, in dependency order. The caller adds to it."""
        self._before = before
        self._after = after
        self._changes = changes
        self._memo: dict[tuple[Address, Address], tuple[Effect, EffectByDependency]] = {}

    def of(self, before: ResourceState, after: ResourceState) -> DependencyEffects:
        """Return the effects that reach a resource through its references."""
        effects = DependencyEffects()
        roles = {address: role for role, address in {**before.reads, **before.snapshots}.items()}
        for role, target in after.references.items():
            if target in roles:
                _merge(effects.causes, self._collection(target, (roles[target], role), before, after))
                continue
            previous = before.references.get(role)
            if previous is None or not target.is_connection:
                continue  # a new reference is a change to the resource itself
            effect, causes = self._connections(previous, target)
            if previous == target:
                _merge(effects.causes, causes)
            else:
                effects.repointed[role] = effect
        return effects

    def _collection(
        self, source: Address, roles: tuple[str, str], former: ResourceState, reader: ResourceState
    ) -> EffectByDependency:
        """Return the effect of a source's change on a query that reads its collection.

        `roles`: the collection's roles in the former and the new query. A query that reads a stream through
        `from` can continue after the rows that a new generation begins with. A query that reads snapshots,
        and a view that computes its rows again, only restarts: each micro-batch reads the whole collection.
        """
        change = self._changes.get(source)
        if change is None or change.before is None or change.after is None:
            return {}
        if change.action == "replace":
            is_table = roles[1] in reader.snapshots or recomputes(reader.body)
            restarts = is_table or (roles == ("from", "from") and sinks_continue(change))
            return {source: "restart" if restarts else "replace"}
        if collection_columns(change.before) == collection_columns(change.after):
            return {}
        used = columns_used(former, self._before)[roles[0]], columns_used(reader, self._after)[roles[1]]
        return {source: "restart"} if used[0] != used[1] else {}

    def _connections(self, previous: Address, target: Address) -> tuple[Effect, EffectByDependency]:
        """Return the effect of replacing one connection with the other, and the causes.

        Use the causes only if both addresses are equal. Otherwise, the changed reference is the cause.
        """
        key = (previous, target)
        if key not in self._memo:
            self._memo[key] = self._compare(self._before[previous], self._after[target])
        return self._memo[key]

    def _compare(self, before: ResourceState, after: ResourceState) -> tuple[Effect, EffectByDependency]:
        nested = self.of(before, after)
        causes = dict(nested.causes)
        own: Effect = "in-place"
        if before is not after:
            fields = weigh_references(compare_resources(before, after), nested.repointed)
            own = heaviest(["in-place", *(change.effect for change in fields)])
        if own != "in-place":
            _merge(causes, {after.address: own})
        return heaviest([own, nested.effect]), causes


def paths_to(
    resource: ResourceState, wanted: Callable[[Address], bool], records: Records
) -> dict[Address, tuple[Address, ...]]:
    """Return the path to each `wanted` connection that the resource uses only indirectly.

    It is a shortest path: the connections in between, the resource's own first.
    """
    paths: dict[Address, tuple[Address, ...]] = {}
    seen: set[Address] = set()
    level: list[tuple[Address, tuple[Address, ...]]] = [
        (address, ())
        for address in sorted(set(resource.references.values()), key=natural)
        if address.is_connection
    ]
    while level:
        nested_level = []
        for address, path in level:
            if address in seen:
                continue
            seen.add(address)
            if path and wanted(address):
                paths[address] = path
            nested = sorted(set(records[address].references.values()), key=natural)
            nested_level += [(target, (*path, address)) for target in nested]
        level = nested_level
    return paths


def weigh_references(
    fields: tuple[FieldChange, ...], repointed: Mapping[str, Effect]
) -> tuple[FieldChange, ...]:
    """Return the field changes with the real effects of changed references.

    A changed reference has the effect of the difference between the two connections. If the schema gives the
    reference a heavier effect than a restart, it keeps that effect.
    """
    if not repointed:
        return fields
    return tuple(
        replace(change, effect=repointed[change.path])
        if change.effect == "restart" and change.path in repointed
        else change
        for change in fields
    )


def _merge(causes: EffectByDependency, more: Mapping[Address, Effect]) -> None:
    for address, effect in more.items():
        causes[address] = heaviest([causes.get(address, "none"), effect])


MAX_NAMED = 3
Ways = Mapping[Address, tuple[Address, ...]]
_INDEXES = re.compile(r"(\[\d+\])+$")


def reason_for(
    fields: tuple[FieldChange, ...],
    causes: Mapping[Address, Effect],
    ways: Ways,
    forced: bool,
    rotated: Iterable[str],
    holders: Ways,
    upgraded: str = "",
) -> str:
    """Return the reason of a change, its parts joined by `; `.

    Examples: `"brokers changed"`, `"connection.bastion changed, through connection.shop_pg"`.

    - `fields`: the changed fields. One that reaches no query, such as `description`, is the reason only if
      there is no other.
    - `ways`: for each indirect cause, the connections between the resource and the cause.
    - `rotated`: references to secrets with a new value. `holders`: the connections with these secrets, and
      the connections in between.
    - `upgraded`: why the query runs another version of its function; "" if it doesn't.
    """
    parts = ["requested with --replace"] if forced else []
    with_effect = [field for field in fields if field.effect != "in-place"]
    if named := with_effect or ([] if causes or forced or rotated or upgraded else fields):
        parts.append(f"{_join_names(_names(named))} changed")
    # Only queries are replaced. A connection changes, even if the change replaces the queries that use it.
    replaced: list[str] = []
    by_way: dict[tuple[Address, ...], list[str]] = {}
    for cause in sorted(causes, key=natural):
        if cause.is_query and causes[cause] == "replace":
            replaced.append(str(cause))
        else:
            by_way.setdefault(ways.get(cause, ()), []).append(str(cause))
    parts += [
        f"{_join_names(by_way[way])} changed{_through(way)}"
        for way in sorted(by_way, key=lambda way: [*map(natural, way)])
    ]
    if replaced:
        parts.append(f"{_join_names(replaced)} replaced")
    if rotated:
        where = ", ".join(
            f"{holder}{_through(way)}" for holder, way in sorted(holders.items(), key=natural_item)
        )
        parts.append(
            f"the value of {_join_names(sorted(rotated, key=natural))} changed"
            + (f", in {where}" if where else "")
        )
    parts += [upgraded] if upgraded else []
    return "; ".join(parts) or "its description changed"


def _through(way: tuple[Address, ...]) -> str:
    return f", through {_join_names([str(address) for address in way])}" if way else ""


def _names(fields: Iterable[FieldChange]) -> list[str]:
    """Return the changed properties without list indexes: `brokers` for `brokers[0]`."""
    return list(dict.fromkeys(_INDEXES.sub("", change.path) for change in fields))


def _join_names(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    if len(names) <= MAX_NAMED:
        return f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{', '.join(names[:MAX_NAMED])} and {len(names) - MAX_NAMED} more"


def task_reason(before: ResourceState, after: ResourceState) -> str:
    """Return why a query restarts because of its tasks."""
    if new := [task for task in after.tasks if task not in before.tasks]:
        return "; ".join(f"{'an' if str(task)[0] in 'aeiou' else 'a'} {task}" for task in new)
    return "; ".join(f"the {task} is cancelled" for task in before.tasks if task not in after.tasks)
