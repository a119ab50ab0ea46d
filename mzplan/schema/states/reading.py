"""Reads a query from the leaves up: its stateful operators in Spark's order, and the rows between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from mzplan.schema.relations.nodes import named_queries
from mzplan.schema.relations.parse import RelationalQuery
from mzplan.schema.relations.tree import Input
from mzplan.schema.sql.type_rules import wider
from mzplan.schema.states.normal import Normal, UndecidedError
from mzplan.schema.states.rows import Named, Names, Operator, Output, Rows
from mzplan.schema.states.select import Select
from mzplan.schema.user_functions import function_versions, returned_types


class Reading:
    """The reading of one query.

    - `returned`, `versions`: the types and versions of the user's functions, by name.
    - `operators`: from the leaves up, left before right: Spark numbers them so.
    - `needs`: by reference to a column of an operator, union or generator, the columns it is computed from.
    - `needed`: the columns that are read whatever the result needs.
    - `paths`: the normal forms of the fields that the query reads in columns.
    """

    def __init__(self, query: RelationalQuery, inputs: Mapping[str, Input], body: Mapping[str, Any]):
        self.query, self.inputs = query, inputs
        self.returned, self.versions = returned_types(body), function_versions(body)
        self.operators: list[Operator] = []
        self.needs: dict[str, tuple[str, ...]] = {}
        self.needed: set[str] = set()
        self.paths: set[str] = set()
        self._uses: Counter[str] = Counter()
        self._numbers: Counter[str] = Counter()

    def rows(self, node: Any, names: Names) -> Rows:
        """Return the rows of a query in the tree."""
        for cte in named_queries(node):
            columns = _column_names(cte)
            names = {**names, cte.alias.lower(): Named(cte.this, names, columns)}
        match type(node).__name__:
            case "Subquery":
                return self.rows(node.this, names)
            case "Union":
                return self._union(node, names)
            case "Select":
                return Select(self, node, names).rows()
        raise UndecidedError(f"{type(node).__name__.upper()} isn't analysed")

    def relation(self, node: Any, names: Names) -> Rows:
        """Return the rows of a relation in FROM or JOIN."""
        if type(node).__name__ == "Subquery":
            return self.rows(node.this, names).renamed(_column_names(node))
        if (named := names.get(node.name.lower())) is not None:
            return self.rows(named.query, named.names).renamed(named.columns).renamed(_column_names(node))
        input_ = self.inputs.get(node.name)
        if input_ is None:
            raise UndecidedError(f"{node.name} isn't a stream")
        self._uses[node.name] += 1
        use = self._uses[node.name]
        label = node.name if use == 1 else f"{node.name}#{use}"
        outputs = []
        for column in input_.columns:
            ref = f"{label}.{column.name.lower()}"
            value = Normal(f"{ref}:{column.type}", (ref,), column.type, column.name)
            outputs.append(Output(column.name, value))
        mark = f" with a watermark on {input_.event_time.lower()}" if input_.event_time else ""
        return Rows(outputs, f"{label}{mark}").renamed(_column_names(node))

    def _union(self, node: Any, names: Names) -> Rows:
        branches = [self.rows(branch, names) for branch in _branches(node)]
        if len({len(branch.outputs) for branch in branches}) > 1:
            raise UndecidedError("the SELECTs of a UNION have different numbers of columns")
        first, number = branches[0], self.number("union")
        in_order = self._in_order(branches)
        outputs = []
        for place, output in enumerate(first.outputs):
            ref = f"union{number}.{place}"
            self.needs[ref] = tuple(ref for one in branches for ref in one.outputs[place].value.refs)
            text = f"({' | '.join(one.outputs[place].value.text for one in in_order)})"
            types = [one.outputs[place].value.type for one in branches]
            type_ = reduce(lambda a, b: wider(a, b) if a and b else None, types)
            outputs.append(Output(output.name, Normal(text, (ref,), type_, output.value.shown)))
        self.needed.update(ref for side in branches for f in side.filters for ref in f.refs)
        source = f"union({' | '.join(map(described, in_order))})"
        rows = Rows(outputs, source, operators=tuple(n for one in branches for n in one.operators))
        rows.renames = any(one.renames for one in branches)
        rows.is_united = any(side.filters or side.is_united for side in branches)
        return self.distinct(rows) if node.args.get("distinct") else rows

    def _in_order(self, branches: list[Rows]) -> list[Rows]:
        """Return the branches of a UNION in an order that doesn't depend on the text.

        Their order counts if one has an operator, which Spark numbers, or if a stream is read twice: its
        readings may be at different positions, which the checkpoint has by order.
        """
        if any(branch.operators for branch in branches) or max(self._uses.values(), default=0) > 1:
            return branches
        return sorted(branches, key=lambda one: (described(one), [o.value.text for o in one.outputs]))

    def distinct(self, rows: Rows) -> Rows:
        """Return the distinct rows; a stateful operator whose keys are all columns."""
        return self.aggregated(Operator("DISTINCT", [rows], [o.value for o in rows.outputs]), rows.outputs)

    def aggregated(self, operator: Operator, outputs: Sequence[Output]) -> Rows:
        """Add an operator; return rows of its keys under the names of these columns."""
        number = len(self.operators)
        self.operators.append(operator)
        keys = [
            Output(output.name, self.key(number, place, output.value)) for place, output in enumerate(outputs)
        ]
        return Rows(keys, f"operator {number}", operators=(*operator.sides[0].operators, number))

    def key(self, number: int, place: int, value: Normal) -> Normal:
        """Return the output column of an operator's key."""
        ref = f"op{number}.k{place}"
        self.needs[ref] = value.refs
        return Normal(f"op{number}.key({value.text})", (ref,), value.type, value.shown)

    def number(self, kind: str) -> int:
        """Return the next number of a union or generator."""
        self._numbers[kind] += 1
        return self._numbers[kind]


def _branches(union: Any) -> list[Any]:
    """Return the SELECTs of a UNION, in the order of the text."""
    left = union.this
    is_plain = type(left).__name__ == "Union" and not left.args.get("distinct") and not named_queries(left)
    return [*(_branches(left) if is_plain else [left]), union.expression]


def described(rows: Rows) -> str:
    """Return a text for rows: where they come from, their conditions, and all their columns in order."""
    conditions = " and ".join(sorted({one.text for one in rows.filters}))
    return f"{rows.source} where [{conditions}]"


def _column_names(node: Any) -> list[str]:
    alias = node.args.get("alias")
    return [name.name for name in alias.args.get("columns") or ()] if alias is not None else []
