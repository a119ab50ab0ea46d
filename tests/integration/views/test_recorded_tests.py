"""`mzplan test --record`: tests from rows that views of a real runner have read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import Project, eventually

SHOP = """\
defaults: {sources: {trigger: {interval: 1s}}, views: {trigger: {interval: 1s}}}
sources:
  orders: {type: local, schema: "id BIGINT, customer STRING, amount DECIMAL(10,2)"}
  customers: {type: local, schema: "name STRING, city STRING", key: [name]}
views:
  located:
    query: SELECT o.id, o.amount, c.name, c.city FROM orders o LEFT JOIN customers c ON o.customer = c.name
    snapshots: [customers]
  cities: {query: "SELECT name, upper(city) AS city FROM customers"}
"""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Project]:
    project = Project(tmp_path / "shop")
    settings = project.folder / "mzplan.yaml"
    defaults, _, resources = SHOP.partition("sources:\n")
    settings.write_text(settings.read_text() + defaults)
    project.write("shop", f"sources:\n{resources}")
    yield project
    project.down()


def rows(project: Project, view: str) -> list[tuple[object, ...]]:
    done = project.run("snapshot", f"view.{view}", "--format", "json")
    return sorted(tuple(json.loads(line).values()) for line in done.stdout.splitlines())


def mzplan(project: Project, *arguments: str) -> str:
    """Run a command that starts Spark, in a process of its own."""
    command = [sys.executable, "-m", "mzplan", "-C", str(project.folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done
    return done.stdout


@pytest.mark.nightly
def test_a_recorded_test_has_the_rows_that_a_view_read(shop: Project) -> None:
    shop.apply()
    shop.append("customers", [{"name": "ada", "city": "London"}, {"name": "bob", "city": "Paris"}])
    eventually("both customers are there", lambda: len(rows(shop, "cities")) == 2)
    shop.append("orders", [{"id": 1, "customer": "ada", "amount": "5.50"}, {"id": 2, "customer": "zoe"}])
    eventually("both orders are there", lambda: len(rows(shop, "located")) == 2)
    shop.append("customers", [{"name": "ada"}], "--delete")
    shop.append("customers", [{"name": "bob", "city": "Rome"}])
    eventually("ada is gone", lambda: [city for _, city in rows(shop, "cities")] == ["ROME"])
    for view in ("located", "cities"):
        last = shop.json("steps", f"view.{view}")["upper"] - 1
        masked = ("--mask", "customer", "--mask", "name") if view == "located" else ()
        mzplan(shop, "test", "--record", f"view.{view}", "--steps", f"0..{last}", *masked)
    recorded = {path.stem.partition("_")[0]: path.read_text() for path in shop.folder.glob("tests/*.yaml")}
    assert '{"name": "ada", "_op": "delete"}' in recorded["cities"]
    assert '{"name": "bob", "city": "ROME"}' in recorded["cities"]
    assert not any(name in recorded["located"] for name in ("ada", "bob", "zoe"))
    assert '"amount": "5.50", "name": "masked ' in recorded["located"]
    assert json.loads(mzplan(shop, "test", "--json"))["summary"] == {"passed": 2, "failed": 0}
