"""A project to look at: three conditions, a fault with its repair, two serials. Its status is written as a
runner would, so that a test decides what is seen."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from mzplan.model.address import Address
from mzplan.model.observed import Status
from mzplan.store.backends.local import LocalBackend
from mzplan.store.store import Store
from tests.unit.cli_runs import mzplan

COMMITTER = {"GITHUB_ACTIONS": "true", "GITHUB_ACTOR": "ann"}  # no name of this machine is in a picture
SETTINGS = "version: 1\nproject: shop\ninstances: {local: {type: dry}}\n"
HOSTILE = "</pre><script>document.title='run'</script><img src=x onerror=alert(1)> \u202e reversed"

PIPELINE = """\
connections:
  shop_kafka: {type: kafka, brokers: ["%s:9092"]}
  web_kafka: {type: kafka, brokers: ["web:9092"]}
  shop_pg: {type: postgres, host: pg, database: shop, user: app, password: "${env:SHOP_PG_PASSWORD}"}
sources:
  customers: {connection: shop_kafka, topic: customers, format: {type: json, schema: "id BIGINT"}}
  orders: {connection: shop_kafka, topic: orders, format: {type: json, schema: "id BIGINT, amount INT"}}
  payments: {connection: shop_kafka, topic: payments, format: {type: json, schema: "id BIGINT, amount INT"}}
  clicks: {connection: web_kafka, topic: clicks, format: {type: json, schema: "id BIGINT, url STRING"}}
sinks:
  customers_pg: {connection: shop_pg, from: customers, table: customers, mode: upsert, key: [id]}
  orders_pg: {connection: shop_pg, from: orders, table: orders, mode: upsert, key: [id]}
  large_orders: {type: console, from: orders, where: "amount > 1000"}
  payments_pg: {connection: shop_pg, from: payments, table: payments, mode: upsert, key: [id]}
  clicks_log: {type: console, from: clicks, paused: true, description: "</textarea><b>odd</b>"}
"""


class ShownProject:
    """The project in a folder, applied twice."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "mzplan.yaml").write_text(SETTINGS)
        self.store = Store(LocalBackend(folder / "state"), "shop")
        for broker, message in (("a", "Begin"), ("b", "Move to the new brokers")):
            (folder / "pipeline.yaml").write_text(PIPELINE % broker)
            with mock.patch.dict(os.environ, COMMITTER):
                ran = mzplan(folder, "apply", "--auto-approve", "--json", "-m", message)
            assert ran.code == 0, (ran, message)
        status = self.store.read_status("local")
        assert status is not None
        self._status = status

    def seen(self, **changed: Mapping[str, Any]) -> None:
        """Report what is given of some queries, by name; of the others, that they run well."""
        self.store.write_status(_reported(self._status, changed))


def troubled_project(folder: Path) -> ShownProject:
    """The project in a folder, and something of everything seen of it."""
    made = ShownProject(folder)
    made.seen(**troubled())
    return made


def troubled() -> dict[str, dict[str, Any]]:
    """Something of everything, for pictures."""
    return {
        "payments": {
            "condition": "failed",
            "error": "The topic payments is not there. Fix: create it, or correct `topic`.",
            "error_code": "MZ050",
            "failures": 4,
            "input_rows_per_second": 0.0,
        },
        "orders_pg": {
            "condition": "starting",
            "error": f"The server refused: {HOSTILE}",
            "error_code": "MZ053",
            "error_kind": "target-behind",
            "at_fault": Address("connection", "shop_pg"),
            "fault": "pg:5432 does not answer: connection refused.",
        },
    }


def _reported(status: Status, changed: Mapping[str, Mapping[str, Any]]) -> Status:
    now = time.time()
    observations = {}
    for number, (address, one) in enumerate(sorted(status.observations.items())):
        usual = {
            "step": 40 + number,
            "run_id": "11111111-1111-1111-1111-111111111111",
            "total_rows": 12_000 * (number + 1),
            "last_rows": 120,
            "last_batch_at": round(now) - 3.0,
            "last_steps": tuple((40 + number - n, round(now) - 3 - 5 * n, 120 - n) for n in range(3)),
            "input_rows_per_second": 0.0 if one.condition == "paused" else 12.5 * (number + 1),
            "lag": 7 * number,
            "lag_unit": "records",
        }
        observations[address] = replace(one, **{**usual, **changed.get(address.name, {})})
    return replace(status, heartbeat=now, observations=observations)
