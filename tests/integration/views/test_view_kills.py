"""Views whose runner is killed under load and whose query changes in between: no row is lost or doubled."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from tests.faults.doomed import ids_in_delta, verify
from tests.integration.spark_lab import read_delta
from tests.integration.views.relational_shop import EVERY, VIEWS, RelationalShop
from tests.support import Project, eventually

SECONDS = 240.0
KILLS = 4
HOUR = 3600


def declare(shop: RelationalShop, version: int) -> None:
    """Two more views, one behind the other, of which the first says the version of its query. A Delta table
    without a key takes their rows."""
    every = {"trigger": EVERY}
    numbered = f"SELECT id, CAST({version} AS INT) AS version FROM orders WHERE id % 2 = 0"
    squares = "SELECT id, CAST(id * id AS BIGINT) AS square, version FROM numbered"
    more = {
        "connections": {"disk": {"type": "files", "path": "lake"}},
        "views": {"numbered": {"query": numbered, **every}, "squares": {"query": squares, **every}},
        "sinks": {"out": {"type": "delta", "from": "squares", "connection": "disk", "path": "out", **every}},
    }
    shop.project.write("more", json.dumps(more))


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_killed_while_views_compute(tmp_path: Path) -> None:
    """No row is lost or counted twice, and each is computed by a query that was committed then."""
    chance = random.Random(11)
    shop = RelationalShop(Project(tmp_path / "p", "relational"))
    out = tmp_path / "p" / "lake" / "out"

    def computed(version: int) -> bool:
        ids = ids_in_delta(out)
        assert len(ids) == len(set(ids)), "a row is there twice"
        return version in {row["version"] for row in read_delta(out)}

    try:
        for version in range(KILLS):
            declare(shop, version)
            shop.project.apply()
            if version == 0:
                shop.add_customers()
            for name in ("orders", "payments", "orders", "payments"):
                shop.add(name, 400)
            eventually("it computes", lambda version=version: computed(version), SECONDS)  # type: ignore[misc]
            shop.add("orders", 300)
            time.sleep(chance.uniform(0.0, 2.5))
            shop.project.kill_runner()
        declare(shop, KILLS)
        shop.project.apply()
        shop.add("payments", 100)
        shop.add("orders", 1, later=HOUR)
        shop.add("payments", 1, later=HOUR)
        eventually("each view is as it should be", lambda: not shop.differs(), SECONDS)
        sent = shop.sent["orders"]
        eventually("so is the table", lambda: len(ids_in_delta(out)) == len(range(0, sent, 2)), SECONDS)
        found = sorted((row["id"], row["square"], row["version"]) for row in read_delta(out))
        assert [row[:2] for row in found] == [(i, i * i) for i in range(0, sent, 2)]
        versions = [version for _, _, version in found]
        assert versions == sorted(versions) and set(versions) == set(range(KILLS + 1))
        revenue = shop.project.queries()["view.revenue"]
        assert revenue["state_rows"] > 0 and revenue["state_bytes"] > 0
        assert revenue["late_rows"] == 0 and revenue["watermark"] >= "2026-01-01T01"
        assert shop.project.queries()["view.named"]["state_rows"] is None
        shop.project.down()
        verify(shop.project, "view.numbered", "view.squares", "sink.out")
        for view in VIEWS:
            is_computed_again(shop, view)
    finally:
        shop.close()


def is_computed_again(shop: RelationalShop, view: str) -> None:
    """`mzplan verify --from-upstream` computes a view again, by Spark in its own process."""
    done = shop.project.run("verify", f"view.{view}", "--from-upstream", "--json")
    lines = [line for line in done.stderr.splitlines() if "Spark" in line or " WARN " in line]
    assert lines == ["Starting Spark in this process"]
    found = json.loads(done.stdout)
    assert done.returncode == 0 and found["difference"] is None, found
    if view == "named":  # step by step, each with the snapshot that it has recorded
        assert found["diagnostics"] == [] and found["verified"] >= 3, found
    else:
        recomputed = found["recomputed"]
        assert recomputed["equal"], found
        assert recomputed["late"] == 0, found  # even if a kill came between a step and its record
        assert recomputed["rows"]["collection"] == len(shop.rows(view)) > 0
