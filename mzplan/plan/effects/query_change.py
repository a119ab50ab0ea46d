"""The effect of a changed query on the state that the previous query has computed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import unified_diff
from itertools import pairwise
from typing import TYPE_CHECKING

from mzplan.model.address import Address, natural
from mzplan.model.graph import DependencyGraph
from mzplan.model.observed import Observation, Status
from mzplan.model.plan import Change, FieldChange, InputExtent
from mzplan.model.query_changes import QueryChange, ReplaceCost, StateEffect
from mzplan.model.state import ResourceState
from mzplan.plan.effects.function_change import STATE, function_change, function_properties
from mzplan.schema.kinds import resource_kind
from mzplan.schema.relations.nodes import QueryError
from mzplan.schema.relations.parse import is_relational, parse_query, recomputes
from mzplan.schema.relations.tree import Input
from mzplan.schema.source_columns import columns_of, keys_of
from mzplan.schema.sql.sql_text import tokens
from mzplan.schema.user_functions import FUNCTIONS

if TYPE_CHECKING:
    from mzplan.schema.states.description import StateDescription

Records = Mapping[Address, ResourceState]


def query_change(
    before: ResourceState, after: ResourceState, records: tuple[Records, Records]
) -> QueryChange | None:
    """Return the change of a view's query; None if it doesn't change.

    `records`: all records before and after, under the names that the two records use.
    """
    if before.type != after.type:
        return None
    property_ = resource_kind(after.address.kind, after.type).query_property
    if property_ is None:
        return function_change(before, after)
    old, new = (str(record.body.get(property_, "")).splitlines() for record in (before, after))
    states = before.body.get(STATE), after.body.get(STATE)
    is_alias = before.body.get("aliases") != after.body.get("aliases")
    is_function = before.body.get(FUNCTIONS) != after.body.get(FUNCTIONS)
    is_recomputed = recomputes(before.body) and recomputes(after.body)
    if old == new and states[0] == states[1] and not (is_recomputed and (is_alias or is_function)):
        return None
    diff = "\n".join(list(unified_diff(old, new, lineterm=""))[2:])
    if is_recomputed:
        why = "the view computes all rows again, and writes only the rows that differ"
        return QueryChange(diff=diff, state="kept", because=why, recomputes=True)
    is_same = states[0] == states[1]
    if is_same and _may_have_keys(after, "\n".join(new), records[1]):
        is_same = _fields_in("\n".join(old)) == _fields_in("\n".join(new))
    if None in states or is_same:
        state, because = _of_one(*states)
        return QueryChange(diff=diff, state=state, because=because)
    # A plan that changes no stateful query doesn't need these modules.
    from mzplan.schema.states.comparison import compare_states
    from mzplan.schema.states.normal import UndecidedError

    try:
        described = [
            _described(r, known, property_) for r, known in zip((before, after), records, strict=True)
        ]
    except UndecidedError as reason:
        return QueryChange(diff=diff, state="unknown", because=f"mzplan can't compare the states: {reason}")
    changed = compare_states(*described)
    because = changed.because
    same_marks = before.body.get("watermarks") == after.body.get("watermarks")
    if old == new and same_marks and not is_function:
        why = "a name now stands for another value" if is_alias else "`*` now selects other columns"
        because = f"{why}: {because}" if changed.state != "kept" else why
    return QueryChange(
        diff=diff,
        state=changed.state,
        because=because,
        operators=changed.operators,
        columns=changed.columns,
        is_rewritten=changed.is_rewritten,
    )


def _described(record: ResourceState, records: Records, property_: str) -> StateDescription:
    """Return the state of a view's query over the columns of its inputs. Raises UndecidedError."""
    from mzplan.schema.states.description import describe_state
    from mzplan.schema.states.normal import UndecidedError

    if record.snapshots:
        raise UndecidedError("it reads snapshots")
    marks = record.body.get("watermarks", {})
    inputs = {}
    for address in record.reads.values():
        read, time = records[address], marks.get(address.name, {}).get("column", "")
        inputs[address.name] = Input.of(read.type, read.body, str(address), stream=True, event_time=time)
    return describe_state(str(record.body[property_]), inputs, record.body)


def with_recomputation(
    fields: tuple[FieldChange, ...], before: ResourceState, after: ResourceState
) -> tuple[FieldChange, ...]:
    """Return the field changes; a view that computes its rows again isn't replaced for some of them.

    The schema lists these edits in `x-recomputed`.
    """
    if not (recomputes(before.body) and recomputes(after.body)):
        return fields
    properties = resource_kind(after.address.kind, after.type).schema["properties"]

    def restarts(field: FieldChange) -> bool:
        edit = "added" if field.before is None else "removed" if field.after is None else "changed"
        return edit in properties.get(field.property_name, {}).get("x-recomputed", ())

    return tuple(replace(field, effect="restart") if restarts(field) else field for field in fields)


def with_query_effects(
    fields: tuple[FieldChange, ...], changed: QueryChange | None, after: ResourceState
) -> tuple[FieldChange, ...]:
    """Return the field changes; the deciding ones replace the view unless the new query can use its state."""
    if changed is None or changed.state == "kept":
        return fields
    if changed.state != "lost" and after.body.get("on_query_change") == "resume":
        return fields
    deciding = function_properties(after) or (STATE,)
    return tuple(replace(field, effect="replace") if field.path in deciding else field for field in fields)


def with_input_effects(
    fields: tuple[FieldChange, ...], before: ResourceState, after: ResourceState
) -> tuple[FieldChange, ...]:
    """Return the field changes of a view, without a replace for inputs that its checkpoint can continue with.

    A checkpoint has a position for each stream, whatever the query computes from the streams, and however
    often and in which order it names them. A query without state can read other tables from now on.
    """
    if sorted(before.reads.values()) != sorted(after.reads.values()) or not before.address.writes_collection:
        return fields
    continuing = ["from", "reads"]
    if STATE not in before.body and STATE not in after.body:
        continuing.append("snapshots")
    return tuple(
        replace(field, effect="restart")
        if field.property_name in continuing and field.effect == "replace"
        else field
        for field in fields
    )


def with_replace_costs(
    changes: Sequence[Change], records: Records, statuses: Mapping[str, Status]
) -> list[Change]:
    """Return the changes, with the steps and costs of changed queries as runners have last reported them.

    `records`: the records after the plan.
    """
    return [
        replace(change, query=_costed(change, change.query, records, statuses))
        if change.query is not None and (change.query.has_state or change.query.recomputes)
        else change
        for change in changes
    ]


def _costed(
    change: Change, changed: QueryChange, records: Records, statuses: Mapping[str, Status]
) -> QueryChange:
    before = change.before
    assert before is not None, "only a committed view has a changed query"
    seen = before.observed_in(statuses)
    if changed.recomputes:
        return replace(changed, cost=_cost(change.after or before, seen, records, statuses))
    columns = changed.columns
    resumes = change.action != "replace"
    if resumes and seen is not None and seen.generation == before.generation:
        columns = tuple(replace(column, since_step=seen.step + 1) for column in columns)
    reach = DependencyGraph.of(records).all_dependents([change.address]) if resumes and columns else ()
    return replace(
        changed,
        columns=columns,
        sinks=tuple(sorted((a for a in reach if a.writes_target), key=natural)),
        cost=_cost(before, seen, records, statuses) if changed.state != "kept" else None,
    )


def _cost(
    view: ResourceState, seen: Observation | None, records: Records, statuses: Mapping[str, Status]
) -> ReplaceCost:
    """Return what a new generation of a view would read; unknown parts are None."""
    extents = [extent_of(records[a], statuses) for a in view.reads.values() if a in records]
    known = [extent for extent in extents if extent is not None]
    if not known or len(known) < len(extents):
        return ReplaceCost()
    counts = [extent.rows for extent in known]
    rows = None if None in counts else sum(count or 0 for count in counts)
    rate = seen.processed_rows_per_second if seen is not None else 0.0
    seconds = round(rows / rate, 1) if rows is not None and rate > 0 else None
    return ReplaceCost(steps=sum(extent.last_step + 1 for extent in known), rows=rows, seconds=seconds)


def extent_of(record: ResourceState, statuses: Mapping[str, Status]) -> InputExtent | None:
    """Return the extent of a collection; None if this generation has no reported step."""
    seen = record.observed_in(statuses)
    if seen is None or seen.generation != record.generation or not seen.last_steps:
        return None
    since, since_time = seen.since or (None, None)
    return InputExtent(
        address=record.address,
        last_step=seen.last_steps[0][0],
        rows=seen.total_rows,
        is_keyed=bool(keys_of(record.type, record.body)),
        since=since,
        since_time=since_time,
    )


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
        query = parse_query(str(record.body[kind.query_property]), over_tables=True)
    except QueryError:  # of another version
        return {}
    return Counter(table.name for table in query.tables.values())


def _may_have_keys(record: ResourceState, sql: str, records: Records) -> bool:
    """Whether a name after a dot or colon may be a key of a MAP or VARIANT, whose case matters."""
    read = [records[address] for address in (*record.reads.values(), *record.snapshots.values())]
    types = [column.type for one in read for column in columns_of(one.type, one.body)]
    return any(re.search("map|variant|json", text, re.IGNORECASE) for text in (sql, *types))


def _fields_in(sql: str) -> list[str]:
    """Return the names after a dot or colon."""
    return [name.text for mark, name in pairwise(tokens(sql)) if mark.text in (".", ":")]


def _of_one(before: str | None, after: str | None) -> tuple[StateEffect, str]:
    """Return the effect unless both queries keep state and their digests differ."""
    if before is None and after is None:
        return "kept", "neither query keeps state"
    if before is None:
        return "lost", "the earlier query kept no state"
    if after is None:
        return "lost", "the new query keeps no state"
    return "kept", "the queries differ only in names, spaces and comments"
