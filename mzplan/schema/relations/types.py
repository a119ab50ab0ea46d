"""The types of expressions in a SELECT, and the columns of generators such as explode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mzplan.schema.columns import Column, parse_columns
from mzplan.schema.relations.nodes import QueryError, function_of, generator_of, start_of
from mzplan.schema.relations.scopes import Scope
from mzplan.schema.sql.sql_text import BareText, arguments_of
from mzplan.schema.sql.sql_types import ExpressionTypes
from mzplan.schema.sql.type_rules import field_type, inside, pair_of
from mzplan.schema.sql.type_rules import wider as common_type

if TYPE_CHECKING:
    from mzplan.schema.relations.tree import Block


class QueryTypes(ExpressionTypes):
    """Finds the types of expressions in one SELECT.

    - `is_certain`: sqlglot's tree has everything that is in the text.
    - `returned`: see ExpressionTypes.
    - `blocks`: the blocks of the subqueries in expressions, by the identity of their nodes.
    """

    def __init__(
        self,
        text: BareText,
        scope: Scope,
        is_certain: bool,
        returned: Mapping[str, str] = MappingProxyType({}),
        blocks: Mapping[int, Block] = MappingProxyType({}),
    ):
        super().__init__(text, 0, {}, returned)
        self._scope, self._is_certain, self._blocks = scope, is_certain, blocks

    def of(self, node: Any) -> str | None:
        """Return the type in canonical DDL; None if only Spark knows it."""
        if not self._is_certain:
            return None
        if (block := self._blocks.get(id(node))) is not None:
            return block.items[0].field.type
        if type(node).__name__ == "Window":
            return self.of(function_of(node))
        return super().of(node)

    def column(self, node: Any) -> str | None:
        """Return the type of a column, or of a field in it. Raises QueryError for an unknown column."""
        field, rest = self._scope.find(node)
        return reduce(field_type, rest, field.type)

    def generated(self, node: Any) -> list[tuple[str, str | None]]:
        """Return the default names and types of a generator function's columns, such as explode."""
        name, arguments = generator_of(node), arguments_of(node)
        if name == "JsonTuple":
            return [(f"c{number}", "STRING") for number in range(len(arguments) - 1)]
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
