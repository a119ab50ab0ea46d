"""A dev copy: an environment whose sources read another environment's collections."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support import Project, eventually, json_lines

SETTINGS = """\
version: 1
project: shop
environments:
  prod: {state: {path: state/prod}, warehouse: ./warehouse/prod}
  dev:
    default: true
    state: {path: state/dev}
    warehouse: ./warehouse/dev
    sources:
      orders: {from_environment: prod}
      customers: {from_environment: prod, sample: 50%}
defaults: {sources: {trigger: {interval: 2s}}, views: {trigger: {interval: 2s}}}
"""
PIPELINE = """\
sources:
  orders: {type: local, schema: "id BIGINT, amount INT, tags MAP<STRING, INT>"}
  customers: {type: local, schema: "id BIGINT, name STRING", key: [id]}
views:
  large: {query: "SELECT id, amount FROM orders WHERE amount > 10"}
"""
# In prod, it isn't there.
COPIES = "sources: {first_orders: {from_environment: prod, source: orders, as_of: STEP}}\n"


class Environment:
    def __init__(self, project: Project, name: str):
        self.project, self.name = project, name

    def run(self, *arguments: str, code: int = 0) -> str:
        done = self.project.run("--env", self.name, *arguments)
        assert done.returncode == code, f"{done.returncode}: {done.stdout}\n{done.stderr}\n{self.log()}"
        return done.stdout

    def log(self) -> str:
        path = self.project.folder / ".mzplan" / f"local-{self.name}.log"
        return path.read_text(errors="replace")[-6000:] if path.exists() else "(no log)"

    def append(self, source: str, rows: Iterable[Mapping[str, Any]], *options: str) -> None:
        path = self.project.folder / "rows.jsonl"
        path.write_text(json_lines(rows))
        self.run("append", f"source.{source}", "--file", str(path), *options)

    def rows(self, address: str, *columns: str) -> list[tuple[Any, ...]]:
        done = self.project.run("--env", self.name, "snapshot", address, "--format", "json")
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        return sorted(tuple(row[column] for column in columns) for row in rows)

    def becomes(self, address: str, columns: str, rows: list[tuple[Any, ...]]) -> None:
        found: list[list[tuple[Any, ...]]] = []

        def holds() -> bool:
            found[:] = [self.rows(address, *columns.split())]
            return found == [rows]

        try:
            eventually(f"{address} has its rows", holds, 150.0)
        except AssertionError:
            raise AssertionError(f"{found} instead of {rows}\n{self.run('status')}\n{self.log()}") from None


@pytest.fixture
def environments(tmp_path: Path) -> Iterator[tuple[Environment, Environment]]:
    project = Project(tmp_path / "shop")
    (project.folder / "mzplan.yaml").write_text(SETTINGS)
    project.write("pipeline", PIPELINE)
    prod, dev = Environment(project, "prod"), Environment(project, "dev")
    yield prod, dev
    dev.run("down")
    prod.run("down")


def test_dev_follows_collections_of_prod(environments: tuple[Environment, Environment]) -> None:
    prod, dev = environments
    prod.run("apply", "--auto-approve")
    prod.append("customers", [{"id": n, "name": f"c{n}"} for n in range(40)])
    prod.append("orders", [{"id": n, "amount": n * 10, "tags": {"n": n}} for n in (1, 2, 3)])
    prod.becomes("view.large", "id", [(2,), (3,)])
    prod.becomes("source.customers", "id", [(n,) for n in range(40)])
    step = json.loads(prod.run("steps", "source.orders", "--json"))["upper"] - 1

    dev.project.write("copies", COPIES.replace("STEP", str(step)))
    before = {path: path.read_bytes() for path in (dev.project.folder / "state/prod").glob("*.json")}
    dev.run("apply", "--auto-approve")
    dev.becomes("view.large", "id amount", [(2, 20), (3, 30)])
    dev.becomes("source.first_orders", "id", [(1,), (2,), (3,)])
    sample = [key for (key,) in dev.rows("source.customers", "id")]
    assert 5 < len(sample) < 35

    dev.run("down")
    prod.append("customers", [{"id": n} for n in range(0, 40, 2)], "--delete")
    prod.append("orders", [{"id": 4, "amount": 40}])
    prod.becomes("view.large", "id", [(2,), (3,), (4,)])
    dev.run("up")
    dev.becomes("view.large", "id", [(2,), (3,), (4,)])
    dev.becomes("source.customers", "id", [(n,) for n in sample if n % 2])
    assert dev.rows("source.first_orders", "id") == [(1,), (2,), (3,)]
    assert {path: path.read_bytes() for path in before} == before

    prod.run("apply", "--auto-approve", "--allow-replace", "--allow-loss", "--replace", "source.orders")
    drift = json.loads(dev.run("drift", "--json"))["drift"]
    assert [item["addresses"] for item in drift] == [["source.first_orders", "source.orders"]]
    assert all(item["kind"] == "upstream-changed" and "generation 2" in item["detail"] for item in drift)
    prod.append("orders", [{"id": 6, "amount": 60}])
    prod.becomes("source.orders", "id", [(6,)])
    dev.project.write("copies", "sources: {}\n")
    dev.run("apply", "--auto-approve", "--allow-replace")
    dev.becomes("source.orders", "id", [(6,)])
