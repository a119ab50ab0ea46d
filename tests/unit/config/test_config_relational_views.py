"""Views by SQL with joins, aggregations and snapshots: what follows from a query, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mzplan.model.resources import Resource
from tests.unit.config_files import DRY, all_text, errors, load, resource

SOURCES = """\
sources:
  orders: {type: local, schema: "id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2), ts TIMESTAMP, \
tags ARRAY<STRING>, lines ARRAY<STRUCT<sku: STRING, n: INT>>"}
  payments: {type: local, schema: "id BIGINT, paid DOUBLE, ts TIMESTAMP"}
  customers: {type: local, schema: "customer STRING, city STRING", key: [customer]}
  locals: {type: local, schema: "customer STRING, ts TIMESTAMP_NTZ"}
"""


def update(*key: str) -> dict[str, Any]:
    return {"output": "update", "key": list(key)}


def inlined(query: str) -> dict[str, Any]:
    return {"materialize": False, "query": query}


def files(views: dict[str, Any], sources: str = SOURCES) -> dict[str, str | bytes]:
    return {"mzplan.yaml": DRY, "a.yaml": f"{sources}views: {json.dumps(views)}\n"}


def loaded(folder: Path, views: dict[str, Any]) -> Resource:
    """The view `v` of a project with these views."""
    return resource(load(folder, files(views)), "view.v")


def refused(folder: Path, views: dict[str, Any]) -> str:
    """The text of the only error of a project with these views."""
    found = errors(folder, files(views))
    assert len(found) == 1 and found[0].range is not None, found
    return f"{found[0].code} {all_text(found)}"


def test_a_query_reads_a_hundred_times_at_most(tmp_path: Path) -> None:
    """Spark computes a name in WITH, or an inlined view, again wherever it is read."""
    twice = "SELECT id FROM {0} UNION ALL SELECT id FROM {0}"
    names = ", ".join(f"c{n} AS ({twice.format(f'c{n - 1}')})" for n in range(1, 20))
    query = f"WITH c0 AS (SELECT id FROM orders), {names} SELECT id FROM c"
    assert loaded(tmp_path, {"v": {"query": f"{query}6"}}).body["reads"] == ["orders"]
    assert "would read collections 524,288 times" in refused(tmp_path, {"v": {"query": f"{query}19"}})

    views = {f"v{n}": inlined(twice.format(f"v{n - 1}" if n else "orders")) for n in range(6)}
    query = f"WITH x AS ({twice.format('v5')}) SELECT id FROM x"
    assert "would read collections 128 times" in refused(tmp_path, {**views, "v": {"query": query}})
    assert loaded(tmp_path, {**views, "v": {"query": "SELECT id FROM v5"}})
