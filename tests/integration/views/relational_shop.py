"""A project with one relational view of each shape, and what each of them should hold."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.faults.doomed import Doomed
from tests.support import Project, eventually

EVERY = {"interval": "200ms"}
START = datetime(2026, 1, 1, tzinfo=UTC)
WINDOW = "window(ts, '1 minute')"
SOURCES = {
    "orders": "id BIGINT, customer STRING, amount BIGINT, ts TIMESTAMP",
    "payments": "id BIGINT, paid BIGINT, ts TIMESTAMP",
    "customers": "customer STRING, city STRING",
}
MARK = {"column": "ts", "delay": "10 seconds"}
VIEWS: dict[str, dict[str, Any]] = {
    "revenue": {
        "query": f"SELECT customer, unix_seconds({WINDOW}.start) AS minute, sum(amount) AS total FROM orders "
        f"GROUP BY customer, {WINDOW}",
        "watermarks": {"orders": MARK},
        "partitions": 2,
        "schema": "customer STRING, minute BIGINT, total BIGINT",
    },
    "totals": {
        "query": "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer",
        "output": "update",
        "key": ["customer"],
        "partitions": 2,
        "schema": "customer STRING, n BIGINT, total BIGINT",
    },
    "paid": {
        "query": "SELECT o.id, p.paid FROM orders o JOIN payments p ON o.id = p.id AND p.ts BETWEEN o.ts AND "
        "o.ts + INTERVAL 1 MINUTE",
        "watermarks": {"orders": MARK, "payments": MARK},
        "partitions": 2,
        "schema": "id BIGINT, paid BIGINT",
    },
    "named": {
        "query": "SELECT o.id, c.city FROM orders o LEFT JOIN customers c ON o.customer = c.customer",
        "snapshots": ["customers"],
        "schema": "id BIGINT, city STRING",
    },
}
Rows = list[tuple[Any, ...]]


class RelationalShop(Doomed):
    """Orders and payments, one a second, of seven customers; the cities of five are known."""

    def __init__(self, project: Project, more: str = ""):
        super().__init__(project)
        self.sent = {"orders": 0, "payments": 0}
        shop = {
            "sources": {
                name: {"type": "local", "schema": schema, "trigger": EVERY}
                for name, schema in SOURCES.items()
            },
            "views": {name: {**view, "trigger": EVERY} for name, view in VIEWS.items()},
        }
        self.project.write("shop", json.dumps(shop))
        if more:
            self.project.write("more", more)

    def add_customers(self) -> None:
        self.project.append("customers", [{"customer": f"c{i}", "city": f"city {i}"} for i in range(5)])
        eventually("the customers are there", lambda: len(self._rows("source.customers")) == 5)

    def add(self, name: str, count: int, *, later: int = 0) -> None:
        """Add so many rows, `later` seconds after the ones before."""
        first, self.sent[name] = self.sent[name], self.sent[name] + count
        rows: list[dict[str, Any]] = []
        for i in range(first, first + count):
            at = (START + timedelta(seconds=i + later)).isoformat()
            values = {"customer": f"c{i % 7}", "amount": i} if name == "orders" else {"paid": i * 2}
            rows.append({"id": i, **values, "ts": at})
        self.project.append(name, rows)

    def rows(self, view: str) -> Rows:
        return self._rows(f"view.{view}")

    def _rows(self, address: str) -> Rows:
        done = self.project.run("snapshot", address, "--format", "json")
        if done.returncode != 0:
            return []
        return sorted(tuple(json.loads(line).values()) for line in done.stdout.splitlines())

    def expected(self, view: str) -> Rows:
        """What a view holds once it has read all, and an order an hour later has closed the windows."""
        orders = range(self.sent["orders"])
        if view == "revenue":
            windows: Counter[tuple[str, int]] = Counter()
            for i in orders[:-1]:
                windows[f"c{i % 7}", int(START.timestamp()) + i // 60 * 60] += i
            return sorted((customer, minute, total) for (customer, minute), total in windows.items())
        if view == "totals":
            ids = [[i for i in orders if i % 7 == customer] for customer in range(7)]
            return sorted((f"c{i}", len(own), sum(own)) for i, own in enumerate(ids) if own)
        if view == "paid":
            late = {count - 1 for count in self.sent.values()}  # the rows that close the windows
            return sorted((i, i * 2) for i in range(min(self.sent.values())) if i not in late)
        return sorted((i, f"city {i % 7}" if i % 7 < 5 else None) for i in orders)

    def differs(self) -> dict[str, tuple[int, int]]:
        """The views that don't hold what they should: how many rows they have, and should have."""
        found = {view: (self.rows(view), self.expected(view)) for view in VIEWS}
        return {view: (len(rows), len(wanted)) for view, (rows, wanted) in found.items() if rows != wanted}
