"""examples/monitoring by Prometheus and its promtool: alerts that fire when they must, a dashboard that finds
its metrics. That a runner on Spark has them, too, is in test_pipeline."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from examples.servers.ports import free_port
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.resources import MetricsPlace
from mzplan.model.state import State
from mzplan.model.violations import ViolationCount
from mzplan.plan.drift import drift_of_instance
from mzplan.runner.metrics import serve_metrics
from mzplan.schema.description import digest_of
from tests.integration.prometheus import (
    DASHBOARD,
    MONITORING,
    dashboard_expressions,
    metrics_used,
    scraping,
)
from tests.support import eventually, exit_code
from tests.unit.cli_runs import PIPELINE, PROJECT, mzplan
from tests.unit.runner.test_runner import KAFKA, ORDERS, SINK, World, make_state

PAYMENTS = Address("source", "payments")
RULES = yaml.safe_load((MONITORING / "rules.yml").read_text())["groups"][0]["rules"]


def promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], cwd=MONITORING, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.programs
def test_each_alert_fires_when_it_must_and_not_before() -> None:
    promtool("check", "config", "prometheus.yml")  # and the rules that it names
    promtool("test", "rules", "rules-test.yml")
    tried: dict[str, set[bool]] = {rule["alert"]: set() for rule in RULES}
    for group in yaml.safe_load((MONITORING / "rules-test.yml").read_text())["tests"]:
        for one in group["alert_rule_test"]:
            tried[one["alertname"]].add("exp_alerts" in one)
    assert all(found == {True, False} for found in tried.values()), tried


@pytest.mark.programs
def test_the_dashboard_is_one_that_grafana_can_read(tmp_path: Path) -> None:
    records = [
        {"record": f"panel:{number}", "expr": expression}
        for number, expression in enumerate(dashboard_expressions())
    ]
    rules = tmp_path / "panels.yml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": records}]}))
    promtool("check", "rules", str(rules))
    variables = {one["name"] for one in DASHBOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", str(DASHBOARD["panels"]))) <= variables


def with_payments(state: State) -> State:
    """The state and a source like ORDERS, whose Kafka cluster answers."""
    other = Address("connection", "other")
    connection = replace(state.resources[KAFKA], address=other, id="c2")
    source = replace(
        state.resources[ORDERS],
        address=PAYMENTS,
        id="p",
        references={"connection": other},
        dependencies=(other,),
    )
    resources = {**state.resources, other: connection, PAYMENTS: source}
    resources[PAYMENTS] = replace(source, digest=digest_of(source, resources))
    return replace(state, resources=resources)


@pytest.fixture
def troubled(tmp_path: Path) -> Iterator[int]:
    """The port of a runner in memory. ORDERS stalls, with its login refused; SINK fails; PAYMENTS runs."""
    world = World(tmp_path / "state")
    refused = Diagnostic(code="MZ051", summary="Kafka refused")
    world.executor.faults = lambda connection: (refused,) if connection.address == KAFKA else ()
    world.executor.fail_start = lambda one: "no room" if one.address == SINK else None
    world.commit(with_payments(make_state(1)))
    world.settle()
    now = time.time()
    for address, last in ((ORDERS, now - 400.0), (PAYMENTS, now)):
        name = world.executor.running()[address].name
        world.executor.progress(
            name,
            step=7,
            lag=12,
            last_progress_at=last,
            batch_seconds=0.4,
            latency_seconds=2.5,
            violations={"positive": ViolationCount()},
        )
    world.settle()
    server = serve_metrics(world.runner, MetricsPlace(port=0), str(tmp_path), drift_of_instance)
    assert server is not None
    yield server.port
    server.close()
    world.jobs.shutdown()


@pytest.fixture
def dry(tmp_path: Path) -> Iterator[int]:
    """The port of `mzplan run`, for the dry instance of a project."""
    folder, port = tmp_path / "dry", free_port()
    (folder / "warehouse").mkdir(parents=True)
    (folder / "mzplan.yaml").write_text((PROJECT % "dry").replace("local", "ci"))
    (folder / "pipeline.yaml").write_text(PIPELINE % "broker-a")
    assert mzplan(folder, "apply", "--auto-approve").code == 0
    command = [sys.executable, "-m", "mzplan", "-C", str(folder), "run", "--instance", "ci"]
    with (folder / "log").open("wb") as log:
        runner = subprocess.Popen([*command, "--metrics-port", str(port)], stdout=log, stderr=log)
    yield port
    runner.terminate()
    assert exit_code(runner) == 0


@pytest.mark.programs
def test_a_scrape_finds_what_the_dashboard_and_the_alerts_ask_for(
    troubled: int, dry: int, tmp_path: Path
) -> None:
    with scraping(tmp_path / "prometheus", troubled, dry) as prometheus:
        prometheus.has_scraped(metrics_used())
        asked = [*dashboard_expressions(), 'mzplan_instance_warehouse_free_bytes{mzplan_instance="ci"} > 0']

        def answered() -> bool:  # some of it takes two scrapes
            return all(map(prometheus.query, asked))

        eventually("every panel shows something", answered)
        assert {one["kind"] for one in prometheus.query('mzplan_query_drift{mzplan_instance="local"}')} == {
            "failed-query",
            "stalled-query",
        }
        assert prometheus.query('mzplan_query_drift{mzplan_instance="ci"}') == []

        def begun() -> set[str]:
            return {one["labels"]["alertname"] for one in prometheus.ask("alerts")["alerts"]}

        trouble = {"MzplanQueryFailing", "MzplanQueryStalled", "MzplanQueryDegraded", "MzplanSecretRefused"}
        disk = {"MzplanWarehouseDisk"}  # of this machine
        eventually("alerts for what is wrong, and no others", lambda: begun() - disk == trouble)
        (group,) = prometheus.ask("rules")["groups"]
        assert {rule["health"] for rule in group["rules"]} == {"ok"}
