"""The scope of one SELECT, which finds the columns that names stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mzplan.schema.relations.nodes import QueryError, start_of
from mzplan.schema.sql.functions import BARE_CALLS
from mzplan.schema.sql.type_rules import wider

_KEEP_TIME = frozenset(["window", "session_window", "window_time"])


@dataclass(frozen=True, slots=True)
class Field:
    """A column.

    - `type`: None if only Spark knows it.
    - `event_time`: whether the column has a watermark.
    - `parts`: the columns that it is computed from; for a column of a UNION, the columns that it unites.
    """

    name: str
    type: str | None
    event_time: bool = False
    parts: tuple[Field, ...] = ()


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation in FROM or JOIN: a collection, a subquery, a LATERAL VIEW.

    - `name`: in lower case, "" for none.
    - `stream`: some of its rows come from a stream.
    - `label`: its name in messages.
    - `of`: the name of the collection, or the block of the subquery; None for a LATERAL VIEW.
    """

    name: str
    fields: tuple[Field, ...]
    stream: bool
    label: str = ""
    of: Any = None


class UsedFields:
    """The columns that a query uses, by identity: two columns may look alike."""

    def __init__(self) -> None:
        self._fields: dict[int, Field] = {}

    def add(self, *fields: Field) -> None:
        for added in fields:
            if added not in self:
                self._fields[id(added)] = added
                self.add(*added.parts)

    def __contains__(self, one: Field) -> bool:
        return id(one) in self._fields


@dataclass(slots=True)
class Scope:
    """The relations of a SELECT, in order.

    - `visible`: the columns that need no qualifier, in the order of `*`. USING shows a column once.
    - `aliases`: the items of the SELECT by name, for GROUP BY, HAVING and later items.
    - `used`: the columns that expressions of the whole query name.
    - `by_alias`: see Analysis.
    - `around`: the scope of the SELECT whose expression has this one as a subquery.
    """

    relations: list[Relation] = field(default_factory=list)
    visible: list[tuple[Relation, Field]] = field(default_factory=list)
    aliases: dict[str, Field] = field(default_factory=dict)
    used: UsedFields = field(default_factory=UsedFields)
    by_alias: set[tuple[int, str]] = field(default_factory=set)
    around: Scope | None = None

    @property
    def stream(self) -> bool:
        """Return whether some of the rows come from a stream."""
        return any(relation.stream for relation in self.relations)

    def add(self, relation: Relation, using: Sequence[str] = (), side: str = "") -> None:
        """Add a relation.

        `using`: the columns, in lower case, that it shares with earlier ones. `side`: LEFT, RIGHT or FULL.
        """
        added = [(relation, column) for column in relation.fields]
        pairs = [(_first(self.visible, name), _first(added, name)) for name in using]
        joined = [
            _joined(left, right, side) for left, right in pairs if left is not None and right is not None
        ]
        self.used.add(*(column for left, right in pairs for _, column in filter(None, (left, right))))
        others = [*self.visible, *added]
        self.visible = [*joined, *(pair for pair in others if pair[1].name.lower() not in using)]
        self.relations.append(relation)

    def find(self, column: Any) -> tuple[Field, list[str]]:
        """Return the field that a column of sqlglot's tree stands for, and the names of the fields after it.

        Raises QueryError for an unknown or ambiguous column.
        """
        found, rest = self._find(column)
        self.used.add(found)
        return found, rest

    def _find(self, column: Any) -> tuple[Field, list[str]]:
        try:
            return self._find_here(column)
        except UnknownColumnError:
            if self.around is None:
                raise
        found = self.around.find(column)
        first = str(column.parts[0].name).lower()
        if len(column.parts) == 1 or not self.around.names(first):
            self.by_alias.add((start_of(column), first))
        return found

    def _find_here(self, column: Any) -> tuple[Field, list[str]]:
        names = [str(part.name) for part in column.parts]
        lower = [name.lower() for name in names]
        if len(names) > 1:
            for relation in self.relations:
                if relation.name == lower[0]:
                    found = _named(relation, lower[1])
                    if found is None and not self._of_all(lower[0]):
                        raise UnknownColumnError(names[1], start_of(column.parts[1]), [relation])
                    if found is not None:
                        return found, names[2:]
                    self.by_alias.add((start_of(column.parts[1]), lower[1]))  # of a STRUCT of the same name
        found_in = self._of_all(lower[0])
        if len(found_in) > 1:
            which = " and ".join(relation.label or relation.name for relation, _ in found_in)
            hint = f"write {found_in[0][0].name or 'an alias'}.{names[0]}."
            raise QueryError(f"{names[0]} is a column of {which}", start_of(column), hint, "Ambiguous column")
        if found_in:
            return found_in[0][1], names[1:]
        if lower[0] in self.aliases and (len(names) > 1 or lower[0] not in BARE_CALLS):
            self.by_alias.add((start_of(column), lower[0]))
            return self.aliases[lower[0]], names[1:]
        raise UnknownColumnError(names[0], start_of(column.parts[0]), self.relations)

    def key(self, tree: Any) -> str:
        """Return a text that is equal for equal expressions, whatever the qualifiers of their columns.

        Raises QueryError as `find`.
        """
        from sqlglot import exp

        tree = tree.unnest()
        if isinstance(tree, exp.Column) and not isinstance(tree.this, exp.Star):
            return self._column_key(tree)
        if isinstance(tree, exp.Query):
            return f"({tree.sql(dialect='spark')})"
        parts = [type(tree).__name__.lower()]
        for name, value in tree.args.items():
            values = value if isinstance(value, list) else [value]
            given = [self.key(v) if isinstance(v, exp.Expression) else repr(v) for v in values if v]
            parts += [name, *given] if given else []
        return f"({' '.join(parts)})"

    def _column_key(self, column: Any) -> str:
        found, rest = self.find(column)
        for number, relation in enumerate(self.relations):
            if any(found is field for field in relation.fields):
                return ".".join([f"r{number}", found.name.lower(), *map(str.lower, rest)])
        return ".".join([found.name.lower(), *map(str.lower, rest)])

    def keeps_time(self, tree: Any) -> bool:
        """Return whether an expression is a column with a watermark, or a window over one."""
        from sqlglot import exp

        tree = tree.unnest()
        if isinstance(tree, exp.Column):
            found, rest = self.find(tree)
            return found.event_time and not rest
        is_window = isinstance(tree, exp.Anonymous) and str(tree.name).lower() in _KEEP_TIME
        return is_window and bool(tree.expressions) and self.keeps_time(tree.expressions[0])

    def is_edge(self, tree: Any) -> bool:
        """Return whether an expression is the start or end of a window over a column with a watermark."""
        from sqlglot import exp

        tree = tree.unnest()
        if isinstance(tree, exp.Column):
            found, rest = self.find(tree)
            return found.event_time and bool(rest)
        return isinstance(tree, exp.Dot) and self.keeps_time(tree.this)

    def shared_with(self, relation: Relation) -> list[str]:
        """Return the columns that a NATURAL JOIN with this relation compares, in lower case."""
        others = {column.name.lower() for column in relation.fields}
        return [name for _, column in self.visible if (name := column.name.lower()) in others]

    def star(self, table: str = "") -> list[tuple[Relation, Field]]:
        """Return the columns of `*`, or of `table.*`, with their relations."""
        named = (relation for relation in self.relations if relation.name == table.lower())
        return [(r, f) for r in named for f in r.fields] if table else self.visible

    def names(self, name: str) -> bool:
        """Return whether this name in lower case is a relation's, here or around."""
        is_here = any(relation.name == name for relation in self.relations)
        return is_here or (self.around is not None and self.around.names(name))

    def has(self, name: str) -> bool:
        """Return whether one of the relations has a column of this name."""
        return any(_named(relation, name.lower()) is not None for relation in self.relations)

    def _of_all(self, name: str) -> list[tuple[Relation, Field]]:
        return [(relation, found) for relation, found in self.visible if found.name.lower() == name]


class UnknownColumnError(QueryError):
    """None of the relations has the column."""

    def __init__(self, name: str, offset: int, relations: Sequence[Relation]):
        super().__init__(f"no column is called {name}", offset, summary="Unknown column")
        self.name = name
        self.columns = list(dict.fromkeys(f.name for relation in relations for f in relation.fields))
        self.relations = " and ".join(relation.label or relation.name for relation in relations)


def _first(pairs: Sequence[tuple[Relation, Field]], name: str) -> tuple[Relation, Field] | None:
    return next((pair for pair in pairs if pair[1].name.lower() == name), None)


def _joined(left: tuple[Relation, Field], right: tuple[Relation, Field], side: str) -> tuple[Relation, Field]:
    """Return the column of USING: the side whose rows are kept, or for FULL, the value of either side."""
    if side != "FULL":
        return right if side == "RIGHT" else left
    types = left[1].type, right[1].type
    common = wider(*types) if all(types) else None
    return left[0], Field(left[1].name, common, parts=(left[1], right[1]))


def _named(relation: Relation, name: str) -> Field | None:
    return next((column for column in relation.fields if column.name.lower() == name), None)
