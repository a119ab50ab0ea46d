"""examples/policies on real plans: the denied changes, the allowed ones, and the exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli_runs import mzplan

POLICIES = Path(__file__).parents[3] / "examples" / "policies"
PIPELINE = """\
connections:
  k: {type: kafka, brokers: ["a:9092"]}
  pg: {type: postgres, host: pg, database: d, user: u, password: "${%s:PG}"}
sources:
  orders: {connection: k, topic: %s, format: {type: text}, labels: {team: shop, severity: %s}}
sinks:
  out: {type: console, from: orders%s}
  kept: {connection: pg, from: orders, table: t, labels: {team: shop, severity: 1, prio: true}}
"""


def project(folder: Path, *values: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "mzplan.yaml").write_text("version: 1\nproject: shop\ninstances: {local: {type: dry}}\n")
    (folder / "pipeline.yaml").write_text(PIPELINE % values)
    return folder


def checked(plan: dict[str, Any], code: int, **more: Any) -> list[str]:
    """Return the lines that check.py prints for a plan."""
    command = [sys.executable, str(POLICIES / "check.py"), str(POLICIES)]
    done = subprocess.run(command, input=json.dumps({**plan, **more}), capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def committed(tmp_path: Path) -> Path:
    folder = project(tmp_path / "shop", "env", "orders", "high", "")
    assert mzplan(folder, "apply", "--auto-approve").code == 0
    return folder


def test_each_policy_denies_its_changes(committed: Path) -> None:
    project(committed, "file", "other", "0", ', rows: 5, labels: {team: "a \\"b\\""}')
    plan = mzplan(committed, "plan", "--json").json()
    others = [
        "connection.pg: password comes from file, not from vault",
        "sink.out: the label severity is missing",
    ]
    replaced = [line for line in checked(plan, 1) if line not in others]
    assert [line.partition(" (")[0] for line in replaced] == [
        f"{address}: replace is not allowed in production"
        for address in ("sink.kept", "sink.out", "source.orders")
    ]
    assert replaced[-1].endswith("(topic changed)") and len(checked(plan, 1)) == 5
    assert checked(plan, 1, environment="prod") == checked(plan, 1)
    assert checked(plan, 1, environment="dev") == others


def test_a_plan_within_all_policies_passes(committed: Path) -> None:
    assert checked(mzplan(committed, "plan", "--json").json(), 0) == ["No policy denies this plan."]
    project(committed, "env", "orders", "low", ', labels: {team: x, severity: ""}')
    plan = mzplan(committed, "plan", "--json").json()
    assert checked(plan, 0, environment="prod") == ["No policy denies this plan."]


def test_a_plan_has_labels_and_the_providers_of_secrets(tmp_path: Path) -> None:
    folder = project(tmp_path / "shop", "env", "orders", "high", "")
    plan = mzplan(folder, "plan", "--json").json()
    changes = {change["address"]: change for change in plan["changes"]}
    assert changes["connection.pg"]["secrets"] == [{"path": "password", "provider": "env"}]
    assert changes["sink.kept"]["labels"] == {"prio": True, "severity": 1, "team": "shop"}
    assert "labels" not in changes["sink.out"] and "secrets" not in changes["source.orders"]
    mzplan(folder, "plan", "--out", str(tmp_path / "plan.mzplan"))
    assert mzplan(folder, "show", str(tmp_path / "plan.mzplan"), "--json").json() == plan
    mzplan(folder, "apply", "--auto-approve")
    (folder / "pipeline.yaml").write_text("")
    gone = {change["address"]: change for change in mzplan(folder, "plan", "--json").json()["changes"]}
    assert gone["sink.kept"]["labels"]["team"] == "shop"
