"""Compares the states of two queries, operator by operator: what of the old state can the new query use?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from mzplan.model.query_changes import STATE_EFFECTS, ColumnChange, OperatorChange, StateEffect
from mzplan.schema.states.description import Below, Part, StateDescription, StatefulOperator

_LISTED = 3
_OTHER_FUNCTION = "another version of a function"
_VERSION = re.compile(r"@[0-9a-f]{12}\(")  # of a user's function in a normal form


@dataclass(frozen=True, slots=True)
class StateChange:
    """What a changed query can use of the state; the worst effect on its operators.

    `is_rewritten`: both queries mean the same.
    """

    state: StateEffect
    because: str
    operators: tuple[OperatorChange, ...] = ()
    columns: tuple[ColumnChange, ...] = ()
    is_rewritten: bool = False


Reason = tuple[StateEffect, str]


def compare_states(before: StateDescription, after: StateDescription) -> StateChange:
    """Return what the query described by `after` can use of the state that `before` computed."""
    kinds = [[operator.kind for operator in one.operators] for one in (before, after)]
    if kinds[0] != kinds[1] and (len(kinds[0]) != len(kinds[1]) or not _are_joins(*kinds)):
        old, new = (", ".join(kind) for kind in kinds)
        return StateChange("lost", f"Spark numbers the operators that keep state: {old} became {new}")
    pairs = list(zip(before.operators, after.operators, strict=True))
    operators = tuple(_operator(old, new) for old, new in pairs)
    reasons: list[Reason] = [(operator.state, operator.because) for operator in operators]
    reasons += [*_moved(before, after), *_fields(before, after)]
    state = max((effect for effect, _ in reasons), key=STATE_EFFECTS.index)
    because = "; ".join(dict.fromkeys(why for effect, why in reasons if effect != "kept"))
    columns = tuple(_columns(before, after))
    if because:
        return StateChange(state, because, operators, columns)
    if before.kept != after.kept or _results(before) != _results(after):
        above = "the change is above the state, and applies to rows written from now on"
        return StateChange(state, above, operators, columns)
    return StateChange(state, "both queries compute the same state", operators, columns, True)


def _are_joins(old: Sequence[str], new: Sequence[str]) -> bool:
    """Return whether operators differ only in the kind of a join, whose state Spark stores alike."""
    return all(a == b or (a.endswith("join") and b.endswith("join")) for a, b in zip(old, new, strict=True))


def _operator(old: StatefulOperator, new: StatefulOperator) -> OperatorChange:
    reasons = [
        *_kind(old, new),
        *_keys(old, new),
        *chain.from_iterable(_values(old, *pair) for pair in zip(old.values, new.values, strict=True)),
        *_conditions(old, new),
        *_certain(old, new),
        *chain.from_iterable(_below(*pair) for pair in zip(old.below, new.below, strict=True)),
    ]
    if not reasons:
        return OperatorChange(kind=new.kind, state="kept", because="it computes the same")
    state = max((effect for effect, _ in reasons), key=STATE_EFFECTS.index)
    return OperatorChange(
        kind=new.kind, state=state, because="; ".join(dict.fromkeys(why for _, why in reasons))
    )


def _kind(old: StatefulOperator, new: StatefulOperator) -> Iterator[Reason]:
    if old.kind == new.kind:
        return
    changed = f"the {old.kind} became a {new.kind}"
    if "outer" in f"{old.kind} {new.kind}":
        yield "lost", f"{changed}, and Spark stores other columns as nullable"
    else:
        yield "mixed", f"{changed}, and the state has the rows that the former keeps"


def _keys(old: StatefulOperator, new: StatefulOperator) -> Iterator[Reason]:
    if _texts(old.keys) == _texts(new.keys):
        return
    names = "join keys" if old.kind.endswith("join") else "groups"
    changed = f"the {names} are {_named(new.keys)} instead of {_named(old.keys)}"
    if _differ_in_functions(_texts(old.keys), _texts(new.keys)):
        changed = f"the {names} call {_OTHER_FUNCTION}: {_named(_differing(old.keys, new.keys))}"
    yield _typed(old.keys, new.keys, changed, "the state has the former keys", "keys")


def _values(operator: StatefulOperator, old: Sequence[Part], new: Sequence[Part]) -> Iterator[Reason]:
    if _texts(old) == _texts(new):
        return
    if operator.kind.endswith("join"):
        changed = f"one side of the join keeps {_named(new)} instead of {_named(old)}"
        if _differ_in_functions(_texts(old), _texts(new)):
            changed = f"one side of the join calls {_OTHER_FUNCTION}: {_named(_differing(old, new))}"
        yield _typed(old, new, changed, "the state has the former columns", "values")
        return
    if sorted(_texts(old)) == sorted(_texts(new)):
        changed = f"the aggregates are in another order, {_named(new)} instead of {_named(old)}"
    else:
        replaced = [part for part in old if part.text not in _texts(new)]
        added = [part for part in new if part.text not in _texts(old)]
        changed = f"{_named(added)} takes the place of {_named(replaced)}"
        if _differ_in_functions(_texts(replaced), _texts(added)):
            changed = f"{_named(added)} calls {_OTHER_FUNCTION}"
        if not replaced or not added:
            changed = f"{_named(added or replaced)} is {'new' if added else 'removed'}"
    yield _typed(old, new, changed, "Spark stores aggregates by position", "values")


def _typed(old: Sequence[Part], new: Sequence[Part], changed: str, effect: str, what: str) -> Reason:
    """Return `lost` if the types differ by position, `mixed` if they are equal, else `unknown`."""
    types = [_types(parts) for parts in (old, new)]
    if types[0] is None or types[1] is None:
        if len(old) != len(new):
            return "lost", f"{changed}, and Spark stores another number of {what}"
        return "unknown", f"{changed}, and only Spark knows whether it stores the same types"
    if types[0] != types[1]:
        was, now = (", ".join(one) or "nothing" for one in types if one is not None)
        return "lost", f"{changed}, and Spark stores {now} instead of {was}"
    return "mixed", f"{changed}, and {effect}"


def _types(parts: Sequence[Part]) -> list[str] | None:
    known = [part.types for part in parts]
    return None if None in known else [type_ for types in known for type_ in types or ()]


def _conditions(old: StatefulOperator, new: StatefulOperator) -> Iterator[Reason]:
    if _texts(old.conditions) == _texts(new.conditions):
        return
    pairs = [{part.text: part.shown for part in one.conditions} for one in (old, new)]
    yield from _compared(pairs[0], pairs[1], "in the join", "old rows were kept by the former condition")


def _certain(old: StatefulOperator, new: StatefulOperator) -> Iterator[Reason]:
    if old.certain != new.certain and old.values == new.values:
        why = "only a condition on one side of the join needs other columns, and Spark may not store them"
        yield "unknown", why


def _fields(before: StateDescription, after: StateDescription) -> Iterator[Reason]:
    has_join = any(operator.kind.endswith("join") for operator in after.operators)
    if has_join and before.paths != after.paths:
        yield "unknown", "the query reads other fields of a column, and a join may store only those it reads"


def _below(old: Below, new: Below) -> Iterator[Reason]:
    if old.source != new.source:
        yield "mixed", "the collections, UNIONs or generators below the state are others"
    if old.renames != new.renames:
        yield "unknown", "a subquery renames or computes columns, and Spark may store them as nullable"
    effect = "the state has rows that the former query chose"
    yield from _compared(old.filters, new.filters, "below the state", effect)


def _moved(before: StateDescription, after: StateDescription) -> Iterator[Reason]:
    if before.source != after.source:
        yield (
            "mixed",
            "the UNIONs or generators above the state are others, and conditions may move past them",
        )
    effect = "Spark evaluates it before the state, which has rows that the former query chose"
    yield from _compared(before.pushed, after.pushed, "above the state", effect)


def _compared(old: Mapping[str, str], new: Mapping[str, str], where: str, effect: str) -> Iterator[Reason]:
    """Yield the reason if the conditions of two queries differ."""
    texts = [text for text in old if text not in new], [text for text in new if text not in old]
    removed, added = [old[text] for text in texts[0]], [new[text] for text in texts[1]]
    parts = [f"{_listed(added)} is a new condition {where}"] if added else []
    parts += [f"{_listed(removed)} is no longer a condition {where}"] if removed else []
    if parts and _differ_in_functions(*texts):
        parts = [f"{_listed(added)} {where} calls {_OTHER_FUNCTION}"]
    if parts:
        yield "mixed", f"{' and '.join(parts)}: {effect}"


def _results(one: StateDescription) -> list[tuple[str, str]]:
    return [(column.name, column.text) for column in one.columns]


def _columns(before: StateDescription, after: StateDescription) -> Iterator[ColumnChange]:
    """Yield the columns of both results that are computed differently."""
    former = {column.name.lower(): column for column in before.columns}
    context = [_context(before, after), _context(after, before)]
    for column in after.columns:
        old = former.get(column.name.lower())
        if old is None:
            continue
        own = [
            text if ".key(" not in one.text else "" for one, text in zip((old, column), context, strict=True)
        ]
        if old.text != column.text or own[0] != own[1]:
            texts = f"{old.shown}{own[0]}", f"{column.shown}{own[1]}"
            if texts[0] == texts[1] and _differ_in_functions([old.text], [column.text]):
                texts = texts[0], f"the changed {texts[1]}"
            yield ColumnChange(name=column.name, before=texts[0], after=texts[1])


def _context(one: StateDescription, other: StateDescription) -> str:
    """Return the groups and conditions of a query that the other one doesn't have: ` where amount > 0`."""
    parts = []
    for operator, counterpart in zip(one.operators, other.operators, strict=False):
        for rows, others in zip(operator.below, counterpart.below, strict=False):
            own = [shown for text, shown in rows.filters.items() if text not in others.filters]
            parts += [f" where {' and '.join(own)}"] if own else []
        if _texts(operator.keys) != _texts(counterpart.keys) and not operator.kind.endswith("join"):
            parts.append(f" by {_named(operator.keys)}")
    own = [shown for text, shown in one.pushed.items() if text not in other.pushed]
    return "".join([*parts, f" where {' and '.join(own)}" if own else ""])


def _shown(parts: Sequence[Part]) -> list[str]:
    return [part.shown for part in parts]


def _differ_in_functions(old: Sequence[str], new: Sequence[str]) -> bool:
    """Return whether normal forms differ only in the versions of the user's functions."""
    return [_VERSION.sub("(", text) for text in old] == [_VERSION.sub("(", text) for text in new]


def _differing(old: Sequence[Part], new: Sequence[Part]) -> list[Part]:
    """Return the new parts whose normal forms differ from the parts in their places."""
    return [part for former, part in zip(old, new, strict=True) if former.text != part.text]


def _texts(parts: Sequence[Part]) -> list[str]:
    return [part.text for part in parts]


def _named(parts: Sequence[Part]) -> str:
    return _listed(_shown(parts))


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "nothing"
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(f"`{name}`" for name in names[:_LISTED]) + more
