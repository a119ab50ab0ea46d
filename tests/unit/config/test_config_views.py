"""Views by SQL: inputs, columns and keys that follow from the query, and errors at their place."""

from __future__ import annotations

import json
from pathlib import Path

from mzplan.schema.view_query import parse_view
from tests.hostile_expressions import HOSTILE, HOSTILE_VIEWS
from tests.unit.config_files import errors, load, resource

ORDERS = """\
sources:
  orders: {type: local, schema: "id BIGINT NOT NULL, customer VARCHAR(20), amount DECIMAL(10,2), \
tags ARRAY<STRING>"}
  latest: {type: local, schema: "id BIGINT, name STRING", key: [id]}
"""


def view(query: str, more: str = "", name: str = "v") -> str:
    return f"views:\n  {name}: {{query: {json.dumps(query)}{more}}}\n"


def test_hostile_sql_is_an_error_at_its_place(tmp_path: Path) -> None:
    source = "sources:\n  orders: {type: local, schema: 'id BIGINT, note STRING, tags ARRAY<STRING>'}\n"
    rows = ("stack(2, id, id)", "explode(array")  # a view may make several rows of one
    items = [f"SELECT {item} FROM orders" for item in HOSTILE if not item.startswith(rows)]
    conditions = [f"SELECT id FROM orders WHERE ({item.removesuffix(' as n')}) = 'a'" for item in HOSTILE]
    queries = [*HOSTILE_VIEWS, *items, *conditions]
    views = {f"v{number}.yaml": view(sql, name=f"v{number}") for number, sql in enumerate(queries)}
    found = errors(tmp_path, {"a.yaml": source, **views})
    # Also a control character, its length, a reference, no such collection, and names of columns.
    also = {"MZ002", "MZ005", "MZ012", "MZ017", "MZ018"}
    assert {d.code for d in found} <= {"MZ019", "MZ301", *also}
    assert {d.range.path for d in found if d.range} == views.keys()


def test_a_column_of_an_inlined_view_may_be_called_like_a_word_of_sql(tmp_path: Path) -> None:
    views = """\
views:
  words: {materialize: false, query: "SELECT id AS `from`, amount AS `distinct`, tags AS `all` FROM orders"}
  v: {query: "SELECT `all`, `from`, `distinct` AS `from2` FROM words WHERE `from` > 1"}
  w: {query: "SELECT `from` FROM words"}
"""
    found = load(tmp_path, {"a.yaml": ORDERS + views})
    v, w = (resource(found, f"view.{name}").body["query"] for name in ("v", "w"))
    assert parse_view(v).body["select"] == ["tags AS `all`", "id AS `from`", "amount AS from2"]
    assert parse_view(w).collection.text == "orders" and parse_view(w).body["select"] == ["id AS `from`"]
