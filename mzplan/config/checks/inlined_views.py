"""Inlines views with `materialize: false` into the queries that read them.

The query then reads the view's input collection, with the view's expressions in place of the view's columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from mzplan.config.checks.expressions import columns_read
from mzplan.config.checks.resource_references import FROM
from mzplan.config.documents import Declaration
from mzplan.config.findings import Findings, Path
from mzplan.model.address import Address
from mzplan.schema.columns import POSITION
from mzplan.schema.kinds import resource_kind
from mzplan.schema.relations.parse import is_current
from mzplan.schema.sql.column_replacement import (
    TOO_LONG,
    quoted_name,
    with_expressions,
    with_name,
    without_name,
)
from mzplan.schema.sql.expressions import Parsed, parse_select, parse_where
from mzplan.schema.sql.sql_text import MAX_LENGTH, SqlTextError, bare, collection_name
from mzplan.schema.sql.view_query import ViewQuery, parse_view

SWITCH = "materialize"
_OWN = frozenset(["description", "from", "key", "labels", "query", "query_file", "schema", "type", SWITCH])
_MATERIALIZE = "remove `materialize: false` from the view"
_BETWEEN = ",\n  "
_MAX_COLUMNS_LENGTH = 10 * MAX_LENGTH  # characters of all columns of a view


def is_inlined(resource: Declaration | None) -> bool:
    """Return whether this is a view with `materialize: false`, which has no query of its own."""
    return resource is not None and isinstance(resource.body, dict) and resource.body.get(SWITCH) is False


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows that an inlined view stands for.

    - `base`: the collection that the rows come from.
    - `columns`: by name in lower case, each column's name and its expression over `base`; None if the columns
      are those of `base`.
    - `where`: the condition over `base`, "" for all rows.
    - `names`: every column name of the view, the views below it and `base`, in lower case.
    - `through`: the names of the inlined views.
    """

    base: str
    columns: Mapping[str, tuple[str, str]] | None
    where: str
    names: frozenset[str]
    through: tuple[str, ...]


class InlinedViews:
    """The inlined views of a project, and their readers."""

    def __init__(self, declared: Mapping[Address, Declaration], findings: Findings):
        self._declared, self._findings = declared, findings
        self._rows: dict[Address, _Rows | None] = {}

    def check(self, resource: Declaration) -> None:
        """Report MZ304 if an inlined view sets properties of a query, or has an expression that varies."""
        own = resource.own if resource.given else resource.body
        # Only a query over tables says so, because queries over streams can't read it.
        has_effect = _OWN | {"output"} if is_current(resource.body) else _OWN
        for name in sorted(own.keys() - has_effect - resource.derived.keys()):
            why = f"it has no query of its own, so `{name}` has no effect"
            self._refuse(resource, (name,), why, f"remove `{name}`")
        property_, query = self._query(resource)
        for part, parsed in query.expressions():
            if parsed.varies is not None:
                varying, offset = parsed.varies
                why = f"{varying} could have another value in each query that reads the view"
                self._refuse(resource, (property_,), why, offset=part.offset + offset)

    def fill_in(self, valid: Collection[Address]) -> dict[Address, tuple[str, ...]]:
        """Inline views into the queries among these valid resources.

        Returns the names of the inlined views by query. Reports MZ304 if a view can't be inlined.
        """
        through: dict[Address, tuple[str, ...]] = {}
        for address in valid:
            resource = self._declared[address]
            rows = None if is_inlined(resource) else self._read(resource)
            if rows is None:
                continue
            try:
                body = self._compose(resource, rows)
            except SqlTextError as refused:
                self._refuse(resource, ("from",), refused.problem)
                continue
            through[address] = rows.through
            resource.body = body
        return through

    def _query(self, resource: Declaration) -> tuple[str, ViewQuery]:
        property_ = resource_kind(resource.address.kind, str(resource.type)).query_property
        assert property_ is not None, f"{resource.label} has no SQL"
        return property_, parse_view(resource.body[property_])

    def _read(self, resource: Declaration) -> _Rows | None:
        """Return the rows of the inlined view that a resource reads; None without one, or if it can't be
        inlined."""
        if "from" not in resource.body:
            return None
        view = self._declared.get(FROM.address(resource.body["from"], self._declared))
        return self._rows_of(view) if view is not None and is_inlined(view) else None

    def _rows_of(self, view: Declaration) -> _Rows | None:
        if view.address not in self._rows:
            self._rows[view.address] = None  # ends a cycle, which is reported elsewhere
            try:
                self._rows[view.address] = self._make_rows(view)
            except SqlTextError as refused:
                self._refuse(view, ("from" if "from" in view.body else "reads",), refused.problem)
        return self._rows[view.address]

    def _make_rows(self, view: Declaration) -> _Rows | None:
        _, query = self._query(view)
        if "from" not in view.body:
            raise SqlTextError("its query joins or aggregates, so only another view can read it")
        source = self._declared.get(FROM.address(query.collection.text, self._declared))
        read = columns_read(source)
        below = self._read(view)
        if query.problem or read is None or (is_inlined(source) and below is None):
            return None
        names = frozenset(column.name.lower() for column in read) | (below.names if below else frozenset())
        items = [item.text for item in query.items]
        columns = below.columns if below is not None else None
        if items != ["*"]:
            columns = dict(_columns(items, [column.name for column in read], below, names))
        condition = _condition(query.where.text if query.where else "", below, names)
        base = below.base if below is not None else query.collection.text
        _ensure_short(columns or {})
        gives = frozenset(columns or ())
        own = (*(below.through if below is not None else ()), view.address.name)
        return _Rows(base, columns, condition, names | gives, own)

    def _compose(self, resource: Declaration, rows: _Rows) -> dict[str, Any]:
        """Return the body of a reader of an inlined view, changed to read the collection below."""
        property_ = resource_kind(resource.address.kind, str(resource.type)).query_property
        query = self._query(resource)[1] if property_ is not None else None
        own: Mapping[str, Any] = query.body if query is not None else resource.body
        view = self._declared.get(FROM.address(resource.body["from"], self._declared))
        read = [column.name for column in columns_read(view) or ()]
        items: list[str] = list(own.get("select") or ["*"])
        if rows.columns is not None:
            columns = _columns(items, read, rows, rows.names)
            items = [with_name(text, name) for _, (name, text) in columns]
        where = _condition(str(own.get("where", "")), rows, rows.names)
        _ensure_readable(items, where)
        if property_ is None:
            selected = {"select": items} if items != ["*"] else {}
            filtered = {"where": where} if where else {}
            return {**resource.body, **selected, **filtered, "from": rows.base}
        condition = f"\nWHERE {where}" if where else ""
        text = f"SELECT\n  {_BETWEEN.join(items)}\nFROM {collection_name(rows.base)}{condition}\n"
        if problem := parse_view(text).problem:
            raise SqlTextError(f"with the view's expressions in it, {problem}")
        return {**resource.body, property_: text, "from": rows.base}

    def _refuse(
        self, resource: Declaration, path: Path, why: str, fix: str = _MATERIALIZE, offset: int | None = None
    ) -> None:
        self._findings.add(
            "MZ304.view-cannot",
            resource.location(path, offset=offset),
            label=resource.label,
            why=why,
            fix=fix,
        )


def _columns(
    items: Sequence[str], read: Sequence[str], rows: _Rows | None, names: Collection[str]
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the columns that the items of `select` give; see `columns` of _Rows.

    The expression of an earlier item replaces its name in later items. `read`: the columns that they read.
    """
    known = {name.lower() for name in read}
    earlier: dict[str, str] = {}
    varying: set[str] = set()
    for item in items:
        parsed = parse_select(item)
        if parsed.star:
            yield from (
                (n.lower(), (n, _column_below(n, rows))) for n in read if n.lower() not in parsed.without
            )
            continue
        if parsed.problem or parsed.name is None:
            raise SqlTextError(parsed.problem or "an expression has no name")
        text, name = without_name(item), parsed.name.lower()
        used = {column.lower() for column, _ in parsed.columns} - known
        if again := used & varying:
            raise SqlTextError(f"{min(again)} has another value each time, and a later item uses it")
        given = {alias: earlier[alias] for alias in used if alias in earlier}
        text = _replace_columns(text, parsed, rows, {*names, *given}, given)
        yield name, (parsed.name, text)
        varying |= {name} if parsed.varies is not None else set()
        earlier.setdefault(name, text)


def _condition(own: str, rows: _Rows | None, names: Collection[str]) -> str:
    """Return the conditions of an inlined view and its reader as one; "" if neither has one."""
    parts = [rows.where] if rows is not None and rows.where else []
    if own.strip():
        parts.append(_replace_columns(bare(own).sql, parse_where(own), rows, names))
    return parts[0] if len(parts) == 1 else " AND ".join(f"({part})" for part in parts)


def _replace_columns(
    text: str,
    parsed: Parsed,
    rows: _Rows | None,
    names: Collection[str],
    earlier: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return an expression over an inlined view as an expression over the collection below.

    `earlier`: the expressions of names that the expression uses, over the collection below.
    """
    if not earlier and (rows is None or rows.columns is None):
        return text.strip()

    def given(name: str) -> str:
        return earlier[name] if name in earlier else _column_below(name, rows)

    return with_expressions(text, parsed, given, names).strip()


def _column_below(name: str, rows: _Rows | None) -> str:
    """Return a column as an expression over the collection below."""
    if rows is None or rows.columns is None:
        return quoted_name(name)
    return POSITION if name.lower() == POSITION else rows.columns[name.lower()][1]


def _ensure_short(columns: Mapping[str, tuple[str, str]]) -> None:
    if sum(len(text) for _, text in columns.values()) > _MAX_COLUMNS_LENGTH:
        raise SqlTextError(TOO_LONG)


def _ensure_readable(items: Sequence[str], where: str) -> None:
    for parsed in (*map(parse_select, items), *([parse_where(where)] if where else ())):
        if parsed.problem:
            raise SqlTextError(f"with the view's expressions in it, {parsed.problem}")
