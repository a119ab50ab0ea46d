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


def test_a_connection_inside_is_a_resource_of_its_own(folder: Path) -> None:
    (folder / "shop.yaml").write_text(INLINE.replace("b:9092", "c:9092"))
    assert planned(folder) == {"connection.source_orders": "update", "source.orders": "restart"}


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


def test_errors_have_their_place_and_secrets_stay_masked(folder: Path) -> None:
    text = INLINE.replace("b:9092", "b:xx").replace('"${env:P}"', "hunter2")
    (folder / "shop.yaml").write_text(text)
    ran = mzplan(folder, "plan")
    assert "shop.yaml:3:41: error[MZ005]" in ran.err and "shop.yaml:14:17: error[MZ016]" in ran.err
    assert "hunter" not in ran.err + ran.out


def test_a_connection_inside_needs_a_free_name_and_is_not_altered(folder: Path) -> None:
    refused = altered(folder, "ALTER CONNECTION sink_out SET PORT 1", code=1).error()
    assert refused["code"] == "MZ075" and "inside" in refused["detail"]
    (folder / "named.yaml").write_text(NAMED.replace("  k:", "  source_orders:"))
    found = mzplan(folder, "plan", "--json").error()
    assert found["code"] == "MZ003" and found["range"]["line"] == 3 and "named.yaml:2:3" in found["detail"]
    (folder / "named.yaml").unlink()
    (folder / "shop.yaml").write_text(INLINE.replace('{type: kafka, brokers: ["b:9092"]}', "[k]"))
    assert mzplan(folder, "plan", "--json").error()["code"] == "MZ005"
