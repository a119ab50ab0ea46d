"""The normal form of an SQL expression: equal texts mean equal values.

Names of columns are resolved by the caller, so aliases, subqueries and WITH leave no trace. Only rewrites
that surely keep the meaning are made: two expressions may mean the same and have different normal forms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from mzplan.schema.sql.sql_text import arguments_of, function_name

_SYNONYMS = {
    "any": "bool_or",
    "cardinality": "size",
    "char_length": "length",
    "character_length": "length",
    "day": "dayofmonth",
    "every": "bool_and",
    "first": "first_value",
    "lcase": "lower",
    "last": "last_value",
    "mean": "avg",
    "some": "bool_or",
    "std": "stddev_samp",
    "stddev": "stddev_samp",
    "substr": "substring",
    "ucase": "upper",
    "var_samp": "variance",
}
_NAMED_BY_ARGUMENTS = frozenset(["arrays_zip", "struct", "to_csv", "to_json", "to_xml"])
_MIRRORED = {"GT": "LT", "GTE": "LTE"}
_NO_VERSIONS: Mapping[str, str] = MappingProxyType({})
_SYMMETRIC = frozenset(["EQ", "NEQ", "NullSafeEQ", "NullSafeNEQ"])


class UndecidedError(Exception):
    """Raised for a query whose state can't be described; the text is the reason, as a clause."""


@dataclass(frozen=True, slots=True)
class Normal:
    """An expression in its normal form.

    - `refs`: the columns that it reads, in order: of inputs, or of an operator's output.
    - `type`: in canonical DDL; None if only Spark knows it.
    - `shown`: the expression for people.
    - `is_rewritten`: the text differs from the written expression in more than names.
    """

    text: str
    refs: tuple[str, ...] = ()
    type: str | None = None
    shown: str = ""
    is_rewritten: bool = False


Inner = Callable[[Any], Normal]


def normal_form(node: Any, sql: str, inner: Inner, versions: Mapping[str, str] = _NO_VERSIONS) -> Normal:
    """Return the normal form of a node of sqlglot's tree that isn't a column.

    `sql`: the text of the whole query. `inner` returns the normal form of a node inside. `versions`: the
    versions of the user's functions, by name.
    """
    kind = type(node).__name__
    if kind == "Paren":
        return inner(node.this)
    if kind in ("And", "Or"):
        return _flat(kind, node, inner)
    if kind in _MIRRORED:
        left, right = inner(node.this), inner(node.expression)
        return replace(_call(_MIRRORED[kind], [right, left], True), refs=(*left.refs, *right.refs))
    if kind in ("LT", "LTE"):
        return _call(kind, [inner(node.this), inner(node.expression)])
    if kind in _SYMMETRIC:
        return _symmetric(kind, inner(node.this), inner(node.expression))
    if kind == "Not" and type(node.this.unnest()).__name__ == "EQ":
        equal = node.this.unnest()
        return replace(_symmetric("NEQ", inner(equal.this), inner(equal.expression)), is_rewritten=True)
    if kind == "Between" and not node.args.get("symmetric"):
        value, low, high = (inner(node.args[name]) for name in ("this", "low", "high"))
        return _joined("And", [_call("LTE", [low, value]), _call("LTE", [value, high])], True)
    if kind == "In" and node.expressions and not node.args.get("query"):
        values = [inner(one) for one in node.expressions]
        listed = sorted({value.text: value for value in values}.values(), key=lambda value: value.text)
        return _call("In", [inner(node.this), *listed], listed != values)
    if kind == "Anonymous" and (version := versions.get(name := str(node.name).lower())) is not None:
        return _call(f"{name}@{version}", map(inner, node.expressions))
    return _leaf(node, kind) or _of_call(node, kind, sql, inner)


def conjuncts(tree: Any, inner: Inner) -> list[Normal]:
    """Return the conditions that AND joins, without TRUE and without duplicates, in order of the text."""
    kind = type(tree).__name__
    if kind == "Paren":
        return conjuncts(tree.this, inner)
    if kind == "And":
        found = [*conjuncts(tree.this, inner), *conjuncts(tree.expression, inner)]
        return list({one.text: one for one in found}.values())
    if kind == "Boolean" and tree.this:
        return []
    if kind == "Between" and not tree.args.get("symmetric"):
        value, low, high = (inner(tree.args[name]) for name in ("this", "low", "high"))
        bounds = ((_call("LTE", [low, value]), low, ">="), (_call("LTE", [value, high]), high, "<="))
        return [replace(n, shown=f"{value.shown} {sign} {bound.shown}") for n, bound, sign in bounds]
    return [inner(tree)]


def ensure_plain(condition: Normal) -> None:
    """Raise UndecidedError for an OR of equalities: Spark may make keys of a join of what they share."""
    if condition.text.startswith("Or(") and "EQ(" in condition.text:
        raise UndecidedError("a condition of a join is an OR of equalities")


def _leaf(node: Any, kind: str) -> Normal | None:
    if kind == "Literal":
        return Normal(repr(node.this) if node.is_string else str(node.this).lower(), shown=str(node.this))
    if kind in ("Boolean", "Null"):
        return Normal(str(node.sql(dialect="spark")).upper())
    if kind == "DataType":
        text = str(node.sql(dialect="spark"))
        return Normal(text if "<" in text else text.upper())
    if kind in ("Identifier", "Var"):
        return Normal(str(node.name).lower())
    return Normal("*") if kind == "Star" else None


def _of_call(node: Any, kind: str, sql: str, inner: Inner) -> Normal:
    called = str(node.name).lower() if kind == "Anonymous" else function_name(node, sql)
    name = _SYNONYMS.get(called, called)
    if "arguments" in node.meta or kind == "Anonymous":
        normal = _call(name, [inner(one) for one in arguments_of(node)], name != called)
    else:
        parts: list[Normal] = []
        for argument, value in node.args.items():  # in the order of the text
            values = value if isinstance(value, list) else [value]
            given = [one for one in values if one is not None and one is not False]
            is_node = [hasattr(one, "iter_expressions") for one in given]
            forms = [inner(v) if n else Normal(repr(v)) for v, n in zip(given, is_node, strict=True)]
            if forms:
                parts.append(_call(f"{argument}:", forms))
        normal = _call(name if name == kind else f"{name}|{kind}", parts)
    if name in _NAMED_BY_ARGUMENTS:  # the names of its fields follow from the text of its arguments
        normal = replace(normal, text=f"{normal.text} {node.sql(dialect='spark')}")
    if kind in ("Alias", "PropertyEQ", "Slice", "Kwarg"):
        normal = replace(normal, text=f"{normal.text} {node.sql(dialect='spark')}")
    return normal


def _flat(kind: str, node: Any, inner: Inner) -> Normal:
    parts: list[Normal] = []
    open_ = [node]
    while open_:
        one = open_.pop(0)
        one = one.unnest()
        if type(one).__name__ == kind:
            open_[:0] = [one.this, one.expression]
        else:
            parts.append(inner(one))
    return _joined(kind, parts, False)


def _joined(kind: str, parts: list[Normal], is_rewritten: bool) -> Normal:
    ordered = sorted({part.text: part for part in parts}.values(), key=lambda part: part.text)
    refs = tuple(ref for part in parts for ref in part.refs)  # as written
    return replace(_call(kind, ordered, is_rewritten or ordered != parts), refs=refs)


def _symmetric(kind: str, left: Normal, right: Normal) -> Normal:
    pair = sorted([left, right], key=lambda part: part.text)
    return replace(_call(kind, pair, pair != [left, right]), refs=(*left.refs, *right.refs))


def _call(name: str, parts: Iterable[Normal], is_rewritten: bool = False) -> Normal:
    listed = list(parts)
    return Normal(
        f"{name}({', '.join(part.text for part in listed)})",
        tuple(ref for part in listed for ref in part.refs),
        is_rewritten=is_rewritten or any(part.is_rewritten for part in listed),
    )
