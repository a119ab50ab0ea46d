"""`mzplan preview` on Spark: the rows of edited views and sinks over a collection that is there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.stored_steps import StoredSource
from tests.unit.cli_runs import apply, edit, failed, state

IDS = pa.schema([("id", pa.int64())])
FILES = {
    "mzplan.yaml": "version: 1\nproject: shop\ninstances: {local: {type: dry}}\n",
    "pipeline.yaml": """\
connections:
  k: {type: kafka, brokers: ["a:9092"]}
sources:
  orders: {connection: k, topic: orders, format: {type: json, schema: "id BIGINT, name STRING"}}
  bonus: {connection: k, topic: bonus, format: {type: json, schema: "id BIGINT"}}
views:
  counts:
    query: SELECT name, count(*) AS orders, max(id) AS last FROM orders GROUP BY name
    output: update
    key: [name]
  large: {query: "SELECT id, name FROM orders WHERE id > 1"}
  tagged: {query: "SELECT map('id', id, 'old', id) AS tags, 1 AS n FROM orders"}
  joined: {query: "SELECT o.id FROM orders o JOIN bonus b ON o.id = b.id"}
sinks:
  out: {from: orders, type: console, select: [id, "upper(name) AS name"]}
""",
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose source has read four orders in two steps, and whose files have been edited since."""
    folder = tmp_path_factory.mktemp("shop")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    apply(folder)
    resources = state(folder)["resources"]
    source = StoredSource(folder / "warehouse", resources["source.orders"]["id"])
    source.run([{"id": 1, "name": "ada"}, {"id": 2, "name": "bob"}])
    source.run([{"id": 3, "name": "ada"}, {"id": 4, "name": "joe"}])
    bonus = StoredSource(folder / "warehouse", resources["source.bonus"]["id"], IDS)
    bonus.run([{"id": 1}, {"id": 3}])
    bonus.run([{"id": 4}])
    pipeline = folder / "pipeline.yaml"
    text = pipeline.read_text().replace("FROM orders GROUP", "FROM orders WHERE id < 4 AND id <> 3 GROUP")
    text = text.replace("id > 1", "id > 2").replace("upper(name)", "lower(name)")
    text = text.replace("map('id', id, 'old', id)", "map('old', greatest(id, 2), 'id', id)")
    text = text.replace("1 AS n", "'1' AS n").replace(" JOIN bonus b ON o.id = b.id", "")
    pipeline.write_text(text)
    return folder


def preview(folder: Path, *arguments: str) -> Any:
    """Return the document of a preview, which changes no file."""
    before = {path for path in folder.rglob("*") if ".mzplan" not in path.parts}
    command = [sys.executable, "-m", "mzplan", "-C", str(folder), "preview", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done
    assert before == {path for path in folder.rglob("*") if ".mzplan" not in path.parts}
    return json.loads(done.stdout)


def test_the_edited_view_runs_over_all_rows(shop: Path) -> None:
    found = preview(shop, "view.counts", "--limit", "1")
    assert (found["key"], found["count"]) == (["name"], 2)
    assert found["rows"] == [{"name": "ada", "orders": 1, "last": 1}]


def test_two_definitions_are_compared_by_key(shop: Path) -> None:
    found = preview(shop, "view.counts", "--compare")
    assert found["counts"] == {"same": 1, "only_before": 1, "only_after": 0, "changed": 1}
    assert found["only_before"] == [{"name": "joe", "orders": 1, "last": 4}]
    (changed,) = found["changed"]
    assert (changed["before"]["orders"], changed["after"]["orders"]) == (2, 1)


def test_rows_without_a_key_are_compared_as_a_whole(shop: Path) -> None:
    found = preview(shop, "view.large", "--compare")
    assert found["counts"] == {"same": 2, "only_before": 1, "only_after": 0, "changed": 0}
    assert found["only_before"] == [{"id": 2, "name": "bob"}]


def test_rows_with_maps_are_compared(shop: Path) -> None:
    edit(shop, "'1' AS n", "1 AS n")
    found = preview(shop, "view.tagged", "--compare", "--limit", "2")
    assert found["counts"] == {"same": 3, "only_before": 1, "only_after": 1, "changed": 0}
    assert found["only_before"] == [{"tags": {"id": 1, "old": 1}, "n": 1}]
    edit(shop, "1 AS n", "'1' AS n")
    found = preview(shop, "view.tagged", "--compare", "--limit", "2")  # 1 isn't '1'
    assert found["counts"] == {"same": 0, "only_before": 4, "only_after": 4, "changed": 0}
    assert len(found["only_before"]) == 2


def test_a_comparison_reads_the_inputs_of_both(shop: Path) -> None:
    found = preview(shop, "view.joined", "--compare", "--steps", "1..1")
    assert found["counts"] == {"same": 1, "only_before": 0, "only_after": 1, "changed": 0}
    assert found["only_after"] == [{"id": 3}]


def test_a_renamed_input_is_read_under_its_former_name(shop: Path) -> None:
    text = (shop / "pipeline.yaml").read_text()
    edit(shop, "  bonus: {", "  extra: {lifecycle: {moved_from: bonus}, ")
    edit(shop, "SELECT o.id FROM orders o", "SELECT id FROM extra")
    try:
        found = preview(shop, "view.joined", "--compare")
    finally:
        (shop / "pipeline.yaml").write_text(text)
    assert found["counts"] == {"same": 3, "only_before": 0, "only_after": 0, "changed": 0}


def test_the_format_of_a_source_parses_records(shop: Path, tmp_path: Path) -> None:
    records = tmp_path / "records.txt"
    records.write_text('{"id": 1}\n{"id": "x"}\n{"id": 3}\n')
    given = ("source.bonus", "--records", str(records))
    found = preview(shop, *given, "--where", "id < 3")
    assert (found["count"], found["rows"]) == (1, [{"id": 1}])
    assert found["malformed"] == [{"record": 2, "reason": "id is not a BIGINT"}]
    edit(shop, 'schema: "id BIGINT"', 'schema: "id STRING"')
    try:
        both = preview(shop, *given, "--compare")
    finally:
        edit(shop, 'schema: "id STRING"', 'schema: "id BIGINT"')
    assert both["counts"] == {"same": 0, "only_before": 2, "only_after": 1, "changed": 0}
    assert [malformed["record"] for malformed in both["malformed"]] == [1, 3]


def test_a_sink_selects_from_some_steps(shop: Path) -> None:
    found = preview(shop, "sink.out", "--steps", "1..1", "--where", "id > 3")
    assert found["rows"] == [{"id": 4, "name": "joe"}]


def test_another_environments_collections_are_read(tmp_path: Path) -> None:
    text = "version: 1\nproject: shop\ninstances: {local: {type: dry}}\nenvironments:\n"
    for name, default in (("dev", "default: true, "), ("prod", "")):
        text += f"  {name}: {{{default}state: {{path: state/{name}}}, warehouse: ./warehouse/{name}}}\n"
    for name, content in {**FILES, "mzplan.yaml": text}.items():
        (tmp_path / name).write_text(content)
    apply(tmp_path, "--env", "prod")
    committed = json.loads((tmp_path / "state" / "prod" / "mzplan.state.json").read_text())
    source = StoredSource(tmp_path / "warehouse" / "prod", committed["resources"]["source.orders"]["id"])
    source.run([{"id": 1, "name": "ada"}, {"id": 2, "name": "bob"}])
    edit(tmp_path, "id > 1", "id < 2")
    assert failed(tmp_path, "preview", "view.large", code=1)["code"] == "MZ353"  # dev has applied nothing
    found = preview(tmp_path, "view.large", "--env", "prod", "--compare")
    assert found["only_before"] == [{"id": 2, "name": "bob"}]
    assert found["only_after"] == [{"id": 1, "name": "ada"}]
