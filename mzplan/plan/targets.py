"""What replaced sinks do to the rows in their targets, and what changed queries do to their state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from difflib import unified_diff
from typing import Literal

from mzplan.model.address import Address
from mzplan.model.observed import Status
from mzplan.model.plan import Change, TargetEffect, TargetEffectKind
from mzplan.model.state import ResourceState
from mzplan.model.words import one_line
from mzplan.schema.kinds import resource_kind
from mzplan.schema.relations.parse import QueryError, is_relational, parse_query
from mzplan.schema.view_query import gives_same_rows

StateVerdict = Literal["kept", "lost", "unknown"]
STATE = "state"  # the property with the digest of the stateful part of the query


@dataclass(frozen=True, slots=True)
class QueryChange:
    """A changed query.

    - `diff`: a unified diff of its text, without file names.
    - `state`: whether the new query can use the state. If that is `unknown`, the state is lost.
    - `because`: the reason, as a clause.
    """

    diff: str
    state: StateVerdict
    because: str


def has_same_query(change: Change) -> bool:
    """Whether a view's query is the same, apart from spaces, comments and renamed inputs."""
    if change.before is None or change.after is None or change.before.type != change.after.type:
        return False
    if change.action == "replace":  # perhaps for another input, which looks like a new name
        return False
    kind = resource_kind(change.address.kind, change.after.type)
    bodies = (
        {name: record.body.get(name) for name in kind.row_properties}
        for record in (change.before, change.after)
    )
    return kind.query_property is not None and gives_same_rows(kind, *bodies)


def query_change(change: Change) -> QueryChange | None:
    """Return the change of a view's query; None if it doesn't change."""
    if change.before is None or change.after is None or change.before.type != change.after.type:
        return None
    property_ = resource_kind(change.address.kind, change.after.type).query_property
    if property_ is None:
        return None
    before, after = change.before.body, change.after.body
    old, new = (str(body.get(property_, "")).splitlines() for body in (before, after))
    states = before.get(STATE), after.get(STATE)
    if old == new and states[0] == states[1]:
        return None
    diff = "\n".join(list(unified_diff(old, new, lineterm=""))[2:])
    if old == new and None not in states and before.get("watermarks") == after.get("watermarks"):
        is_alias = before.get("aliases") != after.get("aliases")
        why = "a name now stands for another value" if is_alias else "`*` now selects other columns"
        return QueryChange(diff, "lost", why)
    return QueryChange(diff, *_verdict(*states))


def changed_readings(change: Change) -> dict[str, tuple[int, int]]:
    """Return how often a relational query reads its streams, before and after, for those where it changes."""
    if change.before is None or change.after is None:
        return {}
    before, after = (_readings(record) for record in (change.before, change.after))
    return {
        name: (before[name], after[name]) for name in before if name in after and before[name] != after[name]
    }


def _readings(record: ResourceState) -> Mapping[str, int]:
    kind = resource_kind(record.address.kind, record.type)
    if kind.query_property is None or not is_relational(record.body) or record.snapshots:
        return {}
    try:
        query = parse_query(str(record.body[kind.query_property]))
    except QueryError:  # of another version
        return {}
    return Counter(table.name for table in query.tables.values())


def _verdict(before: str | None, after: str | None) -> tuple[StateVerdict, str]:
    if before is None and after is None:
        return "kept", "neither query keeps state"
    if before == after:
        return "kept", "the queries differ only in names, spaces and comments"
    if before is None:
        return "lost", "the earlier query kept no state"
    if after is None:
        return "lost", "the new query keeps no state"
    return "unknown", "another query computed the state, and mzplan can't compare the two"


def with_targets(changes: Sequence[Change], statuses: Mapping[str, Status]) -> list[Change]:
    """Return the changes, with the effect of each replaced sink on its target."""
    moved = {
        change.address for change in changes if change.effect == "replace" and change.address.is_connection
    }
    return [
        replace(change, target=_effect(change, moved, statuses))
        if change.action == "replace" and change.address.writes_target
        else change
        for change in changes
    ]


def target_lines(change: Change) -> Iterator[str]:
    """Yield what happens to a sink's target: `empties public.revenue (1,200 rows written so far)`."""
    effect = change.target
    if effect is None:
        return
    name = one_line(effect.name) or "its target"
    rows = f"{effect.rows:,} rows written so far" if effect.rows is not None else ""
    in_brackets = f" ({rows})" if rows else ""
    if effect.is_moved:
        yield f"{'empties' if effect.kind == 'empties' else 'writes all rows to'} {name}"
        former = one_line(effect.former_name) or "target"
        yield f"leaves {'the former ' if former in (name, 'target') else ''}{former} as it is{in_brackets}"
        return
    match effect.kind:
        case "empties":
            yield f"empties {name}{in_brackets}"
        case "upserts":
            yield f"writes all rows again to {name}; keys that the new query never writes stay"
        case "appends":
            yield f"writes all rows again to {name}, beside the {rows or 'rows written so far'}"


def effect_on_target(sink: ResourceState) -> TargetEffectKind | None:
    """Return what a new generation of the sink does to its target (`x-replace`).

    Returns None if each row would be in the target twice and the sink doesn't accept that.
    """
    kind = resource_kind("sink", sink.type)
    rule = kind.schema.get("x-replace")
    if rule is None:
        return "appends"
    choice, body = sink.body.get(rule["property"]), kind.with_defaults(sink.body)
    if choice == "truncate":
        return "empties"
    if any(body.get(name) in values for name, values in rule["safe"].items()):
        return "upserts"
    return "appends" if choice is not None else None


def _effect(change: Change, moved: Set[Address], statuses: Mapping[str, Status]) -> TargetEffect | None:
    """`moved`: the connections that lead to other targets than before."""
    before, after = change.before, change.after
    assert before is not None and after is not None
    effect = effect_on_target(after)
    if effect is None:
        return None
    seen = before.observed_in(statuses)
    former, name = map(_target_name, (before, after))
    repointed = before.references.get("connection") != after.references.get("connection")
    return TargetEffect(
        kind=effect,
        name=name,
        former_name=former,
        is_moved=repointed or name != former or not moved.isdisjoint(change.triggered_by),
        rows=seen.total_rows if seen is not None and seen.generation == before.generation else None,
    )


def _target_name(sink: ResourceState) -> str:
    rule = resource_kind("sink", sink.type).schema.get("x-replace", {})
    return str(sink.body.get(rule.get("target"), ""))
