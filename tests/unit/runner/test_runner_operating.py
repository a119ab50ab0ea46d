"""Operating a runner: the retry budget, logs as JSON, and metrics."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import logging
import platform
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mzplan import __version__
from mzplan.model.address import Address
from mzplan.model.observed import Counters
from mzplan.model.resources import MetricsPlace, Retries
from mzplan.model.violations import ViolationCount
from mzplan.plan.drift import drift_between, drift_of_instance
from mzplan.render.status_json import status_to_json
from mzplan.render.status_notes import notes
from mzplan.runner import metrics
from mzplan.runner.logs import JsonFormatter
from mzplan.runner.metrics import MetricsServer, serve_metrics
from mzplan.runner.status_writer import STATUS_INTERVAL
from tests.support import eventually
from tests.unit.runner.test_runner import ORDERS, World, make_state, starts
from tests.unit.runner.test_status import shown

# --- retries


def test_attempts_wait_longer_and_longer() -> None:
    assert [Retries().wait(failures) for failures in range(1, 10)] == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert Retries().wait(10_000) == 60.0


def test_a_query_that_keeps_failing_is_not_retried_until_it_changes(world: World) -> None:
    world.executor.fail_start = lambda one: "the broker says no" if one.address == ORDERS else None
    world.runner.controller.queries.backoff = Retries(budget=3)
    world.commit(make_state(1))
    for world.now in (0.0, 1.5, 4.0, 9.0, 100.0, 10_000.0):
        status = world.settle()
    seen = status.observations[ORDERS]
    assert (seen.condition, seen.failures) == ("failed", 3)
    assert seen.error is not None and seen.error.startswith("Given up after 3 failures")
    assert "mzplan restart" in seen.error and "the broker says no" in seen.error
    drift = drift_between(world.committed, {"local": status}, {"local": True}, {}, status.heartbeat)
    (item,) = [item for item in drift if item.address == str(ORDERS)]
    assert item.kind == "failed-query" and "Given up after 3 failures" in item.detail
    world.executor.fail_start = lambda description: None
    assert world.later(1000.0).observations[ORDERS].condition == "failed"  # the query hasn't changed
    changed = world.apply(make_state(2, broker="b:1"))
    assert changed.observations[ORDERS].condition in ("starting", "running")
    assert "source.orders" in starts(world)


# --- logs


def test_a_line_of_the_log_as_json() -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormatter())
    log = logging.Logger("mzplan.test")
    log.addHandler(handler)
    log.info('%s: "quoted"\nand a line', Address("source", "orders"))
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("it failed")
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["level"], first["logger"]) == ("INFO", "mzplan.test")
    assert (first["message"], first["address"]) == ('source.orders: "quoted"\nand a line', "source.orders")
    assert first["time"].endswith("Z") and first["time"][10] == "T"
    assert "address" not in second and "ValueError: why" in second["exception"]


# --- metrics and health


@contextmanager
def serving(world: World, host: str = "127.0.0.1") -> Iterator[MetricsServer]:
    server = serve_metrics(world.runner, MetricsPlace(port=0, host=host), "/nowhere", drift_of_instance)
    assert server is not None
    try:
        yield server
    finally:
        server.close()


def asked(server: MetricsServer, path: str = "/metrics", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Return the value of each sample by its name and its labels, without the label of the instance."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels.pop("mzplan_instance") == "local"
            found[sample.name, *(value for _, value in sorted(sample.labels.items()))] = sample.value
    return found


def test_metrics_and_health(world: World) -> None:
    world.commit(make_state(1))
    with serving(world) as server:
        world.settle()
        world.executor.trigger()
        world.settle()
        found = samples(asked(server)[1])
        expected = {
            ("mzplan_build_info", platform.python_version(), "", __version__): 1.0,
            ("mzplan_instance_serial",): 1.0,
            ("mzplan_instance_epoch",): world.lease.epoch,
            ("mzplan_instance_healthy",): 1.0,
            ("mzplan_instance_leader",): 1.0,
            ("mzplan_query_condition", "running", "source.orders"): 1.0,
            ("mzplan_query_condition", "failed", "source.orders"): 0.0,
            ("mzplan_query_failures", "source.orders"): 0.0,
        }
        assert {name: found[name] for name in expected} == expected
        assert not [name for name, *_ in found if "warehouse" in name or name == "mzplan_query_drift"]
        assert 0 < found["mzplan_instance_lease_seconds",] <= world.lease.ttl
        assert ("mzplan_query_input_rows_per_second", "sink.orders_out") in found
        assert asked(server, "/healthz") == (200, '{"status": "ok"}\n')
        assert asked(server, "/other")[0] == 404
        world.now += 60.0
        code, text = asked(server, "/healthz")
        assert code == 503 and "no round has ended" in text
        world.runner.controller.instances.loss = "another runner leads it, at secret://x"
        assert "secret" not in asked(server, "/healthz")[1]
        assert samples(asked(server)[1])["mzplan_instance_leader",] == 0.0


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_foreign_page_cannot_read_loopback_metrics(world: World, host: str) -> None:
    """With DNS rebinding, a page's own host name resolves to this machine, and the request has that name."""
    with serving(world, host) as server:
        for name in ("LOCALHOST:9100", "127.0.0.1", "[::1]:1", "10.0.0.7:9100"):
            assert asked(server, Host=name)[0] == 200, name
        for name in ("evil.example", "127.0.0.1.evil.example:9100", "runner.shop.svc:9100", ""):
            for path in ("/metrics", "/healthz", "/other"):
                refused = asked(server, path, Host=name)[0] == 421
                assert refused is (host != "0.0.0.0"), (name, path)
        with socket.create_connection(("127.0.0.1", server.port)) as old:  # HTTP/1.0 has no Host header
            old.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert b" 200 " in old.recv(100)


def test_the_first_row_count_of_a_run_is_reported_at_once(world: World) -> None:
    """A command waits for it to prove a repair. Later counts are reported with the rates."""
    assert world.apply(make_state(1)).observations[ORDERS].run_rows is None
    for rows, reported in ((0, 0), (None, 0), (7, 0)):
        world.progress(ORDERS, run_rows=rows)
        assert world.settle().observations[ORDERS].run_rows == reported
    assert world.later(STATUS_INTERVAL).observations[ORDERS].run_rows == 7


def test_counters_outlive_runs_and_failures(world: World) -> None:
    """The counters of a query continue after failures and pauses."""
    world.executor.counters[ORDERS] = Counters(rows=120, batches=7)
    world.apply(make_state(1))
    world.progress(ORDERS, batch_seconds=0.5, latency_seconds=2.3456, late_rows=3)
    seen = world.later(STATUS_INTERVAL).observations[ORDERS]
    assert seen.counters == Counters(rows=120, batches=7)  # its first start isn't a restart
    assert (seen.batch_seconds, seen.latency_seconds, seen.late_rows) == (0.5, 2.346, 3)
    for failures in range(2):
        world.fail(ORDERS, "the disk is full")
        world.later(2.0 * (failures + 1))
    seen = world.apply(make_state(2, broker="b:1")).observations[ORDERS]
    assert seen.counters == Counters(rows=120, batches=7, restarts=3, retries=2)
    assert (seen.batch_seconds, seen.latency_seconds, seen.late_rows) == (None, None, None)  # in this run
    paused = world.apply(make_state(3, broker="b:1", paused=True)).observations[ORDERS]
    assert (paused.condition, paused.counters) == ("paused", seen.counters)
    (found,) = status_to_json(shown(paused))["queries"]
    assert found["counters"] == {"rows": 120, "batches": 7, "restarts": 3, "retries": 2}
    assert (found["batch_seconds"], found["latency_seconds"]) == (None, None)
    with serving(world) as server:
        text = asked(server)[1]
    assert "# TYPE mzplan_query_restarts_total counter" in text
    values = samples(text)
    assert values["mzplan_query_rows_total", "source.orders"] == 120.0
    assert values["mzplan_query_retries_total", "source.orders"] == 2.0
    for cause in ("change", "retry"):
        assert values["mzplan_query_starts_total", cause, "source.orders"] == 2.0


def test_the_name_of_each_counter_ends_with_total(world: World) -> None:
    world.executor.counters[ORDERS] = Counters(rows=120, batches=7)
    world.apply(make_state(1))
    violations = {"positive": ViolationCount(rows=4, last_step=2), "named": ViolationCount()}
    world.progress(ORDERS, late_rows=3, null_time_rows=2, left_out=1, violations=violations)
    seen = world.later(STATUS_INTERVAL).observations[ORDERS]
    (found,) = status_to_json(shown(seen))["queries"]
    assert found["violations"] == {
        "named": {"rows": 0, "last_step": None},
        "positive": {"rows": 4, "last_step": 2},
    }
    (query,) = shown(seen).queries
    assert "4 rows violate positive, last in step 2" in notes(query)
    with serving(world) as server:
        text = asked(server)[1]
    values = samples(text)
    for name, number in {"late_rows": 3.0, "null_time_rows": 2.0, "left_out_records": 1.0}.items():
        assert values[f"mzplan_query_{name}_total", "source.orders"] == number
    assert values["mzplan_query_violations_total", "positive", "source.orders"] == 4.0
    assert values["mzplan_query_violations_total", "named", "source.orders"] == 0.0
    families = {family.name: family.type for family in text_string_to_metric_families(text)}
    counters = {name for name, kind in families.items() if kind == "counter"}
    totals = {name.removesuffix("_total") for name, *_ in values if name.endswith("_total")}
    assert counters == totals


def test_metrics_connections_are_limited_in_number_and_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A silent or slow connection doesn't keep its thread for ever, and frees its place."""
    monkeypatch.setattr(metrics, "_MAX_SECONDS", 0.3)
    monkeypatch.setattr(metrics, "_MAX_CONNECTIONS", 3)
    before = threading.active_count()
    with serving(world) as server, contextlib.ExitStack() as silent:
        connections = [
            silent.enter_context(socket.create_connection(("127.0.0.1", server.port), 10)) for _ in range(6)
        ]
        for one in connections:
            with contextlib.suppress(OSError):  # connections beyond the limit are closed at once
                one.send(b"GET /metrics HTTP/1.0\r\nX: ")
        assert threading.active_count() - before <= 2 * 3 + 1
        for one in connections:
            with contextlib.suppress(ConnectionResetError):
                assert one.recv(1) == b"", "it is closed"

        def is_answered() -> bool:
            with contextlib.suppress(OSError, http.client.HTTPException):
                return asked(server)[0] == 200
            return False

        eventually("a connection is accepted again", is_answered)


def test_a_port_in_use_is_a_warning(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with serving(world) as first:
        for place in (MetricsPlace(port=first.port), MetricsPlace(port=1, host="no such host")):
            assert serve_metrics(world.runner, place, "s3://bucket/w", drift_of_instance) is None
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == 2
    assert f":{first.port}" in warnings[0] and "Fix: free this port" in warnings[0]
    assert world.apply(make_state(1)).serial == 1
