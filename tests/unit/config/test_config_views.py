"""Limits of views by SQL. tests/cases/transcripts shows what follows from a query, and its errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.hostile_expressions import HOSTILE, HOSTILE_VIEWS
from tests.unit.config_files import all_text, errors


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


def inlined(query: str) -> dict[str, Any]:
    return {"materialize": False, "query": query}


def text_of(folder: Path, views: dict[str, Any]) -> str:
    """Return the text of the errors of a project with these views."""
    source = "sources: {orders: {type: local, schema: id BIGINT}}\n"
    return all_text(errors(folder, {"a.yaml": f"{source}views: {json.dumps(views)}\n"}))


def test_a_query_reads_a_hundred_times_at_most(tmp_path: Path) -> None:
    """Spark computes a name in WITH, or an inlined view, again wherever it is read."""
    twice = "SELECT id FROM {0} UNION ALL SELECT id FROM {0}"
    names = ", ".join(f"c{n} AS ({twice.format(f'c{n - 1}')})" for n in range(1, 20))
    query = f"WITH c0 AS (SELECT id FROM orders), {names} SELECT id FROM c"
    assert text_of(tmp_path, {"v": {"query": f"{query}6"}}) == ""
    assert "would read collections 524,288 times" in text_of(tmp_path, {"v": {"query": f"{query}19"}})

    views = {f"v{n}": inlined(twice.format(f"v{n - 1}" if n else "orders")) for n in range(6)}
    query = f"WITH x AS ({twice.format('v5')}) SELECT id FROM x"
    assert "would read collections 128 times" in text_of(tmp_path, {**views, "v": {"query": query}})
    assert text_of(tmp_path, {**views, "v": {"query": "SELECT id FROM v5"}}) == ""
