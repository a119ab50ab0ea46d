"""Random tables, changes of them, and queries over them: everything that a current view may compute.

A query comes with the columns of its key. A seed always gives the same.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from mzplan.schema.columns import parse_columns
from mzplan.schema.relations.analysis import analyse, output_of
from mzplan.schema.relations.parse import parse_query
from mzplan.schema.relations.tree import Analysis, Input

Row = tuple[object, ...]
_TYPES = {"BIGINT": 6, "INT": 4, "STRING": 4}  # with how many values, so that rows meet in joins
_AGGREGATES = (
    "count(*)",
    "sum({n})",
    "max({n})",
    "min({s})",
    "count(DISTINCT {n})",
    "avg({n})",
    "max(struct({n}, {s})).{s_name}",
    "sort_array(collect_set({n}))",
    "count({n}) FILTER (WHERE {n} > 1)",
    "bool_or({n} = 2)",
    "sum(DISTINCT {n})",
)


@dataclass
class Table:
    """A table: its columns, and its rows before and after a step, with all rows between."""

    name: str
    columns: dict[str, str]
    old: list[Row] = field(default_factory=list)
    new: list[Row] = field(default_factory=list)
    changed: list[Row] = field(default_factory=list)

    @property
    def ddl(self) -> str:
        return ", ".join(f"{name} {type_}" for name, type_ in self.columns.items())

    @property
    def input(self) -> Input:
        return Input(parse_columns(self.ddl), f"source.{self.name}", stream=False)

    def of_type(self, *types: str) -> list[str]:
        return [name for name, type_ in self.columns.items() if type_ in types]


@dataclass(frozen=True)
class Case:
    """Tables with their changes, and a query over them with its key."""

    tables: Sequence[Table]
    sql: str
    key: Sequence[str]


def case(seed: int) -> Case:
    """Return the case of a seed."""
    chance = random.Random(seed)
    tables = empty_tables(chance)
    for table in tables:
        table.old = [random_row(chance, table) for _ in range(chance.randint(2, 14))]
        table.new = list(table.old)
    for table in chance.sample(tables, chance.choice((1, 1, 2, 3))):
        for _ in range(chance.choice((1, 1, 2, 4))):
            _change(chance, table)
    sql, key = _Query(chance, tables).whole()
    return Case(tables, sql, key)


def empty_tables(chance: random.Random) -> list[Table]:
    """Return three tables without rows."""
    return [_table(chance, name) for name in ("a", "b", "c")]


def keyed_query(chance: random.Random, tables: Sequence[Table]) -> tuple[str, Sequence[str]]:
    """Return a query of which no two rows have the same key, and the key."""
    return _Query(chance, tables).keyed()


def analysed(sql: str, key: Sequence[str], tables: Sequence[Table]) -> Analysis:
    """Return the analysis of a query over some of these tables."""
    query = parse_query(sql, over_tables=True)
    inputs = {table.name: table.input for table in tables if table.name in query.places}
    body = {"output": "current", "key": key}
    return analyse(query, inputs, body, output_of(body).passes)


def _table(chance: random.Random, name: str) -> Table:
    columns = {"id": "BIGINT", "n": chance.choice(("INT", "BIGINT")), "s": "STRING"}
    for extra in range(chance.randint(0, 2)):
        columns[f"{name}{extra}"] = chance.choice(list(_TYPES))
    return Table(name, columns)


def random_row(chance: random.Random, table: Table) -> Row:
    return tuple(random_value(chance, type_) for type_ in table.columns.values())


def random_value(chance: random.Random, type_: str) -> object:
    number = chance.randrange(_TYPES[type_])
    if chance.random() < 0.15:
        return None
    return "wxyz"[number] if type_ == "STRING" else number


def _change(chance: random.Random, table: Table) -> None:
    """Insert, update or delete a row. An update may change any column, also the key."""
    action = chance.choice(("insert", "update", "update", "delete"))
    if action != "insert" and table.new:
        before = table.new.pop(chance.randrange(len(table.new)))
        table.changed.append(before)
        if action == "update":
            place = chance.randrange(len(before))
            value = random_value(chance, list(table.columns.values())[place])
            after = (*before[:place], value, *before[place + 1 :])
            table.new.append(after)
            table.changed.append(after)
        return
    table.new.append(random_row(chance, table))
    table.changed.append(table.new[-1])


@dataclass(frozen=True)
class Relation:
    """A relation in FROM: its SQL, its alias, and its columns with their types."""

    sql: str
    alias: str
    columns: dict[str, str]

    def pick(self, chance: random.Random, *types: str) -> str | None:
        names = [name for name, type_ in self.columns.items() if not types or type_ in types]
        return f"{self.alias}.{chance.choice(names)}" if names else None


class _Query:
    """Makes one random query."""

    def __init__(self, chance: random.Random, tables: Sequence[Table]):
        self._chance, self._tables, self._aliases = chance, tables, 0
        self._with: list[str] = []

    def whole(self) -> tuple[str, Sequence[str]]:
        sql, columns = self._any_select(2)
        names = list(columns)
        key = self._chance.sample(names, min(len(names), self._chance.choice((1, 1, 2, 3))))
        if self._chance.random() < 0.05:
            order = ", ".join(names)
            sql = f"SELECT * FROM ({sql}) q ORDER BY {order} LIMIT 3"
        return self._with_parts(sql), key

    def keyed(self) -> tuple[str, Sequence[str]]:
        """Return distinct rows, groups by their columns, or the rows with each value of a random key."""
        chance = self._chance
        kind = chance.choice((self._grouped, self._exploded, self._distinct, None, None))
        if kind is not None:
            sql, columns = kind(2)
            return self._with_parts(sql), [name for name in columns if name.startswith("c")]
        sql, columns = self._any_select(2)
        names = list(columns)
        if chance.random() < 0.3:
            return self._with_parts(f"SELECT DISTINCT * FROM ({sql}) q"), names
        key = chance.sample(names, min(len(names), chance.choice((1, 1, 2))))
        rows = f"sort_array(collect_list(struct({', '.join(f'q.{name}' for name in names)}))) AS same"
        items = ", ".join(f"q.{name}" for name in key)
        return self._with_parts(f"SELECT {items}, {rows} FROM ({sql}) q GROUP BY {items}"), key

    def _with_parts(self, sql: str) -> str:
        return f"WITH {', '.join(self._with)} {sql}" if self._with else sql

    def _any_select(self, depth: int) -> tuple[str, dict[str, str]]:
        often = (self._plain, self._grouped)
        kinds = (*often, *often, self._windowed, self._set, self._distinct, self._shared, self._exploded)
        return self._chance.choice(kinds)(depth)

    # ── kinds of SELECT: each returns the SQL and the columns with their types

    def _plain(self, depth: int) -> tuple[str, dict[str, str]]:
        relations, rest = self._from(depth)
        items, columns = self._items(relations, self._chance.randint(2, 4))
        if self._chance.random() < 0.2:
            items.append(f"{self._scalar(relations)} AS x")
            columns["x"] = "BIGINT"
        return f"SELECT {', '.join(items)} {rest}", columns

    def _distinct(self, depth: int) -> tuple[str, dict[str, str]]:
        relations, rest = self._from(depth)
        items, columns = self._items(relations, 2)
        return f"SELECT DISTINCT {', '.join(items)} {rest}", columns

    def _grouped(self, depth: int) -> tuple[str, dict[str, str]]:
        chance = self._chance
        relations, rest = self._from(depth)
        keys, columns = self._items(relations, chance.randint(1, 2))
        groups = [key.rpartition(" AS ")[0] for key in keys]
        relation = chance.choice(relations)
        number, text = relation.pick(chance, "INT", "BIGINT"), relation.pick(chance, "STRING")
        aggregates = chance.sample(_AGGREGATES, 2)
        items = list(keys)
        for place, aggregate in enumerate(aggregates):
            if ("{n}" not in aggregate or number) and ("{s}" not in aggregate or text):
                name = (text or "").rpartition(".")[2]
                items.append(f"{aggregate.format(n=number, s=text, s_name=name)} AS g{place}")
                columns[f"g{place}"] = "?"
        having = chance.choice(("", "", " HAVING count(*) > 1", " HAVING count(*) <= (SELECT max(n) FROM a)"))
        return f"SELECT {', '.join(items)} {rest} GROUP BY {', '.join(groups)}{having}", columns

    def _windowed(self, depth: int) -> tuple[str, dict[str, str]]:
        chance = self._chance
        relations, rest = self._from(depth)
        items, columns = self._items(relations, chance.randint(2, 3))
        values = [item.rpartition(" AS ")[0] for item in items]
        by = f"PARTITION BY {values[0]}" if chance.random() < 0.85 else ""
        order = ", ".join(values)
        calls = (
            f"row_number() OVER ({by} ORDER BY {order})",
            f"rank() OVER ({by} ORDER BY {values[-1]} DESC)",
            f"count(*) OVER ({by})",
            f"lag({values[-1]}) OVER ({by} ORDER BY {order})",
            f"max({values[-1]}) OVER w",
        )
        call = chance.choice(calls)
        named = f" WINDOW w AS ({by})" if "OVER w" in call else ""
        sql = f"SELECT {', '.join(items)}, {call} AS r {rest}{named}"
        columns = {**columns, "r": "?"}
        if "row_number" in call and chance.random() < 0.6:
            return f"SELECT * FROM ({sql}) ranked WHERE r <= 2", columns
        return sql, columns

    def _set(self, depth: int) -> tuple[str, dict[str, str]]:
        chance = self._chance
        word = chance.choice(("UNION ALL", "UNION", "INTERSECT", "EXCEPT", "EXCEPT ALL", "INTERSECT ALL"))
        types = [chance.choice(("INT", "STRING", "BIGINT")) for _ in range(chance.randint(1, 2))]
        arms = []
        for _ in range(2):
            relations, rest = self._from(depth - 1)
            values = [self._expression(relations, type_) for type_ in types]
            items = ", ".join(f"{value} AS u{place}" for place, value in enumerate(values))
            arms.append(f"SELECT {items} {rest}")
        columns = {f"u{place}": type_ for place, type_ in enumerate(types)}
        limit = f" ORDER BY {', '.join(columns)} LIMIT 2" if chance.random() < 0.2 else ""
        return f"{arms[0]} {word} {arms[1]}{limit}", columns

    def _shared(self, _: int) -> tuple[str, dict[str, str]]:
        """Return a SELECT over joins by a column that all relations have."""
        chance = self._chance
        sides = [chance.choice(("", "LEFT ", "RIGHT ", "FULL ")) for _ in range(chance.choice((1, 1, 2)))]
        first, *others = chance.choices([table.name for table in self._tables], k=len(sides) + 1)
        joins = " ".join(
            f"{side}JOIN {name} AS j{number} USING (id)"
            for number, (side, name) in enumerate(zip(sides, others, strict=True), 1)
        )
        where = chance.choice(("", " WHERE id > 1", " WHERE j1.s IS NULL"))
        return (
            f"SELECT id, j0.n AS c0, j1.s AS c1 FROM {first} AS j0 {joins}{where}",
            {"id": "BIGINT", "c0": "?", "c1": "STRING"},
        )

    def _exploded(self, depth: int) -> tuple[str, dict[str, str]]:
        relations, joins = self._joins(depth)
        values = [self._expression(relations, "BIGINT") for _ in range(2)]
        view = f"LATERAL VIEW explode(array({', '.join(values)})) x AS e"
        where = self._where(relations, depth)
        columns = {"c0": "BIGINT", "g0": "?"}
        return f"SELECT x.e AS c0, count(*) AS g0 {joins} {view}{where} GROUP BY x.e", columns

    # ── parts

    def _items(self, relations: Sequence[Relation], count: int) -> tuple[list[str], dict[str, str]]:
        items, columns = [], {}
        for place in range(count):
            type_ = self._chance.choice(("BIGINT", "INT", "STRING"))
            items.append(f"{self._expression(relations, type_)} AS c{place}")
            columns[f"c{place}"] = type_
        return items, columns

    def _expression(self, relations: Sequence[Relation], type_: str) -> str:
        """Return an expression of a type: mostly a column."""
        chance = self._chance
        shuffled = chance.sample(list(relations), len(relations))
        column = next(filter(None, (relation.pick(chance, type_) for relation in shuffled)), None)
        if column is None:
            other = next(filter(None, (r.pick(chance, "BIGINT", "INT", "STRING") for r in shuffled)), "1")
            return f"CAST({other} AS STRING)" if type_ == "STRING" else f"try_cast({other} AS {type_})"
        roll = chance.random()
        if roll < 0.1:
            return f"upper({column})" if type_ == "STRING" else f"CAST({column} % 3 AS {type_})"
        if roll < 0.15:
            return f"CASE WHEN {column} IS NULL THEN {column} ELSE {column} END"
        return column

    def _from(self, depth: int) -> tuple[list[Relation], str]:
        """Return the relations that can be named, and the SQL from FROM to WHERE."""
        relations, joins = self._joins(depth)
        return relations, f"{joins}{self._where(relations, depth)}"

    def _where(self, relations: Sequence[Relation], depth: int) -> str:
        count = self._chance.choice((0, 0, 1, 1, 2))
        conditions = [self._condition(relations, depth) for _ in range(count)]
        return f" WHERE {' AND '.join(conditions)}" if conditions else ""

    def _joins(self, depth: int) -> tuple[list[Relation], str]:
        chance = self._chance
        first = self._relation(depth)
        relations, sql = [first], f"FROM {first.sql}"
        for _ in range(chance.choice((0, 0, 1, 1, 1, 2))):
            other = self._relation(depth)
            side = chance.choice(
                ("", "", "LEFT ", "LEFT ", "RIGHT ", "FULL ", "LEFT SEMI ", "LEFT ANTI ", "CROSS ")
            )
            if side == "CROSS ":
                sql += f" CROSS JOIN {other.sql}"
            else:
                sql += f" {side}JOIN {other.sql} ON {self._on(relations, other)}"
            if side not in ("LEFT SEMI ", "LEFT ANTI "):
                relations.append(other)
        return relations, sql

    def _on(self, relations: Sequence[Relation], other: Relation) -> str:
        chance = self._chance
        parts = []
        for _ in range(chance.choice((1, 1, 2))):
            type_ = chance.choice(("INT", "BIGINT", "STRING"))
            left = chance.choice(list(relations)).pick(chance, type_)
            right = other.pick(chance, type_)
            if left and right:
                parts.append(f"{left} {chance.choice(('=', '=', '=', '<=>', '<'))} {right}")
        return chance.choice((" AND ", " AND ", " OR ")).join(parts) or "true"

    def _relation(self, depth: int) -> Relation:
        chance = self._chance
        self._aliases += 1
        alias = f"r{self._aliases}"
        if depth > 0 and chance.random() < 0.3:
            sql, columns = self._any_select(depth - 1)
            if chance.random() < 0.3:
                self._with.append(f"w_{alias} AS ({sql})")
                return Relation(f"w_{alias} AS {alias}", alias, columns)
            return Relation(f"({sql}) AS {alias}", alias, columns)
        table = chance.choice(list(self._tables))
        return Relation(f"{table.name} AS {alias}", alias, dict(table.columns))

    def _condition(self, relations: Sequence[Relation], depth: int) -> str:
        chance = self._chance
        value = self._expression(relations, "BIGINT")
        plain = (
            f"{value} > 1",
            f"{value} IS NOT NULL",
            f"({value} = 2 OR {value} IS NULL)",
            f"NOT {value} = 3",
        )
        if depth < 1 or chance.random() < 0.5:
            return chance.choice(plain)
        table = chance.choice(list(self._tables))
        self._aliases += 1
        alias = f"e{self._aliases}"
        correlated = f"{alias}.id = {value}"
        local = chance.choice(("", f" AND {alias}.n > 1", f" AND {alias}.s IS NOT NULL"))
        inner = f"FROM {table.name} AS {alias} WHERE {correlated}{local}"
        whole = f"FROM {table.name} AS {alias} WHERE true{local}"
        return chance.choice(
            (
                f"EXISTS (SELECT 1 {inner})",
                f"NOT EXISTS (SELECT 1 {inner})",
                f"{value} IN (SELECT {alias}.id {whole})",
                f"{value} NOT IN (SELECT {alias}.id {whole} AND {alias}.id IS NOT NULL)",
                f"{value} NOT IN (SELECT {alias}.id {whole})",
                f"{value} >= (SELECT max({alias}.n) {inner})",
                f"{value} <= (SELECT avg({alias}.n) {whole})",
            )
        )

    def _scalar(self, relations: Sequence[Relation]) -> str:
        chance = self._chance
        table = chance.choice(list(self._tables))
        self._aliases += 1
        alias = f"e{self._aliases}"
        where = (
            f" WHERE {alias}.id = {self._expression(relations, 'BIGINT')}" if chance.random() < 0.7 else ""
        )
        aggregate = chance.choice(("max", "count"))
        return f"(SELECT CAST({aggregate}({alias}.n) AS BIGINT) FROM {table.name} AS {alias}{where})"
