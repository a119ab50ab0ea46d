"""A connection written inside its only user: a resource like any other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli_runs import mzplan

PROJECT = "version: 1\nproject: shop\ninstances: {local: {type: dry}}\n"
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
    (tmp_path / "mzplan.yaml").write_text(PROJECT)
    (tmp_path / "shop.yaml").write_text(INLINE)
    assert mzplan(tmp_path, "apply", "--auto-approve").code == 0
    return tmp_path


def plan(folder: Path) -> dict[str, tuple[str, str]]:
    document = mzplan(folder, "plan", "--json").json()
    return {c["address"]: (c["action"], c["effect"]) for c in document["changes"]}


def test_a_connection_inside_is_a_resource_of_its_own(folder: Path) -> None:
    (folder / "shop.yaml").write_text(INLINE.replace("b:9092", "c:9092"))
    updated = {"connection.source_orders": ("update", "restart")}
    assert plan(folder) == {**updated, "source.orders": ("restart", "restart")}


def test_moving_a_connection_out_restarts_nothing(folder: Path) -> None:
    (folder / "named.yaml").write_text(NAMED)
    before = mzplan(folder, "status", "--json").json()["queries"]
    for statement in ("ALTER SOURCE orders SET CONNECTION k", "ALTER SINK out SET CONNECTION pg"):
        assert mzplan(folder, "alter", statement, "--auto-approve").code == 0
    assert "    connection: k   # its own\n" in (folder / "shop.yaml").read_text()
    assert "    connection: pg\n    table: t\n" in (folder / "shop.yaml").read_text()
    former = ["connection.sink_out", "connection.source_orders"]
    assert plan(folder) == dict.fromkeys(former, ("delete", "none"))
    assert mzplan(folder, "apply", "--auto-approve").code == 0
    after = mzplan(folder, "status", "--json").json()["queries"]
    assert [q["run_id"] for q in after] == [q["run_id"] for q in before]
    assert plan(folder) == {}


def test_errors_have_their_place_and_secrets_stay_masked(folder: Path) -> None:
    text = INLINE.replace("b:9092", "b:xx").replace('"${env:P}"', "hunter2")
    (folder / "shop.yaml").write_text(text)
    ran = mzplan(folder, "plan")
    assert "shop.yaml:3:41: error[MZ005]" in ran.err and "shop.yaml:14:17: error[MZ016]" in ran.err
    assert "hunter" not in ran.err + ran.out


def test_a_connection_inside_needs_a_free_name_and_is_not_altered(folder: Path) -> None:
    ran = mzplan(folder, "alter", "ALTER CONNECTION sink_out SET PORT 1", "--auto-approve", "--json")
    assert ran.error()["code"] == "MZ075" and "inside" in ran.error()["detail"]
    (folder / "named.yaml").write_text(NAMED.replace("  k:", "  source_orders:"))
    found = mzplan(folder, "plan", "--json").error()
    assert found["code"] == "MZ003" and found["range"]["line"] == 3 and "named.yaml:2:3" in found["detail"]
    (folder / "named.yaml").unlink()
    (folder / "shop.yaml").write_text(INLINE.replace('{type: kafka, brokers: ["b:9092"]}', "[k]"))
    assert mzplan(folder, "plan", "--json").error()["code"] == "MZ005"
