"""`mzplan diff` on Spark: the rows of two generations of a collection."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from mzplan.warehouse.checkpoints import collection_path
from tests.unit.cli_runs import apply, state

FILES = {
    "mzplan.yaml": "version: 1\nproject: shop\ninstances: {local: {type: dry}}\n",
    "pipeline.yaml": """\
sources:
  orders: {type: local, schema: "id BIGINT, name STRING, at TIMESTAMP"}
views:
  counts:
    query: SELECT name, count(*) AS orders, max(at) AS last FROM orders GROUP BY name
    output: update
    key: [name]
""",
}
AT = datetime(2026, 1, 1, 12, 0, 0, 1)
LATER = AT.replace(microsecond=2)
SCHEMA = pa.schema([("name", pa.string()), ("orders", pa.int64()), ("last", pa.timestamp("us", "UTC"))])


def store(folder: Path, generation: int, *rows: tuple[str, int, datetime]) -> None:
    id_ = state(folder)["resources"]["view.counts"]["id"]
    table = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)
    positions = pa.nulls(table.num_rows, pa.struct([("at", pa.int64())]))
    path = collection_path(str(folder / "warehouse"), id_, generation)
    write_deltalake(path, table.append_column("_position", positions))


def diff(folder: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "mzplan", "-C", str(folder), "diff", "view.counts", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done
    return done.returncode, done.stdout


def compared(folder: Path, *arguments: str) -> Any:
    code, document = diff(folder, *arguments, "--json")
    assert code == 0, document
    return json.loads(document)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A view whose third generation is committed; the warehouse has its first and third."""
    folder = tmp_path_factory.mktemp("shop")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    apply(folder)
    for _ in range(2):
        apply(folder, "--replace", "view.counts", "--allow-replace")
    store(folder, 1, ("ada", 2, AT), ("bob", 1, AT), ("joe", 1, AT), ("kim", 1, AT))
    store(folder, 3, ("ada", 2, AT), ("bob", 3, AT), ("kim", 1, LATER), ("zoe", 1, AT))
    return folder


def test_generations_are_compared_by_key(shop: Path) -> None:
    found = compared(shop)
    assert (found["generations"], found["key"]) == ({"before": 1, "after": 3}, ["name"])
    assert found["counts"] == {"same": 1, "only_before": 1, "only_after": 1, "changed": 2}
    assert [row["name"] for key in ("only_before", "only_after") for row in found[key]] == ["joe", "zoe"]
    assert [(row["after"]["name"], row["columns"]) for row in found["changed"]] == [
        ("bob", ["orders"]),
        ("kim", ["last"]),  # by a microsecond
    ]


def test_the_difference_as_a_table(shop: Path) -> None:
    code, text = diff(shop, "--limit", "1", "--by", "NAME", "--no-color")
    assert code == 0
    head, changed, gone, added, _, summary = text.splitlines()
    assert head.split() == ["name", "orders", "last"] and "1 → 3" in changed
    assert (gone.split()[:2], added.split()[:2]) == (["-", "joe"], ["+", "zoe"])
    assert summary == "1 row unchanged, 2 changed by name, 1 only in generation 1, 1 only in generation 3."


def test_the_columns_must_identify_a_row(shop: Path) -> None:
    code, document = diff(shop, "--by", "orders", "--json")
    (problem,) = json.loads(document)["diagnostics"]
    assert (code, problem["summary"]) == (64, "Several rows of view.counts have the same values of orders")
    code, document = diff(shop, "--by", "name, nam", "--json")
    assert (code, json.loads(document)["diagnostics"][0]["code"]) == (64, "MZ094")
