"""examples/policies on real plans, and where the examples keep their state."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mzplan.cli.init import copy_example
from mzplan.config import environment_names, load_project
from tests.unit.cli_runs import mzplan, write

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
    write(folder)
    (folder / "pipeline.yaml").write_text(PIPELINE % values)
    return folder


def checked(plan: dict[str, Any], code: int, **more: Any) -> list[str]:
    """Return the lines that check.py prints for a plan."""
    command = [sys.executable, str(POLICIES / "check.py"), str(POLICIES)]
    done = subprocess.run(command, input=json.dumps({**plan, **more}), capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_policies_deny_what_they_say_and_nothing_else(tmp_path: Path) -> None:
    folder = project(tmp_path / "shop", "env", "orders", "high", "")
    assert mzplan(folder, "apply", "--auto-approve").code == 0
    project(folder, "env", "orders", "low", ', labels: {team: x, severity: ""}')
    plan = mzplan(folder, "plan", "--json").json()
    assert checked(plan, 0, environment="prod") == ["No policy denies this plan."]
    project(folder, "file", "other", "0", ', rows: 5, labels: {team: "a \\"b\\""}')
    plan = mzplan(folder, "plan", "--json").json()
    secret = "connection.pg: password comes from file, not from vault"
    others = [secret, "sink.out: the label severity is missing"]
    denied = checked(plan, 1)
    replaced = [line for line in denied if line not in others]
    assert [line.partition(" (")[0] for line in replaced] == [
        f"{address}: replace is not allowed in production"
        for address in ("sink.kept", "sink.out", "source.orders")
    ]
    assert replaced[-1].endswith("(topic changed)") and len(denied) == 5
    assert checked(plan, 1, environment="dev") == others


def test_a_plan_has_the_labels_of_what_it_deletes(tmp_path: Path) -> None:
    folder = project(tmp_path / "shop", "env", "orders", "high", "")
    mzplan(folder, "apply", "--auto-approve")
    (folder / "pipeline.yaml").write_text("")
    gone = {change["address"]: change for change in mzplan(folder, "plan", "--json").json()["changes"]}
    assert gone["sink.kept"]["labels"] == {"prio": True, "severity": 1, "team": "shop"}


def test_an_example_keeps_its_state_in_the_checkout_and_a_copy_keeps_its_own(tmp_path: Path) -> None:
    for folder in (POLICIES.parent / name for name in ("cdc", "files", "local", "nexmark", "shop", "tpch")):
        settings = load_project(folder)
        assert (folder / settings.state["path"]).resolve() == POLICIES.parents[1] / "state" / folder.name
        copy_example(folder.name, tmp_path / folder.name)
        assert load_project(tmp_path / folder.name).state["path"] == "state"
    copy_example("environments", tmp_path / "copy")
    for name in environment_names(tmp_path / "copy"):
        copied = load_project(tmp_path / "copy", environment=name)
        assert copied.state["path"] == f"state/{name}" and copied.warehouse == f"./warehouse/{name}"


def test_a_policy_denies_a_lost_state(tmp_path: Path) -> None:
    labels = "labels: {team: a, severity: b}"
    views = (
        f"sources:\n  orders: {{type: local, schema: 'customer STRING, amount INT, tax INT', {labels}}}\n"
        "views:\n  totals:\n    query: SELECT customer, sum(amount) AS total FROM orders GROUP BY customer\n"
        f"    output: update\n    key: [customer]\n    {labels}\n"
    )
    write(tmp_path)
    (tmp_path / "pipeline.yaml").write_text(views)
    assert mzplan(tmp_path, "apply", "--auto-approve").code == 0
    (tmp_path / "pipeline.yaml").write_text(views.replace("sum(amount)", "sum(tax)"))
    denied = checked(mzplan(tmp_path, "plan", "--json").json(), 1, environment="dev")
    assert len(denied) == 1 and denied[0].startswith(
        "view.totals: its state is mixed (`sum(tax)` takes the place"
    )
    (tmp_path / "pipeline.yaml").write_text(views.replace("FROM orders", "FROM orders WHERE TRUE"))
    assert checked(mzplan(tmp_path, "plan", "--json").json(), 0) == ["No policy denies this plan."]
    lines = (
        views.replace("FROM orders", "FROM lines")
        + f"""\
  lines:
    query: SELECT customer, amount * %d AS amount FROM orders
    schema: customer STRING, amount INT
    {labels}
"""
    )
    (tmp_path / "pipeline.yaml").write_text(lines % 1)
    assert mzplan(tmp_path, "apply", "--auto-approve", "--allow-replace").code == 0
    (tmp_path / "pipeline.yaml").write_text(lines % 2)
    (denied,) = checked(mzplan(tmp_path, "plan", "--json").json(), 1)
    assert (
        denied == "view.totals: Sums of view.totals mix old and new rows of view.lines from its next step on"
    )


def test_a_policy_denies_copies_without_a_sample(tmp_path: Path) -> None:
    settings = "version: 1\nproject: shop\ninstances: {local: {type: dry}}\nenvironments:\n"
    settings += "  prod: {state: {path: state/prod}, warehouse: ./warehouse/prod}\n"
    settings += "  dev: {state: {path: state/dev}, warehouse: ./warehouse/dev, sources: {orders: {%s}}}\n"
    labels = "labels: {team: a, severity: b}"
    (tmp_path / "pipeline.yaml").write_text(
        f"sources: {{orders: {{type: local, schema: 'id BIGINT', {labels}}}}}\n"
    )

    def denied(entry: str, code: int) -> list[str]:
        (tmp_path / "mzplan.yaml").write_text(settings % f"from_environment: prod, {entry}")
        return checked(mzplan(tmp_path, "plan", "--json", "--env", "dev").json(), code)

    (tmp_path / "mzplan.yaml").write_text(settings % "from_environment: prod")
    assert mzplan(tmp_path, "--env", "prod", "apply", "--auto-approve").code == 0
    assert denied("as_of: latest", 1) == ["source.orders: copies prod without a sample"]
    assert denied("sample: 1%", 0) == ["No policy denies this plan."]
    assert mzplan(tmp_path, "--env", "dev", "apply", "--auto-approve").code == 0
    assert denied("as_of: latest", 1) == ["source.orders: the sample is removed"]


def test_the_readme_of_tpch_says_what_a_step_of_each_view_computes(tmp_path: Path) -> None:
    copy_example("tpch", tmp_path)
    plan = mzplan(tmp_path, "plan", "--json").json()
    notice = re.compile(r"view\.(\w+) computes (?:only the rows whose|all its rows in each step:) (.*)")
    notices = filter(None, (notice.match(found["summary"]) for found in plan["diagnostics"]))
    planned = {(found[1], found[2].partition(" a change of ")[0]) for found in notices}
    rows = re.findall(r"(?m)^\| (q\d.*) \| (.*) \|$", (tmp_path / "README.md").read_text())
    assert {(query, why) for queries, why in rows for query in queries.split(", ")} == planned
    assert len(planned) == 22
