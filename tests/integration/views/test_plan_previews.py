"""`mzplan plan --preview` on Spark: what changed views and sinks give, beside the plan."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.stored_steps import StoredSource
from tests.unit.cli_runs import apply, mzplan, state

FILES = {
    "mzplan.yaml": "version: 1\nproject: shop\ninstances: {local: {type: dry}}\n",
    "transforms.py": "def longer(orders):\n    return orders.where('id > 0')\n",
    "pipeline.yaml": """\
connections:
  k: {type: kafka, brokers: ["a:9092"]}
sources:
  orders:
    connection: k
    topic: orders
    format: {type: json, schema: "id BIGINT, name STRING"}
    labels: {sensitive: name}
  late: {connection: k, topic: late, format: {type: json, schema: "id BIGINT"}}
views:
  counts:
    query: SELECT id % 2 AS odd, count(*) AS orders, max(name) AS last FROM orders GROUP BY id % 2
    output: update
    key: [odd]
  maps: {query: "SELECT map('id', id) AS tags FROM orders WHERE id > 1"}
  coded: {function: "transforms.py:longer", reads: [orders], schema: "id BIGINT, name STRING"}
  waiting: {query: "SELECT id FROM late WHERE id > 1"}
  calm: {query: "SELECT id FROM orders"}
sinks:
  out: {from: orders, type: console, select: [id, "name AS who"]}
""",
}
NEW = "  fresh: {query: 'SELECT id FROM orders WHERE id > 2', expect: {small: {check: id < 4}}}\n"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose source has read four orders, and whose files have been edited since."""
    folder = tmp_path_factory.mktemp("shop")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    apply(folder)
    source = StoredSource(folder / "warehouse", state(folder)["resources"]["source.orders"]["id"])
    source.run([{"id": 1, "name": "zoe"}, {"id": 2, "name": "bob"}])
    source.run([{"id": 3, "name": "zoe"}, {"id": 4, "name": "joe"}])
    pipeline = folder / "pipeline.yaml"
    text = pipeline.read_text().replace("FROM orders GROUP", "FROM orders WHERE id < 4 GROUP")
    for before, after in (
        ("id > 1", "id > 2"),
        ("name AS who", "concat('o', id) AS who"),
        ("    labels: {sensitive: name}", "    expect: {short: {check: id < 3}, named: {not_null: name}}"),
        ("sinks:", f"{NEW}sinks:"),
    ):
        text = text.replace(before, after)
    pipeline.write_text(text)
    (folder / "transforms.py").write_text(FILES["transforms.py"].replace("id > 0", "id > 1"))
    return folder


@pytest.fixture(scope="module")
def planned(shop: Path) -> tuple[dict[str, Any], str, str]:
    """The plan's document, its comment, and what stderr says."""
    comment = shop.parent / "comment.md"
    command = [sys.executable, "-m", "mzplan", "-C", str(shop), "plan", "--preview", "--json"]
    done = subprocess.run([*command, "--markdown", str(comment)], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done
    return json.loads(done.stdout), comment.read_text(), done.stderr


def previews(document: dict[str, Any]) -> dict[str, Any]:
    return {c["address"]: c["preview"] for c in document["changes"] if "preview" in c}


def test_the_plan_itself_stays_the_same(shop: Path, planned: tuple[dict[str, Any], str, str]) -> None:
    document, _, progress = planned
    changes = [{k: v for k, v in change.items() if k != "preview"} for change in document["changes"]]
    assert {**document, "changes": changes} == mzplan(shop, "plan", "--json").json()
    assert "Starting Spark in this process" in progress


def test_changed_rows_are_counted_and_masked(planned: tuple[dict[str, Any], str, str]) -> None:
    found = previews(planned[0])["view.counts"]
    assert found["counts"] == {"same": 1, "only_before": 0, "only_after": 0, "changed": 1}
    (changed,) = found["changed"]
    assert changed["columns"] == ["orders", "last"] and found["masked"] == ["last"]
    assert changed["before"] == {"odd": 0, "orders": 2, "last": "***"}
    assert changed["after"] == {"odd": 0, "orders": 1, "last": "*** (another value)"}


def test_a_removed_label_uncovers_nothing(planned: tuple[dict[str, Any], str, str]) -> None:
    document, comment, _ = planned
    assert "zoe" not in json.dumps(document) and "zoe" not in comment
    found = previews(document)["sink.out"]
    assert found["masked"] == ["who"] and found["counts"]["only_after"] == 4


def test_a_new_view_has_only_rows_after(planned: tuple[dict[str, Any], str, str]) -> None:
    found = previews(planned[0])["view.fresh"]
    assert (found["count"], found["rows"]) == (2, [{"id": 3}, {"id": 4}])
    assert (found["violations"], found["checked"]) == ({"small": 1}, 2)


def test_the_rows_that_violate_a_new_expectation(planned: tuple[dict[str, Any], str, str]) -> None:
    found = previews(planned[0])["source.orders"]
    assert found == {"violations": {"named": 0, "short": 2}, "checked": 4}


def test_rows_with_maps_are_compared(planned: tuple[dict[str, Any], str, str]) -> None:
    found = previews(planned[0])["view.maps"]
    assert found["counts"] == {"same": 2, "only_before": 1, "only_after": 0, "changed": 0}
    assert found["only_before"] == [{"tags": {"id": 2}}]


def test_a_preview_that_is_impossible_says_why(planned: tuple[dict[str, Any], str, str]) -> None:
    found = previews(planned[0])
    assert "still empty" in found["view.waiting"]["problem"]
    assert "No policy allows" in found["view.coded"]["problem"]
    assert "view.calm" not in found


def test_the_comment_has_the_rows(planned: tuple[dict[str, Any], str, str]) -> None:
    _, comment, _ = planned
    assert "**Preview** of `view.counts`\n\n```diff\n" in comment
    assert "!  0    2 → 1   *** → *** (another value)" in comment
    assert "short: 2 of 4 rows violate it." in comment
