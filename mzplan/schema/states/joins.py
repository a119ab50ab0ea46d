"""Reads a join of two streams: its keys, its conditions, and the columns that each side keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mzplan.schema.states.normal import Inner, Normal, UndecidedError, conjuncts, ensure_plain
from mzplan.schema.states.rows import Names, Operator, Output, Relation, Rows, Scope

if TYPE_CHECKING:
    from mzplan.schema.states.reading import Reading

_KINDS = {"LEFT": "left outer join", "RIGHT": "right outer join", "FULL": "full outer join"}


def joined(reading: Reading, scope: Scope, left: Rows, join: Any, names: Names, value: Inner) -> Rows:
    """Return the rows of a JOIN of two streams, and let the names in the scope stand for its columns.

    `value`: returns the normal form of an expression over the scope.
    """
    side, kind = str(join.side).upper(), str(join.kind).upper()
    if join.args.get("method") or kind == "CROSS":
        raise UndecidedError("a NATURAL or CROSS JOIN isn't analysed")
    right = reading.relation(join.this, names)
    number = len(reading.operators)
    how = f"{kind.lower()} join" if kind in ("SEMI", "ANTI") else _KINDS.get(side, "join")
    operator = Operator(how, [left, right])
    reading.operators.append(operator)
    sides = [_side(reading, operator, number, place, rows) for place, rows in enumerate((left, right))]
    _rejoin(scope, left, sides[0])
    before = list(scope.relations), list(scope.visible)
    using = [column.name.lower() for column in join.args.get("using") or ()]
    pairs = scope.add(Relation(relation_name(join.this), sides[1]), using, side)
    for one, other in pairs:
        refs = (*one.refs, *other.refs)
        operator.keys.append(Normal(f"EQ({one.text}, {other.text})", refs, None, one.shown))
    if (on := join.args.get("on")) is not None:
        for condition in conjuncts(on, value):
            places = {ref.partition(".")[2][0] for ref in condition.refs}
            is_key = condition.text.startswith(("EQ(", "NullSafeEQ(")) and places == {"l", "r"}
            ensure_plain(condition)
            (operator.keys if is_key else operator.conditions).append(condition)
    outputs = [*sides[0], *sides[1]]
    if kind in ("SEMI", "ANTI"):
        scope.relations, scope.visible = before
        outputs = sides[0]
    operators = (*left.operators, *right.operators, number)
    return Rows(outputs, f"operator {number}", operators=operators)


def _side(reading: Reading, operator: Operator, number: int, place: int, rows: Rows) -> list[Output]:
    """Return the columns of one side of a join as columns of the operator's output."""
    outputs, kept = [], {}
    for column, output in enumerate(rows.outputs):
        ref = f"op{number}.{'lr'[place]}{column}"
        kept[ref] = output.value
        reading.needs[ref] = output.value.refs
        text = f"op{number}.{'left' if place == 0 else 'right'}({output.value.text})"
        outputs.append(Output(output.name, Normal(text, (ref,), output.value.type, output.value.shown)))
    operator.kept.append(kept)
    return outputs


def _rejoin(scope: Scope, left: Rows, outputs: list[Output]) -> None:
    """Let the names of the relations on the left stand for columns of the join's output."""
    by_old = {id(old): new for old, new in zip(left.outputs, outputs, strict=True)}
    try:
        scope.visible = [(relation, by_old[id(output)]) for relation, output in scope.visible]
        for relation in scope.relations:
            relation.outputs = [by_old[id(output)] for output in relation.outputs]
    except KeyError:
        raise UndecidedError("a JOIN after FULL JOIN … USING isn't analysed") from None


def relation_name(node: Any) -> str:
    """Return the name of a relation in FROM or JOIN, in lower case."""
    return str(node.alias or node.name).lower()
