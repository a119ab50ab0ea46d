"""Operating a runner: the retry budget, logs as JSON, and metrics."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import logging
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mzplan.config import load_project
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError
from mzplan.model.observed import Counters, Observation, Status
from mzplan.model.resources import MetricsPlace, Retries
from mzplan.model.state import ProjectStatus, QueryStatus
from mzplan.operations.follower import OutcomeFollower
from mzplan.plan.drift import drift_between, drift_of_instance
from mzplan.render.status import status_to_json
from mzplan.runner import metrics
from mzplan.runner.logs import JsonFormatter
from mzplan.runner.metrics import MetricsServer, serve_metrics
from mzplan.runner.status_writer import STATUS_INTERVAL
from tests.unit.runner.test_runner import ORDERS, World, make_state, starts


def with_budget(world: World, budget: int) -> None:
    queries = world.runner.controller.queries
    assert queries is not None
    queries.backoff = Retries(budget=budget)


def test_a_query_that_keeps_failing_is_not_retried_until_it_changes(world: World) -> None:
    attempts = []

    def failing(description: object) -> str | None:
        attempts.append(world.now)
        return "the broker says no" if getattr(description, "address", None) == ORDERS else None

    world.executor.fail_start = failing
    with_budget(world, 3)
    world.commit(make_state(1))
    for world.now in (0.0, 1.5, 4.0, 9.0, 100.0, 10_000.0):
        status = world.settle()
    assert len([at for at in attempts if at]) >= 2
    seen = status.observations[ORDERS]
    assert (seen.condition, seen.failures) == ("failed", 3)
    assert seen.error is not None and seen.error.startswith("Given up after 3 failures")
    assert "mzplan restart" in seen.error and "the broker says no" in seen.error
    state = world.store.read_state()
    drift = drift_between(state, {"local": status}, {"local": True}, {}, status.heartbeat)
    (told,) = [item for item in drift if item.address == str(ORDERS)]
    assert told.kind == "failed-query" and "Given up after 3 failures" in told.detail
    world.executor.fail_start = lambda description: None
    world.now += 1000.0
    assert world.settle().observations[ORDERS].condition == "failed"  # the query hasn't changed
    world.commit(make_state(2, broker="b:1"))
    assert world.settle().observations[ORDERS].condition in ("starting", "running")
    assert "source.orders" in starts(world)


def test_a_retry_budget_ends_retries_but_not_fallback_delays() -> None:
    pace = Retries(first=2.0, last=8.0, budget=2)
    assert [pace.wait(n) for n in (1, 2, 3)] == [2.0, float("inf"), float("inf")]
    assert [pace.delay(n) for n in (1, 2, 3, 9)] == [2.0, 4.0, 8.0, 8.0]
    assert not Retries().gives_up(1_000_000)


def test_settings_of_retries(tmp_path: Path) -> None:
    def settings(more: str) -> Retries:
        (tmp_path / "mzplan.yaml").write_text(f"version: 1\nproject: shop\n{more}")
        return load_project(str(tmp_path)).runner.retries

    assert settings("") == Retries()
    assert settings("retries: {budget: 20}\n") == Retries(budget=20)
    assert settings("retries: {first: 5s, last: 2m}\n") == Retries(first=5.0, last=120.0)
    for wrong in ("{budget: 0}", "{budget: true}", "{first: soon}", "{first: 0s}", "{other: 1}", "7"):
        with pytest.raises(MzplanError):
            settings(f"retries: {wrong}\n")


def test_a_line_of_the_log_as_json() -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormatter())
    log = logging.Logger("mzplan.test")
    log.addHandler(handler)
    address = Address("source", "orders")
    log.info('%s: "quoted"\nand a line', address)
    log.warning("no address")
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("it failed")
    first, second, third = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["level"], first["logger"]) == ("INFO", "mzplan.test")
    assert (first["message"], first["address"]) == ('source.orders: "quoted"\nand a line', "source.orders")
    assert first["time"].endswith("Z") and first["time"][10] == "T"
    assert "address" not in second and second["level"] == "WARNING"
    assert "ValueError: why" in third["exception"]


def asked(port: int, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_metrics_and_health(world: World) -> None:
    world.commit(make_state(1))
    server = serve_metrics(world.runner, MetricsPlace(port=0), "/nowhere", drift_of_instance)
    assert server is not None
    try:
        world.settle()
        world.executor.trigger()
        world.settle()
        code, text = asked(server.port, "/metrics")
        assert code == 200
        found = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = tuple(v for k, v in sorted(sample.labels.items()) if k != "instance")
                assert sample.labels["instance"] == "local"
                found[sample.name, *labels] = sample.value
        assert found["mzplan_instance_serial",] == 1.0
        assert found["mzplan_instance_epoch",] == world.lease.epoch
        assert found["mzplan_instance_healthy",] == 1.0
        assert found["mzplan_instance_leader",] == 1.0
        assert not [name for name, *_ in found if "warehouse" in name or name == "mzplan_query_drift"]
        assert 0 < found["mzplan_instance_lease_seconds",] <= world.lease.ttl
        assert found["mzplan_query_condition", "running", "source.orders"] == 1.0
        assert found["mzplan_query_condition", "failed", "source.orders"] == 0.0
        assert found["mzplan_query_failures", "source.orders"] == 0.0
        assert ("mzplan_query_input_rows_per_second", "sink.orders_out") in found
        assert asked(server.port, "/healthz") == (200, '{"status": "ok"}\n')
        assert asked(server.port, "/other")[0] == 404
        world.now += 60.0
        code, text = asked(server.port, "/healthz")
        assert code == 503 and "no round has ended" in text
        world.runner.controller.instances.loss = "another runner leads it, at secret://x"
        assert "secret" not in asked(server.port, "/healthz")[1]
        assert 'mzplan_instance_leader{instance="local"} 0.0' in asked(server.port, "/metrics")[1]
    finally:
        server.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
def test_a_foreign_page_cannot_read_loopback_metrics(world: World, host: str) -> None:
    """With DNS rebinding, a page's own host name resolves to this machine, and the request has that name."""
    server = serve_metrics(world.runner, MetricsPlace(port=0, host=host), "/nowhere", drift_of_instance)
    assert server is not None
    try:
        for name in ("localhost:9100", "LOCALHOST", "127.0.0.1", "[::1]:1", "10.0.0.7:9100"):
            assert asked(server.port, "/metrics", Host=name)[0] == 200, name
        for name in ("evil.example", "127.0.0.1.evil.example:9100", "runner.shop.svc:9100", ""):
            for path in ("/metrics", "/healthz", "/other"):
                refused = asked(server.port, path, Host=name)[0] == 421
                assert refused is (host != "0.0.0.0"), (name, path)
        with socket.create_connection(("127.0.0.1", server.port)) as old:  # HTTP/1.0 has no Host header
            old.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert b" 200 " in old.recv(100)
    finally:
        server.close()


def test_the_first_row_count_of_a_run_is_reported_at_once(world: World) -> None:
    """A command waits for it to prove a repair. Later counts are reported with the rates."""
    world.commit(make_state(1))
    assert world.settle().observations[ORDERS].run_rows is None
    name = world.executor.running()[ORDERS].name
    for rows, told in ((0, 0), (None, 0), (7, 0)):
        world.executor.progress(name, run_rows=rows)
        assert world.settle().observations[ORDERS].run_rows == told
    world.now += STATUS_INTERVAL
    assert world.settle().observations[ORDERS].run_rows == 7


def test_a_following_command_reads_only_new_statuses(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding the status of hundreds of queries on each poll would take processor time from the runner."""
    state = make_state(1)
    read: list[str] = []
    world.commit(state)
    world.store.write_status(Status(instance="local", epoch=9, serial=0, heartbeat=0.0))
    monkeypatch.setattr(world.store, "read_status", read.append)
    looks = SimpleNamespace(waiting=lambda *given: looked.append(given), outcome=lambda given: None)
    looked: list[object] = []
    OutcomeFollower(world.store, state, "local", {ORDERS}).follow(0.5, looks, lambda: None)  # type: ignore[arg-type]
    assert len(looked) > 2 and read == ["local"]


def test_counters_outlive_runs_and_failures(world: World) -> None:
    """The counters of a query continue after failures and pauses."""
    world.executor.counters[ORDERS] = Counters(rows=120, batches=7)
    world.commit(make_state(1))
    world.settle()
    name = world.executor.running()[ORDERS].name
    world.executor.progress(name, batch_seconds=0.5, latency_seconds=2.3456, late_rows=3)
    world.now += STATUS_INTERVAL
    seen = world.settle().observations[ORDERS]
    assert seen.late_rows == 3
    assert seen.counters == Counters(rows=120, batches=7)  # its first start isn't a restart
    assert (seen.batch_seconds, seen.latency_seconds) == (0.5, 2.346)
    for failures in range(2):
        world.executor.fail_query(name, "the disk is full")
        world.settle()
        world.now += 2.0 * (failures + 1)
        world.settle()
    changed = make_state(2, broker="b:1")
    world.commit(changed)
    world.settle()
    seen = world.settle().observations[ORDERS]
    assert seen.counters == Counters(rows=120, batches=7, restarts=3, retries=2)
    assert (seen.batch_seconds, seen.latency_seconds, seen.late_rows) == (None, None, None)  # in this run
    world.commit(make_state(3, broker="b:1", paused=True))
    paused = world.settle().observations[ORDERS]
    assert (paused.condition, paused.counters) == ("paused", seen.counters)
    shown = status_to_json(ProjectStatus(serial=3, instances=(), queries=(query_of(world, paused),)))
    (query,) = shown["queries"]
    assert query["counters"] == {"rows": 120, "batches": 7, "restarts": 3, "retries": 2}
    assert (query["batch_seconds"], query["latency_seconds"]) == (None, None)
    server = serve_metrics(world.runner, MetricsPlace(port=0), "/nowhere", drift_of_instance)
    assert server is not None
    try:
        text = asked(server.port, "/metrics")[1]
    finally:
        server.close()
    labels = '{instance="local",query="source.orders"}'
    assert f"mzplan_query_rows_total{labels} 120.0" in text
    assert f"mzplan_query_retries_total{labels} 2.0" in text
    assert "# TYPE mzplan_query_restarts_total counter" in text
    for cause, number in (("change", 2.0), ("retry", 2.0)):
        starts = f'{{cause="{cause}",instance="local",query="source.orders"}}'
        assert f"mzplan_query_starts_total{starts} {number}" in text


def query_of(world: World, seen: Observation) -> QueryStatus:
    return QueryStatus(resource=world.committed.resources[seen.address], observation=seen)


def test_metrics_connections_are_limited_in_number_and_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silent or slow connection doesn't keep its thread for ever, and frees its place."""
    monkeypatch.setattr(metrics, "_MAX_SECONDS", 1.0)
    before = threading.active_count()
    server = serve_metrics(world.runner, MetricsPlace(port=0), "/nowhere", drift_of_instance)
    assert server is not None
    silent = [socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(40)]
    try:
        for one in silent:
            with contextlib.suppress(OSError):  # connections beyond the limit are closed at once
                one.send(b"GET /metrics HTTP/1.0\r\nX: ")
        assert threading.active_count() - before <= 2 * metrics._MAX_CONNECTIONS + 1
        for one in silent:
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(1) == b"", "it is closed"
        assert until_answered(server.port) == 200
    finally:
        for one in silent:
            one.close()
        server.close()


def until_answered(port: int) -> int:
    for _ in range(100):
        with contextlib.suppress(OSError, http.client.HTTPException):
            return asked(port, "/metrics")[0]
        time.sleep(0.05)
    raise AssertionError("no place was given back")


def test_a_port_in_use_is_a_warning(world: World, caplog: pytest.LogCaptureFixture) -> None:
    def begin(place: MetricsPlace) -> MetricsServer | None:
        return serve_metrics(world.runner, place, "s3://bucket/w", drift_of_instance)

    first = begin(MetricsPlace(port=0))
    assert first is not None
    try:
        assert begin(MetricsPlace(port=first.port)) is None
        assert begin(MetricsPlace(port=1, host="no such host")) is None
        told = [
            r.getMessage() for r in caplog.records if r.name == "mzplan.metrics" and r.levelname == "WARNING"
        ]
        assert len(told) == 2 and f":{first.port}" in told[0] and "Fix: choose a free port" in told[0]
    finally:
        first.close()
    world.commit(make_state(1))
    assert world.settle().serial == 1


def test_where_metrics_are_served(tmp_path: Path) -> None:
    head = "version: 1\nproject: shop\ninstances:\n"
    (tmp_path / "mzplan.yaml").write_text(
        f"{head}  a: {{type: cluster, metrics: {{port: 9100}}}}\n"
        "  b: {type: cluster, metrics: {port: 9101, host: 0.0.0.0}}\n  c: {type: embedded}\n"
    )
    assert load_project(str(tmp_path)).runner.metrics == {
        "a": MetricsPlace(port=9100),
        "b": MetricsPlace(port=9101, host="0.0.0.0"),
    }
    (tmp_path / "mzplan.yaml").write_text(f"{head}  a: {{type: cluster, metrics: {{port: 0}}}}\n")
    with pytest.raises(MzplanError):
        load_project(str(tmp_path))
