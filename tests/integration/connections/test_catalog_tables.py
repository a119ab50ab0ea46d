"""Delta sinks into tables of a catalog: Spark's built-in one, with Derby in a folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.spark_lab import read_delta
from tests.machines import DOCS
from tests.support import Project, eventually

PIPELINE = """\
sources:
  orders: {type: local, schema: "id BIGINT, customer STRING", trigger: {interval: 300ms}}
sinks:
  every: {type: delta, from: orders, table: sales.orders, create: true, trigger: {interval: 300ms}}
"""
LATEST = """\
  latest:
    type: delta
    from: orders
    table: spark_catalog.sales.latest
    create: true
    mode: upsert
    key: [id]
    partition_by: [customer]
    trigger: {interval: 300ms}
"""
# As another program that uses the catalog while no runner does.
SCRIPT = """\
import json, sys
from mzplan.spark.process.session import open_session
spark = open_session("catalog", {})
found = [[list(row) for row in spark.sql(statement).collect()] for statement in sys.argv[1:]]
print("FOUND", json.dumps(found))
"""


class Shop(Project):
    """A project whose runner has the catalog of docs/how-to/write-a-catalog-table.md."""

    def __init__(self, folder: Path):
        super().__init__(folder / "p", "catalogs")
        page = (DOCS / "how-to" / "write-a-catalog-table.md").read_text(encoding="utf-8")
        shown = re.search(r'```properties title="spark-defaults.conf"\n(.*?)```', page, re.DOTALL)
        assert shown is not None
        (folder / "conf").mkdir()
        (folder / "conf" / "spark-defaults.conf").write_text(shown[1].replace("/srv/", f"{folder}/"))
        self.settings = {"SPARK_CONF_DIR": str(folder / "conf")}
        self.tables = folder / "tables" / "sales.db"

    def with_catalog(self) -> None:
        self.environment |= self.settings

    def send(self, *ids: int) -> None:
        self.append("orders", ({"id": id_, "customer": f"c{id_ % 2}"} for id_ in ids))

    def ask(self, *statements: str) -> list[list[Any]]:
        command = [sys.executable, "-c", SCRIPT, *statements]
        environment = {**os.environ, **self.settings}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=self.folder)
        assert done.returncode == 0, done.stderr[-3000:]
        found: list[list[Any]] = json.loads(done.stdout.partition("FOUND ")[2])
        return found


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    yield made
    made.down()


def has(table: Path, *ids: int) -> None:
    """Wait until a table has these rows, each once."""
    eventually(f"rows in {table.name}", lambda: sorted(row["id"] for row in read_delta(table)) == [*ids])


def test_sinks_find_their_tables_again(shop: Shop) -> None:
    shop.with_catalog()
    shop.write("shop", PIPELINE + LATEST)
    shop.apply()
    shop.send(1, 2)
    has(shop.tables / "orders", 1, 2)
    has(shop.tables / "latest", 1, 2)
    shop.kill_runner()
    shop.json("up")
    shop.send(2, 3)
    has(shop.tables / "orders", 1, 2, 2, 3)
    has(shop.tables / "latest", 1, 2, 3)
    assert shop.run("verify", "sink.every").returncode == 0
    assert shop.json("drift")["drift"] == []
    shop.down()
    rows = "SELECT count(*), count(DISTINCT id) FROM sales"
    assert shop.ask(f"{rows}.orders", f"{rows}.latest") == [[[4, 3]], [[3, 3]]]


@pytest.mark.nightly
def test_a_table_that_was_created_anew_is_refused(shop: Shop, tmp_path: Path) -> None:
    def fails(text: str) -> None:
        eventually(text, lambda: text in str(shop.queries()["sink.every"]["error"]))

    shop.write("shop", PIPELINE)
    shop.run("apply", "--auto-approve")  # the default catalog is in memory
    fails("keeps its tables in memory")
    shop.down()
    shop.with_catalog()
    shop.json("up")
    shop.send(1, 2)
    has(shop.tables / "orders", 1, 2)
    shop.down()

    folder = tmp_path / "with space"
    shop.ask("DROP TABLE sales.orders")
    shop.send(3)
    shop.json("up")
    fails("No table has the name")
    shop.down()
    columns = "(id BIGINT, customer STRING)"
    shop.ask(f"CREATE TABLE sales.orders {columns} USING DELTA LOCATION '{folder}'")
    shop.json("up")
    fails("Its id is now")

    shop.write("shop", PIPELINE.replace("create: true", "on_target_change: accept"))
    shop.apply()
    has(folder, 3)
    assert shop.run("replay", "sink.every", "--missing", "--auto-approve").returncode == 0
    has(folder, 1, 2, 3)
    assert not (shop.tables / "orders" / "_delta_log").exists()
