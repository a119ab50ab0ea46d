"""A connection written inside its only user: a resource like any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli_runs import apply, mzplan
from tests.unit.config_files import DRY, write
from tests.unit.features.alter.alter_runs import altered, planned

INLINE = """\
sources:
  orders:
    connection: {type: kafka, brokers: ["b:9092"]}   # its own
    topic: orders
    format: {type: json, schema: "id BIGINT"}
sinks:
  out:
    from: orders
    connection:
      type: postgres
      host: db
      database: s
      user: u
      password: "${env:P}"
    table: t
"""
NAMED = """\
connections:
  k: {type: kafka, brokers: ["b:9092"]}
  pg: {type: postgres, host: db, database: s, user: u, password: "${env:P}"}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    apply(write(tmp_path, {"mzplan.yaml": DRY, "shop.yaml": INLINE}))
    return tmp_path


def test_moving_a_connection_out_restarts_nothing(folder: Path) -> None:
    (folder / "named.yaml").write_text(NAMED)
    before = mzplan(folder, "status", "--json").json()["queries"]
    for statement in ("ALTER SOURCE orders SET CONNECTION k", "ALTER SINK out SET CONNECTION pg"):
        altered(folder, statement)
    assert "    connection: k   # its own\n" in (folder / "shop.yaml").read_text()
    assert "    connection: pg\n    table: t\n" in (folder / "shop.yaml").read_text()
    assert planned(folder) == dict.fromkeys(["connection.sink_out", "connection.source_orders"], "delete")
    apply(folder)
    after = mzplan(folder, "status", "--json").json()["queries"]
    assert [q["run_id"] for q in after] == [q["run_id"] for q in before]
    assert planned(folder) == {}
