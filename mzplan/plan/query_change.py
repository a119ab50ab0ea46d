"""The effect of a changed query on the state that the previous query has computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import unified_diff
from typing import Literal

from mzplan.model.plan import Change
from mzplan.model.state import ResourceState
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
