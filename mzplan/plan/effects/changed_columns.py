"""The columns that a changed view computes differently, if its rows are otherwise the same."""

from __future__ import annotations

from collections.abc import Iterable

from mzplan.model.plan import Change, FieldChange
from mzplan.schema.kinds import resource_kind
from mzplan.schema.sql.expressions import parse_select
from mzplan.schema.sql.sql_text import plain_sql
from mzplan.schema.sql.view_query import ViewQuery, parse_view


def changed_columns(change: Change, fields: Iterable[FieldChange]) -> tuple[str, ...] | None:
    """Return the columns that a view of single rows computes differently; None if it may have other rows.

    `fields`: the changed properties that decide the view's rows.
    """
    before, after = change.before, change.after
    if before is None or after is None or change.action == "replace" or before.type != after.type:
        return None
    property_ = resource_kind(change.address.kind, after.type).query_property
    if property_ is None or any(field.path != property_ for field in fields):
        return None
    if not all("from" in one.body and "aliases" not in one.body for one in (before, after)):
        return None
    old, new = (parse_view(str(one.body[property_])) for one in (before, after))
    if old.fault() or new.fault() or _rows(old) != _rows(new):
        return None
    items = [_items(query) for query in (old, new)]
    names = dict.fromkeys([*items[0], *items[1]])
    return tuple(name for name in names if items[0].get(name) != items[1].get(name))


def _rows(query: ViewQuery) -> tuple[str, list[frozenset[str]]]:
    """Return what decides the rows, and the columns that `*` stands for."""
    stars = [parsed.without for _, parsed in query.expressions() if parsed.star]
    return plain_sql(query.where.text) if query.where is not None else "", stars


def _items(query: ViewQuery) -> dict[str, str]:
    """Return the SQL of each named item."""
    parsed = ((item.text, parse_select(item.text)) for item in query.items)
    return {one.name: plain_sql(text) for text, one in parsed if one.name is not None}
