"""Another number of `partitions`: the state of a stopped view is repartitioned, and nothing is read again."""

from __future__ import annotations

from typing import Any

import pytest

from mzplan.host.spark_lines import repartitions_state
from mzplan.schema.description import Description
from mzplan.warehouse.checkpoint_log import CheckpointLog
from mzplan.warehouse.checkpoints import Checkpoint
from tests.integration.spark.test_spark_relational import ORDERS, PAYMENTS, Shop, order
from tests.integration.spark_lab import Lab
from tests.support import eventually

TOTALS = "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer"
PAID = (
    "SELECT o.id, p.paid FROM orders o LEFT JOIN payments p ON o.id = p.id "
    "AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR"
)
CUSTOMERS = "abcdefgh"


def log_of(lab: Lab, view: Description) -> CheckpointLog:
    return Checkpoint(str(lab.checkpoint(view))).log


def partitions(lab: Lab, view: Description) -> int | None:
    log = log_of(lab, view)
    return log.partitions(log.committed())


def totals_of(lab: Lab) -> tuple[Shop, Description]:
    """A view with a total for each customer, which has done a step."""
    shop = Shop(lab)
    shop.source("orders", ORDERS)
    totals = shop.view(
        TOTALS, "customer STRING, total BIGINT", "orders", output="update", key=["customer"], state="1:0"
    )
    lab.start(totals)
    shop.add("orders", *(order(n, customer, n, 0) for n, customer in enumerate(CUSTOMERS)))
    shop.has(totals, *((customer, n) for n, customer in enumerate(CUSTOMERS)))
    lab.finish(totals)
    return shop, totals


def test_a_state_is_repartitioned_before_its_view_starts(lab: Lab) -> None:
    shop, totals = totals_of(lab)
    assert repartitions_state(lab.spark.version)
    step, rows = lab.last_step(totals), [(customer, n) for n, customer in enumerate(CUSTOMERS)]
    for number, more in ((5, 100), (1, 1000), (3, 10000)):
        totals = lab.changed(totals, partitions=number)
        assert lab.codes(totals) == []
        lab.start(totals)
        assert partitions(lab, totals) == number
        shop.add("orders", order(more, "a", more, 1), order(more + 1, "h", more, 1))
        rows = [(customer, total + more if customer in "ah" else total) for customer, total in rows]
        shop.has(totals, *rows)
        lab.finish(totals)
    # A repartition is a step without rows: nobody misses its commit.
    assert lab.last_step(totals) == step + 6
    wanted = [step + 2, step + 4, step + 6]
    eventually("the steps are recorded", lambda: [r.step for r in lab.recorded(totals, 1)][-3:] == wanted)
    assert not log_of(lab, totals).is_written(step + 1) and log_of(lab, totals).is_written(step + 2)


def test_a_killed_repartition_is_finished_first(lab: Lab) -> None:
    """Also if the view declares yet another number by now."""
    shop, totals = totals_of(lab)
    lab.start(totals := lab.changed(totals, partitions=3))
    lab.stop(totals)
    step = lab.undo_commit(totals)
    assert log_of(lab, totals).unfinished_repartition() == 3
    lab.start(totals := lab.changed(totals, partitions=4))
    assert partitions(lab, totals) == 4
    shop.add("orders", order(100, "b", 100, 1))
    shop.has(totals, *((customer, n + 100 * (customer == "b")) for n, customer in enumerate(CUSTOMERS)))
    lab.finish(totals)
    assert lab.last_step(totals) == step + 2


def test_an_interrupted_step_is_finished_before_a_repartition(lab: Lab) -> None:
    shop, totals = totals_of(lab)
    lab.undo_commit(totals)
    shop.add("orders", order(100, "b", 100, 1))
    lab.start(totals := lab.changed(totals, partitions=3))
    shop.has(totals, *((customer, n + 100 * (customer == "b")) for n, customer in enumerate(CUSTOMERS)))
    assert partitions(lab, totals) == 3


@pytest.mark.nightly
def test_a_state_of_several_stores_is_repartitioned(lab: Lab) -> None:
    """A join has four; an outer one remembers which rows have a match."""
    shop = Shop(lab)
    shop.source("orders", ORDERS)
    shop.source("payments", PAYMENTS)
    marks = {name: {"column": "ts", "delay": "1m"} for name in ("orders", "payments")}
    body: dict[str, Any] = {"watermarks": marks, "state": "1:0"}
    paid = shop.view(PAID, "id BIGINT, paid BIGINT", "orders payments", **body)
    lab.start(paid)
    shop.add("orders", *(order(n, "ada", 5, 0) for n in range(8)))
    shop.add("payments", '"id": 1, "paid": 5, "ts": "2026-01-01T00:00:20Z"')
    shop.has(paid, (1, 5))
    lab.finish(paid)
    lab.start(paid := lab.changed(paid, partitions=3))
    shop.add("payments", '"id": 2, "paid": 6, "ts": "2026-01-01T00:00:20Z"')
    shop.has(paid, (1, 5), (2, 6))
    shop.add("orders", order(100, "bob", 1, 59), '"id": 101, "ts": "2026-01-01T20:00:00Z"')
    shop.add("payments", '"id": 300, "paid": 6, "ts": "2026-01-01T20:00:00Z"')
    unmatched = [(n, None) for n in (0, *range(3, 8), 100)]
    shop.has(paid, (1, 5), (2, 6), *unmatched)


def test_another_spark_continues_with_the_former_number(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    shop, totals = totals_of(lab)
    monkeypatch.setattr("mzplan.spark.state_partitions.repartitions_state", lambda spark: False)
    monkeypatch.setattr("mzplan.spark.trials.state_trial.repartitions_state", lambda spark: False)
    totals = lab.changed(totals, partitions=3)
    assert "the checkpoint has 2 partitions instead of 3" in lab.finds(totals, "MZ321").detail
    lab.start(totals)  # its runner had another Spark when it was committed
    assert "[MZ405]" in str(lab.report(totals).warning) and partitions(lab, totals) == 2
    shop.add("orders", order(100, "b", 100, 1))
    eventually("it continues", lambda: ("b", 101) in shop.rows(totals))
    lab.finish(totals)
    monkeypatch.undo()
    lab.start(totals)
    lab.stop(totals)
    lab.undo_commit(totals)
    monkeypatch.setattr("mzplan.spark.state_partitions.repartitions_state", lambda spark: False)
    assert lab.refused(totals).code == "MZ405"
