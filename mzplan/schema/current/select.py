"""The rows of a SELECT as SQL (see rows).

Its FROM is written again, with the relation or subquery that changes reduced to its changed rows. A join that
keeps rows without a match has several variants: with the match, and with NULL in place of one side.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mzplan.schema.current.columns import Columns, Place, Reference
from mzplan.schema.current.correlation import semi_join
from mzplan.schema.current.expressions import conjuncts, is_of_one_row, with_fields
from mzplan.schema.current.rows import Derived, Rows, UntraceableError
from mzplan.schema.relations.nodes import own_columns, windows_in
from mzplan.schema.relations.scopes import Relation
from mzplan.schema.relations.tree import Block, Path

_MOST_VARIANTS = 16
# 0.0 and -0.0 are one value of a key, and two values of an expression such as CAST(key AS STRING).
_OF_TWO_ZEROS = ("DOUBLE", "FLOAT")


@dataclass(frozen=True, slots=True)
class Variant:
    """A FROM: its relations, and the numbers of those whose columns are NULL."""

    relations: tuple[str, ...]
    nulls: frozenset[int] = frozenset()

    def joined(self, sql: str) -> Variant:
        return replace(self, relations=(*self.relations, sql))

    def without(self, numbers: Iterable[int]) -> Variant:
        return replace(self, nulls=self.nulls | frozenset(numbers))


class SelectRows:
    """Makes the rows of one SELECT. `path`: the use that changes; None for all rows."""

    def __init__(self, rows: Rows, block: Block, path: Path | None):
        self.rows, self._block, self._path = rows, block, path
        self.columns = Columns(block)
        self._aliases = [rows.alias() for _ in block.sources]
        self._changed = path[0][1] if path is not None and path[0][0] == "source" else -1
        where = block.node.args.get("where")
        self.conditions = list(conjuncts(where.this)) if where is not None else []
        self._on = {
            number: list(conjuncts(node.args["on"]))
            for number, (node, _) in enumerate(block.sources)
            if type(node).__name__ == "Join" and node.args.get("on") is not None
        }
        self._relations: dict[int, Derived] = {}

    def derived(self, needed: Collection[int], extra: Sequence[Any] = ()) -> Derived:
        """Return the rows with these of the block's columns, or with these expressions of its relations."""
        trees = {position: self.item(position) for position in sorted(needed)}
        trees |= {len(self._block.items) + number: tree for number, tree in enumerate(extra)}
        usable = {position: tree for position, tree in trees.items() if tree is not None}
        conditions = [tree for tree in self.conditions if self.is_plain(tree)]
        trees_used = [*usable.values(), *conditions]
        self._derive_relations(trees_used)
        referenced = {n for tree in trees_used for n, _ in self._places(tree)} | self._needed_beside()
        selects: list[tuple[dict[int, str | None], str]] = []
        for variant in self._variants(referenced):
            columns = {position: self.sql(tree, variant) for position, tree in usable.items()}
            where = [f"({sql})" for tree in conditions if (sql := self.sql(tree, variant)) is not None]
            rest = f"FROM {' '.join(variant.relations)}{' WHERE ' if where else ''}{' AND '.join(where)}"
            selects.append((columns, rest))
        if self._path is None and self._block.groups == []:
            return self._one_row(usable)
        known = [p for p in usable if all(columns[p] is not None for columns, _ in selects)]
        verb = "SELECT" if self._path is None else "SELECT DISTINCT"
        sql = " UNION ALL ".join(
            f"{verb} {', '.join(f'{columns[p]} AS c{p}' for p in known) or '1 AS c'} {rest}"
            for columns, rest in selects
        )
        return Derived(f"({sql})", {position: f"c{position}" for position in known})

    def sql(self, tree: Any, variant: Variant, joined: int | None = None) -> str | None:
        """Return an expression as SQL over a FROM; None if it needs a column that can't be computed.

        `joined`: the relation whose ON has it.
        """
        faithful = self.rows.faithful
        return faithful.with_columns(tree, lambda column: self.column_sql(column, variant, joined))

    def column_sql(self, column: Any, variant: Variant, joined: int | None = None) -> str | None:
        """Return a column as SQL over a FROM; None if it can't be computed."""
        reference = self.columns.find(column, joined)
        return None if reference is None else self._reference_sql(reference, variant)

    def column_of_joins(self, column: Any, variant: Variant) -> str | None:
        """Like `column_sql`, before LATERAL VIEW."""
        views = {n for n, (node, _) in enumerate(self._block.sources) if type(node).__name__ == "Lateral"}
        reference = self.columns.find(column)
        if reference is None or any(number in views for number, _ in reference.places):
            return None
        return self._reference_sql(reference, variant)

    # ── expressions

    def _reference_sql(self, reference: Reference, variant: Variant) -> str | None:
        values = [self._place_sql(place, variant) for place in reference.places]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        sql = known[0] if len(known) == 1 else f"coalesce({', '.join(known)})"
        return with_fields(sql, reference.fields)

    def _place_sql(self, place: Place, variant: Variant) -> str | None:
        number, position = place
        if number in variant.nulls:
            type_ = self._block.sources[number][1].fields[position].type
            return f"CAST(NULL AS {type_})" if type_ is not None else "NULL"
        name = self._relations[number].columns.get(position) if number in self._relations else None
        return f"{self._aliases[number]}.{name}" if name is not None else None

    def _places(self, tree: Any, joined: int | None = None) -> Iterator[Place]:
        for column in own_columns(tree):
            reference = self.columns.find(column, joined)
            yield from reference.places if reference is not None else ()

    def is_plain(self, tree: Any) -> bool:
        """Return whether an expression has a value in each row, and its SQL is certain."""
        return is_of_one_row(tree) and self.rows.faithful.has(tree)

    def _one_row(self, constants: Mapping[int, Any]) -> Derived:
        """Return the row of an aggregation without GROUP BY, which has one even if it reads no rows."""
        found = ((position, self.sql(tree, Variant(()))) for position, tree in constants.items())
        known = {position: sql for position, sql in found if sql is not None}
        items = "".join(f"{sql} AS c{position}, " for position, sql in known.items())
        sql = f"(SELECT {items}count(*) AS c FROM {self._table(0)})"
        return Derived(sql, {position: f"c{position}" for position in known})

    def item(self, position: int) -> Any:
        """Return the expression of an item; None if it isn't computed from one row.

        For changed rows, it must also be the same in all rows that an aggregation, a window function or LIMIT
        computes a row of the result from.
        """
        block = self._block
        tree = self.columns.tree_of(block.items[position])
        if not self.is_plain(tree):
            return None
        if block.groups is not None and not self._is_fixed_by(tree, block.groups):
            return None
        if self._path is not None:
            windows = [window for item in block.node.expressions for window in windows_in(item)]
            if block.is_counted or not all(self._is_fixed_by(tree, self._partition(w)) for w in windows):
                return None
        return tree

    def _partition(self, window: Any) -> Sequence[Any]:
        """Return the PARTITION BY of a window function, also of a named window."""
        named = {one.name.lower(): one for one in self._block.node.args.get("windows") or ()}
        own = named.get(window.alias.lower(), window) if window.alias else window
        return [*(own.args.get("partition_by") or ()), *(window.args.get("partition_by") or ())]

    def _is_fixed_by(self, tree: Any, keys: Sequence[Any]) -> bool:
        """Return whether an expression has one value for each value of the keys."""
        scope = self._block.scope
        known = {scope.key(key) for key in keys}
        is_key = type(tree.unnest()).__name__ == "Column" or scope.key(tree) in known
        types = (scope.find(column)[0].type or "" for column in own_columns(tree))
        if not is_key and any(word in type_ for type_ in types for word in _OF_TWO_ZEROS):
            return False
        return _is_fixed_by(self._block, tree, known)

    # ── FROM

    def _derive_relations(self, trees: Iterable[Any]) -> None:
        """Fill in the relations with the columns that expressions need."""
        block = self._block
        places = {place for tree in trees for place in self._places(tree)}
        for number, parts in self._on.items():
            places |= {place for tree in parts for place in self._places(tree, number)}
        for pairs in self.columns.pairs.values():
            places |= {place for pair in pairs for one in pair for place in one.places}
        places |= set(self._places_beside())
        for number, (node, relation) in enumerate(block.sources):
            needed = {position for of, position in places if of == number}
            below = self._path[1:] if self._path is not None and number == self._changed else None
            if relation.of is not None:
                self._relations[number] = self.rows.of_relation(relation, needed, below)
            else:
                self._derive_lateral(number, node, relation)

    def _places_beside(self) -> Iterator[Place]:
        """Yield the columns that LATERAL VIEW needs, and the subquery that changes."""
        for node, _ in self._block.sources:
            if type(node).__name__ == "Lateral":
                yield from self._places(node.this)
        if self._path is not None and self._path[0][0] == "subquery":
            node, _ = self._block.subqueries[self._path[0][1]]
            parents = [node.parent.this] if type(node.parent).__name__ == "In" else []
            for column in (*all_columns(node), *(c for parent in parents for c in own_columns(parent))):
                reference = self.columns.find(column)
                yield from reference.places if reference is not None else ()

    def _needed_beside(self) -> set[int]:
        return {number for number, _ in self._places_beside()}

    def _derive_lateral(self, number: int, node: Any, relation: Relation) -> None:
        names = {position: f"c{position}" for position in range(len(relation.fields))}
        if self._lateral_sql(number, node, Variant(()), names) is not None:
            self._relations[number] = Derived("", names)

    def _lateral_sql(self, number: int, node: Any, variant: Variant, names: dict[int, str]) -> str | None:
        """Return a LATERAL VIEW; None if its function can't be computed."""
        if not self.rows.faithful.has(node.this):
            return None
        called = self.sql(node.this, variant)
        outer = "OUTER " if node.args.get("outer") else ""
        columns = ", ".join(names[position] for position in sorted(names))
        return (
            None if called is None else f"LATERAL VIEW {outer}{called} {self._aliases[number]} AS {columns}"
        )

    def _variants(self, referenced: set[int]) -> list[Variant]:
        """Return the variants of FROM. `referenced`: the relations whose columns the SELECT needs."""
        variants = [Variant((self._table(0),))]
        joins = [n for n, (node, _) in enumerate(self._block.sources) if n and n in self._relations]
        for number in joins:
            node = self._block.sources[number][0]
            if type(node).__name__ != "Join":
                continue
            later = {of for n in joins if n > number for of in self._needed_by_join(n)}
            variants = list(dict.fromkeys(self._join(number, node, variants, referenced | later)))
            if len(variants) > _MOST_VARIANTS:
                raise UntraceableError("too many outer joins decide which rows are affected")
        if self._path is not None and self._path[0][0] == "subquery":
            (_, place), *below = self._path
            node, block = self._block.subqueries[place]
            variants = [v.joined(semi_join(self.rows, self, node, block, tuple(below), v)) for v in variants]
        for number, (node, _) in enumerate(self._block.sources):
            if type(node).__name__ == "Lateral" and number in self._relations:
                names = dict(self._relations[number].columns)
                views = [(v, self._lateral_sql(number, node, v, names)) for v in variants]
                variants = [v.joined(sql) if sql is not None else v for v, sql in views]
        return variants

    def _needed_by_join(self, number: int) -> Iterator[int]:
        for tree in self._on.get(number, ()):
            yield from (of for of, _ in self._places(tree, number))
        for left, right in self.columns.pairs.get(number, ()):
            yield from (of for of, _ in (*left.places, *right.places))

    def _table(self, number: int) -> str:
        return f"{self._relations[number].sql} AS {self._aliases[number]}"

    def _join(
        self, number: int, node: Any, variants: Sequence[Variant], referenced: set[int]
    ) -> Iterator[Variant]:
        """Yield the variants of FROM with one more relation."""
        side, kind = str(node.side).upper(), str(node.kind).upper()
        is_needed, before = number in referenced, set(range(number))
        is_change, before_needed = number == self._changed, bool(before & referenced)
        is_change_before = 0 <= self._changed < number
        for variant in variants:
            matched = self._matched(number, variant, is_needed, is_change)
            if kind == "ANTI":
                yield matched if is_change else variant
                continue
            if kind == "SEMI":
                yield matched
                continue
            if side not in ("LEFT", "FULL"):
                yield matched
            elif is_needed:
                yield matched
                yield (matched if is_change else variant).without({number})
            else:
                yield matched if is_change else variant
            if side in ("RIGHT", "FULL") and is_change_before:
                yield matched.without(before if before_needed else ())
        if side in ("RIGHT", "FULL") and not is_change_before:
            yield Variant((self._table(number),), frozenset(before))

    def _matched(self, number: int, variant: Variant, is_needed: bool, is_change: bool) -> Variant:
        """Return a FROM joined with the rows of a relation that match, or may match."""
        on = [f"({s})" for tree in self._on.get(number, ()) if (s := self._on_sql(tree, variant, number))]
        for left, right in self.columns.pairs.get(number, ()):
            pair = self._reference_sql(left, variant), self._reference_sql(right, variant)
            if pair[0] is not None and pair[1] is not None:
                on.append(f"{pair[0]} = {pair[1]}")
        if not is_needed and not is_change and not on:
            return variant
        node = self._block.sources[number][0]
        if is_needed and not on and (node.args.get("on") is not None or self.columns.pairs.get(number)):
            raise UntraceableError("the condition of a JOIN compares values that single rows don't have")
        kind = str(node.kind).upper()
        is_semi = not is_needed and (is_change or kind == "SEMI")
        verb = "LEFT SEMI JOIN" if is_semi else "JOIN" if on else "CROSS JOIN"
        condition = f" ON {' AND '.join(on) or 'true'}" if on or is_semi else ""
        return variant.joined(f"{verb} {self._table(number)}{condition}")

    def _on_sql(self, tree: Any, variant: Variant, number: int) -> str | None:
        return self.sql(tree, variant, number) if self.is_plain(tree) else None


def _is_fixed_by(block: Block, tree: Any, keys: set[str]) -> bool:
    from sqlglot import exp

    key = block.scope.key(tree)
    if key in keys:
        return True
    if isinstance(tree, exp.Column):
        return any(key.startswith(f"{one}.") for one in keys)  # a field of a key
    return all(_is_fixed_by(block, child, keys) for child in tree.iter_expressions())


def all_columns(node: Any) -> Iterator[Any]:
    from sqlglot import exp

    columns = node.find_all(exp.Column)
    return (column for column in columns if not isinstance(column.this, exp.Star))
