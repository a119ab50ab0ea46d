"""What a changed query of a view does to its state and to its columns, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from mzplan.model.address import Address, natural
from mzplan.model.plan import Change, FieldChange, Plan
from mzplan.model.query_changes import STATE_EFFECTS, QueryChange, ReplaceCost, StateEffect, column_text
from mzplan.model.words import count, first_names
from mzplan.render.text import safe
from mzplan.schema.kinds import resource_kind
from mzplan.schema.source_columns import keys_of

_MAX_COLUMNS = 5
_MAX_SINKS = 5
_SENTENCES = {
    "kept": "its state is kept",
    "mixed": "its state mixes both queries",
    "unknown": "its state may mix both queries",
    "lost": "its state is lost",
}


def is_explained(change: Change, field: FieldChange) -> bool:
    """Return whether the effect on a view's state says more than this field, a digest."""
    return field.path == "state" and change.query is not None


def query_lines(change: Change) -> Iterator[str]:
    """Yield the effect on a view's state, its changed columns, and the cost of a replace."""
    changed = change.query
    if changed is not None and changed.recomputes and change.action != "replace":
        cost = _cost(changed.cost) if changed.cost is not None else ""
        yield f"{safe(changed.because)}{f'; it reads {cost}' if cost else ''}"
    if changed is None or not changed.has_state:
        return
    replaced = change.action == "replace"
    sentence, verdict = _SENTENCES[changed.state], ""
    if replaced:
        sentence = "its state could be kept" if changed.state == "kept" else "its state can't be kept"
        verdict = f" ({changed.state})" if changed.state != "kept" else ""
    yield f"{sentence}{verdict}: {safe(changed.because)}"
    for column in changed.columns[:_MAX_COLUMNS]:
        yield safe(column_text(column, replaced))
    if len(changed.columns) > _MAX_COLUMNS:
        yield f"and {len(changed.columns) - _MAX_COLUMNS} more columns"
    if changed.sinks:
        verb = "keeps" if len(changed.sinks) == 1 else "keep"
        yield f"{first_names(changed.sinks, _MAX_SINKS)} {verb} rows of the former query"
    yield from _way_out(change, changed, replaced)


def _way_out(change: Change, changed: QueryChange, replaced: bool) -> Iterator[str]:
    """Yield how to have all rows by one query, or how to continue without reading again."""
    cost = _cost(changed.cost) if changed.cost is not None else ""
    if replaced:
        if changed.state in ("mixed", "unknown"):
            saves = f"; saves {cost}" if cost else ""
            word = _word_of(change)
            yield f"to continue with the old state instead: `{word}`{saves}"
    elif changed.columns or changed.state != "kept":
        if change.after is not None and keys_of(change.after.type, change.after.body):
            yield "a group keeps its former row until it changes"
        reads = f", which reads {cost}" if cost else ""
        yield f"to compute all rows again: --replace {change.address} --allow-replace{reads}"


def _word_of(change: Change) -> str:
    """Return the setting with which a view continues with its state."""
    assert change.after is not None, "a replaced view has a record after the plan"
    kind = resource_kind(change.address.kind, change.after.type)
    return "state: kept" if kind.function_property is not None else "on_query_change: resume"


def _cost(cost: ReplaceCost) -> str:
    """Return `1,204,331 rows in 813 steps, about 20 minutes`; "" if unknown."""
    if cost.steps is None:
        return ""
    rows = f"{cost.rows:,} rows in " if cost.rows is not None else ""
    return f"{rows}{count(cost.steps, 'step')}{_time(cost.seconds)}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes = round(seconds / 60)
    return f", about {count(minutes, 'minute')}" if minutes else ", less than a minute"


def worst_state(plan: Plan) -> str:
    """Return the worst effect of a plan and its views: `State: mixed in view.totals.`; "" without any.

    A view below a changed query also mixes its state, although its own query is the same.
    """
    judged: dict[Address, StateEffect] = {
        d.address: "mixed" for d in plan.diagnostics if d.kind == "mixed-state" and d.address
    }
    for change in plan.changes:
        if change.query is not None and change.query.has_state:
            states = change.query.state, judged.get(change.address, "kept")
            judged[change.address] = max(states, key=STATE_EFFECTS.index)
    if not judged:
        return ""
    worst = max(judged.values(), key=STATE_EFFECTS.index)
    named = sorted((address for address, state in judged.items() if state == worst), key=natural)
    return f"State: {worst} in {first_names(named, _MAX_SINKS)}."
