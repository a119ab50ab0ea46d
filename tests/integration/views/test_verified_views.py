"""`mzplan verify --from-upstream` of views that join and aggregate, as a runner has written them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.views.relational_shop import RelationalShop
from tests.support import eventually

HOUR = 3600


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[RelationalShop]:
    shop = RelationalShop(tmp_path / "p")
    yield shop
    shop.close()


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_each_shape_is_computed_again(shop: RelationalShop) -> None:
    shop.project.apply()
    shop.add_customers()
    eventually("the customers are there", lambda: len(shop.customers()) == 5)
    for count, later in ((100, 0), (1, HOUR), (20, HOUR)):
        shop.add("orders", count, later=later)
        shop.add("payments", count, later=later)
        eventually("all views have read", lambda: shop.rows("totals") == shop.expected("totals"))
    query = shop.project.queries()["view.revenue"]
    assert query["state_rows"] > 0 and query["state_bytes"] > 0
    assert query["late_rows"] == 0 and query["watermark"] >= "2026-01-01T01"
    assert shop.project.queries()["view.named"]["state_rows"] is None
    shop.project.run("down")

    def verified(view: str) -> dict[str, Any]:
        done = shop.project.run("verify", f"view.{view}", "--from-upstream", "--json")
        assert [line for line in done.stderr.splitlines() if "Spark" in line or " WARN " in line] == [
            "Starting Spark in this process"
        ]
        return {"code": done.returncode, **json.loads(done.stdout)}

    for view in ("revenue", "totals", "paid"):
        found = verified(view)
        recomputed = found["recomputed"]
        assert found["code"] == 0 and recomputed["equal"], found
        assert recomputed["rows"]["collection"] == len(shop.rows(view)) > 0
        assert recomputed["late"] == 0
    found = verified("named")
    assert (found["code"], found["difference"], found["diagnostics"]) == (0, None, [])
    assert found["verified"] >= 3
