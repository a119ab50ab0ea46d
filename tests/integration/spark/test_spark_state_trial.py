"""Before a commit, Spark says whether a changed view can continue with the state in its checkpoint."""

from __future__ import annotations

import time
from typing import Any

from mzplan.host.spark_lines import repartitions_state
from tests.integration.spark.test_spark_relational import PAYMENTS, Shop, order
from tests.integration.spark_lab import Lab
from tests.support import eventually

TOTALS = "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer"
PAID = (
    "SELECT o.id, p.paid FROM orders o JOIN payments p ON o.id = p.id "
    "AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR"
)


def test_a_query_that_spark_cannot_continue_is_refused_before_the_commit(lab: Lab) -> None:
    """Whatever the plan has said: here, nothing has compared the queries."""
    shop = Shop(lab)
    shop.source("orders", "id BIGINT, customer STRING, amount BIGINT, ts TIMESTAMP")
    shop.source("payments", PAYMENTS)
    update: dict[str, Any] = {"output": "update", "key": ["customer"], "state": "1:0"}
    totals = shop.view(TOTALS, "customer STRING, total BIGINT", "orders", **update)
    marks = {name: {"column": "ts", "delay": "1m"} for name in ("orders", "payments")}
    paid = shop.view(PAID, "id BIGINT, paid BIGINT", "orders payments", watermarks=marks, state="1:0")
    lab.start(totals, paid)
    shop.add("orders", order(1, "ada", 5, 0))
    shop.add("payments", '"id": 1, "paid": 5, "ts": "2026-01-01T00:00:20Z"')
    shop.has(totals, ("ada", 5))
    shop.has(paid, (1, 5))
    eventually("the state is there", lambda: lab.checkpoint_done(totals) and lab.checkpoint_done(paid))

    def refusals(view: Any, query: str, **body: Any) -> list[str]:
        changed = lab.changed(view, query=query, **body)
        began = time.monotonic()
        found = [f"{d.code} {d.detail}" for d in lab.check(changed).diagnostics if d.severity == "error"]
        print(f"checked in {time.monotonic() - began:.1f} s: {query}")
        assert lab.check(changed).diagnostics == () or found  # a description is tried once
        return found

    kept = "WITH o AS (SELECT customer AS c, amount AS a FROM orders WHERE amount > 0) SELECT c AS customer, "
    assert refusals(totals, f"{kept}sum(a) * 2 AS total FROM o WHERE TRUE GROUP BY c") == []
    (lost,) = refusals(totals, TOTALS.replace("sum(amount)", "CAST(avg(amount) AS BIGINT)"))
    assert lost.startswith("MZ321") and "operator 0 (aggregation) stores the values" in lost
    (lost,) = refusals(
        totals, f"SELECT DISTINCT customer, max(total) AS total FROM ({TOTALS}) x GROUP BY customer"
    )
    assert "MZ" in lost
    found = refusals(totals, TOTALS, partitions=5)
    assert ([] if repartitions_state(lab.spark.version) else ["MZ321"]) == [one[:5] for one in found]
    assert refusals(paid, PAID.replace("p.paid", "-p.paid AS paid")) == []
    (lost,) = refusals(paid, PAID.replace("o.id,", "o.amount AS id,"))
    assert "operator 0 (join) stores the values" in lost
