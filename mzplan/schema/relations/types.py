"""The result types of aggregate functions, windows and generators, by Spark 4's rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

from mzplan.schema.columns import Column, parse_columns
from mzplan.schema.relations.parse import QueryError, start_of
from mzplan.schema.relations.scopes import Scope
from mzplan.schema.sql_text import BareText
from mzplan.schema.sql_types import (
    DECIMAL,
    INTEGRAL,
    TIMES,
    ExpressionTypes,
    field_type,
    if_number,
    inside,
    pair_of,
    struct_of,
)
from mzplan.schema.sql_types import wider as common_type

_MAX_DIGITS = 38


class QueryTypes(ExpressionTypes):
    """Finds the types of expressions in one SELECT.

    `is_certain`: sqlglot's tree has everything that is in the text.
    """

    def __init__(self, text: BareText, scope: Scope, is_certain: bool):
        super().__init__(text, 0, {})
        self._scope, self._is_certain = scope, is_certain

    def of(self, node: Any) -> str | None:
        """Return the type in canonical DDL; None if only Spark knows it."""
        if not self._is_certain:
            return None
        node = node.unnest()
        rule = _RULES.get(self.function_name(node)) or _RULES.get(type(node).__name__)
        return rule(self, node) if rule else super().of(node)

    def column(self, node: Any) -> str | None:
        """Return the type of a column, or of a field in it. Raises QueryError for an unknown column."""
        field, rest = self._scope.find(node)
        return reduce(field_type, rest, field.type)

    def generated(self, node: Any) -> list[tuple[str, str | None]]:
        """Return the default names and types of a generator function's columns, such as explode."""
        name, arguments = type(node).__name__, list(node.iter_expressions())
        if name == "Stack":
            return self._stack(arguments)
        of = self.of(arguments[0])
        element, pair = inside(of, "ARRAY"), pair_of(of) if of else None
        if name == "Inline":
            return [(field.name, field.type) for field in self._fields(element, arguments[0])]
        columns: list[tuple[str, str | None]] = [("col", element)]
        if pair is not None:
            columns = [("key", pair[0]), ("value", pair[1])]
        return [("pos", "INT"), *columns] if name.startswith("Posexplode") else columns

    def _fields(self, element: str | None, node: Any) -> tuple[Column, ...]:
        struct = inside(element, "STRUCT")
        if struct is None:
            raise QueryError(
                "inline(…) needs an ARRAY<STRUCT<…>>; this has another type, or only Spark knows the type",
                start_of(node),
                "write CAST(… AS ARRAY<STRUCT<…>>).",
            )
        return parse_columns(struct)

    def _stack(self, arguments: Sequence[Any]) -> list[tuple[str, str | None]]:
        rows = int(arguments[0].name) if arguments[0].name.isdecimal() else 1
        values = arguments[1:]
        width = -(-len(values) // max(rows, 1))
        columns: list[tuple[str, str | None]] = []
        for place in range(width):
            types = [self.of(value) for value in values[place::width]]
            type_ = types[0]
            for other in types[1:]:
                type_ = common_type(type_, other) if type_ and other else None
            columns.append((f"col{place}", type_))
        return columns

    # ── aggregate functions

    def _argument(self, node: Any) -> str | None:
        """Return the type of the first argument."""
        first = node.expressions[0] if type(node).__name__ == "Anonymous" else node.this
        return self.of(first) if hasattr(first, "walk") else None

    def _sum(self, node: Any) -> str | None:
        type_ = if_number(self._argument(node))
        if match := DECIMAL.match(type_ or ""):
            return f"DECIMAL({min(int(match[1]) + 10, _MAX_DIGITS)},{match[2]})"
        return "BIGINT" if type_ in INTEGRAL else "DOUBLE" if type_ else None

    def _average(self, node: Any) -> str | None:
        type_ = if_number(self._argument(node))
        if match := DECIMAL.match(type_ or ""):
            digits, scale = int(match[1]) + 4, int(match[2]) + 4
            return f"DECIMAL({digits},{scale})" if digits <= _MAX_DIGITS else None
        return "DOUBLE" if type_ else None

    def _list(self, node: Any) -> str | None:
        type_ = self._argument(node)
        return f"ARRAY<{type_}>" if type_ else None

    def _filter(self, node: Any) -> str | None:
        return self.of(node.this)

    def _window(self, node: Any) -> str | None:
        type_ = self._argument(node)
        return struct_of([Column("start", type_), Column("end", type_)]) if type_ in TIMES else None

    def _window_time(self, node: Any) -> str | None:
        return field_type(self._argument(node), "end")

    def _count(self, node: Any) -> str | None:
        return "BIGINT"

    def _double(self, node: Any) -> str | None:
        return "DOUBLE" if if_number(self._argument(node)) else None

    def _boolean(self, node: Any) -> str | None:
        return "BOOLEAN"


_RULES: Mapping[str, Callable[[QueryTypes, Any], str | None]] = {
    name: rule
    for names, rule in (
        ("count count_if approx_count_distinct regr_count Count", QueryTypes._count),
        ("sum try_sum Sum", QueryTypes._sum),
        ("avg mean try_avg Avg", QueryTypes._average),
        ("min max first first_value last last_value any_value mode Min Max", QueryTypes._argument),
        ("max_by min_by ArgMax ArgMin bit_and bit_or bit_xor", QueryTypes._argument),
        ("stddev stddev_samp stddev_pop std variance var_samp var_pop skewness kurtosis", QueryTypes._double),
        ("collect_list collect_set array_agg ArrayAgg ArrayUniqueAgg", QueryTypes._list),
        ("bool_and bool_or every any some LogicalAnd LogicalOr", QueryTypes._boolean),
        ("Filter", QueryTypes._filter),
        ("window session_window", QueryTypes._window),
        ("window_time", QueryTypes._window_time),
    )
    for name in names.split()
}
