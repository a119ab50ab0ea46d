"""Reads one SELECT: its relations, conditions and items, and the stateful operators that it adds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from mzplan.schema.relations.nodes import QueryError, from_of, generator_of, start_of
from mzplan.schema.relations.scopes import Scope as TypeScope
from mzplan.schema.relations.types import QueryTypes
from mzplan.schema.sql.functions import is_aggregate
from mzplan.schema.sql.sql_text import arguments_of, function_name
from mzplan.schema.sql.type_rules import field_type
from mzplan.schema.states.buffers import buffer_types
from mzplan.schema.states.joins import joined, relation_name
from mzplan.schema.states.normal import Normal, UndecidedError, conjuncts, normal_form
from mzplan.schema.states.rows import Names, Operator, Output, Relation, Rows, Scope

if TYPE_CHECKING:
    from mzplan.schema.states.reading import Reading


class _Types(QueryTypes):
    """The types of expressions, with the columns of a Scope."""

    def __init__(self, text: Any, scope: Scope, returned: Mapping[str, str]):
        super().__init__(text, TypeScope(), True, returned)
        self._columns_of = scope

    def column(self, node: Any) -> str | None:
        found, rest = self._columns_of.find(node)
        return reduce(field_type, rest, found.type)


class Select:
    """The reading of one SELECT."""

    def __init__(self, reading: Reading, node: Any, names: Names):
        self._reading, self._node, self._names = reading, node, names
        self._scope = Scope()
        self._types = _Types(reading.query.text, self._scope, reading.returned)
        self._keys: dict[str, Normal] = {}  # by the normal form of a GROUP BY expression
        self._operator: Operator | None = None
        self._number = self._last = -1  # the operator's, and the position of its last aggregate

    def rows(self) -> Rows:
        """Return the rows of the SELECT."""
        node = self._node
        below = self._from()
        if (where := node.args.get("where")) is not None:
            below.filters += conjuncts(where.this, self._value)
        having = node.args.get("having")
        parts = [*node.expressions, *([having] if having is not None else [])]
        if node.args.get("group") is not None or any(is_aggregate(n) for p in parts for n in p.walk()):
            rows = self._aggregated(below, having)
        else:
            rows = self._projected(below)
        return self._reading.distinct(rows) if node.args.get("distinct") else rows

    # ── FROM

    def _from(self) -> Rows:
        node = self._node
        first = from_of(node)
        rows = self._reading.relation(first, self._names)
        self._scope.add(Relation(relation_name(first), rows.outputs))
        rows = replace(rows, filters=list(rows.filters))
        for join in node.args.get("joins") or ():
            rows = joined(self._reading, self._scope, rows, join, self._names, self._value)
        for lateral in node.args.get("laterals") or ():
            alias = lateral.args.get("alias")
            columns = [c.name for c in alias.args.get("columns") or ()] if alias is not None else []
            name = alias.name.lower() if alias is not None and alias.this is not None else ""
            how = "outer " if lateral.args.get("outer") else ""
            outputs = self._generated(rows, lateral.this, columns, how)
            self._scope.add(Relation(name, outputs))
        return rows

    def _generated(self, rows: Rows, call: Any, names: list[str], how: str = "") -> list[Output]:
        """Return the columns of a generator, and add it to the source of the rows."""
        if self._operator is not None:
            raise UndecidedError("an item makes several rows of a group")
        value = self._value(call)
        number = self._reading.number("generator")
        self._reading.needed.update(value.refs)
        rows.source += f" each {how}{value.text}"
        rows.aggregation = None
        outputs = []
        for place, (default, type_) in enumerate(self._types.generated(call)):
            name = names[place] if place < len(names) else default
            ref = f"generator{number}.{place}"
            self._reading.needs[ref] = value.refs
            outputs.append(Output(name, Normal(f"{how}{value.text}[{place}]#{number}", (ref,), type_, name)))
        return outputs

    # ── SELECT

    def _projected(self, below: Rows) -> Rows:
        outputs = list(self._items(below, self._value))
        rows = replace(
            below, outputs=outputs, renames=below.renames or any(map(_renames, self._node.expressions))
        )
        if rows.aggregation is not None:
            values = self._reading.operators[rows.aggregation].values
            named = [ref for output in outputs for ref in output.value.refs if ref in values]
            self._reading.operators[rows.aggregation].orders.append(list(dict.fromkeys(named)))
        return rows

    def _items(self, below: Rows, value: Any) -> Iterator[Output]:
        for item in self._node.expressions:
            inner = item.unalias()
            if type(item).__name__ == "Aliases":
                inner = item.this
            column = type(inner).__name__ == "Column"
            if inner.is_star and (column or type(inner).__name__ == "Star"):
                star = inner.this if column else inner
                left_out = star.args.get("except_") or star.args.get("except") or ()
                without = {name.name.lower() for name in left_out}
                table = inner.table if column else ""
                stars = [o for o in self._scope.star(table) if o.name.lower() not in without]
                yield from (Output(o.name, self._grouped_value(o.value)) for o in stars)
            elif generator_of(inner):
                names = [alias.name for alias in item.expressions] if type(item).__name__ == "Aliases" else []
                yield from self._generated(below, inner, names or ([item.alias] if item.alias else []))
            else:
                found = value(inner)
                name = item.alias or item.name
                self._scope.aliases.setdefault(name.lower(), found)
                yield Output(name, found)

    def _grouped_value(self, value: Normal) -> Normal:
        if self._operator is None:
            return value
        if value.text not in self._keys:
            raise UndecidedError("`*` has columns that aren't in GROUP BY")
        return self._keys[value.text]

    def _value(self, node: Any) -> Normal:
        """Return the normal form of an expression over the rows below."""
        return self._finish(node, self._bare(node, self._value))

    def _bare(self, node: Any, inner: Any) -> Normal:
        if type(node).__name__ == "Column" and not node.is_star:
            found, rest = self._scope.find(node)
            if not rest:
                return found
            text, type_ = _of_field(found, rest)
            self._reading.paths.add(text)
            return Normal(text, found.refs, type_, ".".join([found.shown, *rest]), found.is_rewritten)
        if type(node).__name__ == "Dot" and type(node.expression).__name__ == "Identifier":
            of = inner(node.this)
            text, _ = _of_field(of, [node.expression.name])
            self._reading.paths.add(text)
            return Normal(text, of.refs, None, "", of.is_rewritten)
        return normal_form(node, self._reading.query.text.sql, inner, self._reading.versions)

    def _finish(self, node: Any, normal: Normal) -> Normal:
        """Return a normal form with its type and its text for people."""
        if normal.shown and normal.type:
            return normal
        try:
            type_ = normal.type or self._types.of(node)
        except QueryError:
            type_ = None
        shown = normal.shown or self._shown(node)
        return Normal(normal.text, normal.refs, type_, shown, normal.is_rewritten)

    def _shown(self, node: Any) -> str:
        """Return the SQL of an expression, with what its columns stand for."""
        from sqlglot import exp

        shown = node.copy()
        for column in list(shown.find_all(exp.Column)):
            if not column.is_star and column is not shown:
                found, rest = self._scope.find(column)
                text = ".".join([found.shown, *rest])
                column.replace(exp.Var(this=text if found.shown.isidentifier() else f"({text})"))
        return str(shown.sql(dialect="spark", normalize_functions="lower"))

    # ── GROUP BY

    def _aggregated(self, below: Rows, having: Any) -> Rows:
        groups = [self._value(group) for group in self._groups()]
        groups = list({group.text: group for group in groups}.values())
        self._number = len(self._reading.operators)
        is_session = any(group.text.startswith("session_window(") for group in groups)
        self._operator = Operator("session aggregation" if is_session else "aggregation", [below], groups)
        self._reading.operators.append(self._operator)
        for place, group in enumerate(groups):
            self._keys[group.text] = self._reading.key(self._number, place, group)
        outputs = list(self._items(below, self._above))
        filters = conjuncts(having.this, self._in_having) if having is not None else []
        operators = (*below.operators, self._number)
        return Rows(outputs, f"operator {self._number}", filters, operators, self._number)

    def _groups(self) -> Iterator[Any]:
        """Yield the GROUP BY expressions, with the select items in place of their numbers and names."""
        group, items = self._node.args.get("group"), self._node.expressions
        if group is None:
            return
        if group.args.get("all"):
            if any(item.is_star for item in items) or any(generator_of(item.unalias()) for item in items):
                raise UndecidedError("GROUP BY ALL beside `*` isn't analysed")
            yield from (i.unalias() for i in items if not any(map(is_aggregate, i.walk())))
            return
        by_name = {item.alias.lower(): item.this for item in items if type(item).__name__ == "Alias"}
        for key in group.expressions:
            name = key.name.lower()
            if type(key).__name__ == "Literal" and not key.is_string and key.name.isdecimal():
                yield items[int(key.name) - 1].unalias()
            elif type(key).__name__ == "Column" and len(key.parts) == 1 and name in by_name:
                yield key if self._scope.has(name) else by_name[name]
            else:
                yield key

    def _in_having(self, node: Any) -> Normal:
        """Return the normal form of a condition of HAVING, where an item's name comes before a column's."""
        is_name = type(node).__name__ == "Column" and len(node.parts) == 1
        if is_name and (found := self._scope.aliases.get(node.name.lower())) is not None:
            return found
        return self._over_groups(node, self._in_having)

    def _above(self, node: Any) -> Normal:
        """Return the normal form of an expression over the keys and aggregates."""
        return self._over_groups(node, self._above)

    def _over_groups(self, node: Any, inner: Any) -> Normal:
        node = node.unnest()
        if is_aggregate(_call_of(node)):
            return self._aggregate(node)
        if not any(map(is_aggregate, node.walk())):
            try:
                plain = self._value(node)
            except UndecidedError:
                plain = None  # it names an item that aggregates
            if plain is not None and plain.text in self._keys:
                return self._keys[plain.text]
            own = f"op{self._number}."
            if plain is not None and all(ref.startswith(own) for ref in plain.refs):
                return plain  # a constant, or items that aggregate
        if type(node).__name__ == "Column":
            return self._over_column(node)
        return self._finish(node, self._bare(node, inner))

    def _over_column(self, node: Any) -> Normal:
        names = [str(part.name) for part in node.parts]
        found, rest = self._scope.find(node)
        if (key := self._keys.get(found.text)) is not None and rest:
            text, type_ = _of_field(key, rest)
            return Normal(text, key.refs, type_, ".".join(names[-len(rest) - 1 :]))
        raise UndecidedError(f"{node.sql(dialect='spark')} is neither grouped nor aggregated")

    def _aggregate(self, node: Any) -> Normal:
        """Return the output column of an aggregate function; the same function twice is one value."""
        assert self._operator is not None
        value = self._finish(node, self._bare(node, self._value))
        text = f"op{self._number}.{value.text}"
        values = self._operator.values
        ref = next((ref for ref, one in values.items() if one.text == value.text), "")
        if not ref:
            ref = f"op{self._number}.v{len(values)}"
            if (start := start_of(node)) < self._last:
                raise UndecidedError("aggregates aren't in the order of the text")
            self._last = start
            values[ref] = value
            self._reading.needs[ref] = value.refs
            call = _call_of(node)
            name = str(call.name).lower() if type(call).__name__ == "Anonymous" else ""
            name = name or function_name(call, self._reading.query.text.sql)
            self._operator.buffers[ref] = buffer_types(name, list(map(self._type, arguments_of(call))))
        elif value.is_rewritten or values[ref].is_rewritten:
            raise UndecidedError(f"Spark may keep {value.shown} once or twice")
        return Normal(text, (ref,), value.type, value.shown)

    def _type(self, node: Any) -> str | None:
        try:
            return self._types.of(node)
        except QueryError:
            return None


def _call_of(node: Any) -> Any:
    """Return the function call in its FILTER, WITHIN GROUP and IGNORE NULLS; the node if it has none."""
    while type(node).__name__ in ("Filter", "WithinGroup", "IgnoreNulls", "RespectNulls"):
        node = node.this.unnest()
    return node


def _of_field(value: Normal, names: list[str]) -> tuple[str, str | None]:
    """Return the text and the type of a field in a value. The case of a map's key matters."""
    text, type_ = value.text, value.type
    for name in names:
        has_fields = type_ is not None and type_.startswith(("STRUCT<", "ARRAY<STRUCT<"))
        text = f"{text}.{name.lower() if has_fields else name}"
        type_ = field_type(type_, name)
    return text, type_


def _renames(item: Any) -> bool:
    """Return whether an item of a SELECT is more than a column under its own name."""
    inner = item.unalias()
    is_column = type(inner).__name__ in ("Column", "Star")
    return not is_column or (type(item).__name__ == "Alias" and item.alias.lower() != inner.name.lower())
