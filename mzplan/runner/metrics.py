"""Serves `/metrics` (Prometheus) and `/healthz` of a runner, on a thread of its own."""

from __future__ import annotations

import contextlib
import json
import logging
import platform
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, get_args

from mzplan import __version__
from mzplan.host.network import is_loopback, names_host
from mzplan.model.observed import MEASURES, Condition, Observation, Status
from mzplan.model.plan import DriftItem
from mzplan.model.resources import MetricsPlace
from mzplan.model.state import State
from mzplan.runner.loop import Runner
from mzplan.warehouse.paths import local_path

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

log = logging.getLogger("mzplan.metrics")

_MAX_CONNECTIONS = 16  # connections at once; further ones are closed without an answer
_MAX_SECONDS = 30.0  # seconds after which any connection is closed
FRESH = 30.0  # a runner without a finished round for more seconds is unhealthy
_INSTANCE = "mzplan_instance"  # a label; Prometheus itself sets `instance` to the scraped address
_RUN_COUNTERS = (
    "left_out_records",
    "late_rows",
    "null_time_rows",
)  # they start at 0 with each start of the query

# Returns where a Status differs from the state, at a time in seconds since the epoch.
FindDrift = Callable[[State, Status, float], tuple[DriftItem, ...]]


def health_problem(runner: Runner) -> str | None:
    """Return why the runner can't do its work; None if it can. Any thread may call it."""
    instances = runner.controller.instances
    if instances.lease is None or instances.loss is not None:
        return "another runner leads the instance"
    if not runner.controller.executor.is_open():
        return "Spark is starting"
    if runner.clock() - runner.status.observed_at > FRESH:
        return f"no round has ended for {FRESH:.0f} s"
    return None


class RunnerCollector:
    """Collects metrics from the runner's newest Status for Prometheus. They contain no secrets.

    `warehouse`: an absolute path or URI.
    """

    def __init__(self, runner: Runner, warehouse: str, find_drift: FindDrift):
        self._runner = runner
        self._warehouse = local_path(warehouse)
        self._find_drift = find_drift

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        runner = self._runner
        yield self._build_info()
        for name, help_, value in self._instance_metrics():
            family = GaugeMetricFamily(f"mzplan_instance_{name}", help_, labels=[_INSTANCE])
            family.add_metric([runner.instance], value)
            yield family
        observed = runner.status.observed
        for name, help_, labels, samples in self._query_metrics(observed):
            is_counter = name in (*_COUNTER_HELP, *_RUN_COUNTERS, "starts", "violations")
            make = CounterMetricFamily if is_counter else GaugeMetricFamily
            metrics = make(f"mzplan_query_{name}", help_, labels=[_INSTANCE, "query", *labels])
            for query, *values, value in samples:
                metrics.add_metric([runner.instance, str(query), *values], value)
            yield metrics

    def _build_info(self) -> GaugeMetricFamily:
        from prometheus_client.core import GaugeMetricFamily

        versions = self._runner.controller.executor.versions()
        spark = versions.spark if versions is not None else ""
        labels = [_INSTANCE, "version", "spark", "python"]
        family = GaugeMetricFamily("mzplan_build_info", "1 for the versions of this runner.", labels=labels)
        family.add_metric([self._runner.instance, __version__, spark, platform.python_version()], 1.0)
        return family

    def _query_metrics(
        self, observed: Status | None
    ) -> Iterator[tuple[str, str, tuple[str, ...], list[tuple[Any, ...]]]]:
        """Yield for each metric its name, its help, its further labels and its samples.

        A sample is a tuple of the query's address, the values of the further labels, and the number.
        """
        queries = sorted(observed.observations.items()) if observed is not None else []
        conditions = get_args(Condition)
        yield (
            "condition",
            "1 for the query's condition.",
            ("condition",),
            [(a, condition, float(o.health == condition)) for a, o in queries for condition in conditions],
        )
        yield (
            "error",
            "1 for the code of the last failure, and for the code of a connection's fault.",
            ("code", "connection"),
            [(a, *error, 1.0) for a, o in queries for error in self._errors(o)],
        )
        state = self._runner.state
        items: tuple[DriftItem, ...] = ()
        if observed is not None and state is not None:
            items = self._find_drift(state, observed, time.time())
        drift = [(query, kind, 1.0) for query, kind in sorted({(item.address, item.kind) for item in items})]
        yield "drift", "1 for each drift that the runner sees.", ("kind",), drift
        measured = [(address, self._query_values(observation)) for address, observation in queries]
        for name, help_ in _HELP.items():
            yield name, help_, (), [(a, values[name]) for a, values in measured if values[name] is not None]
        counted = [(address, o.counters) for address, o in queries if o.counters is not None]
        for name, help_ in _COUNTER_HELP.items():
            yield name, help_, (), [(address, getattr(counters, name)) for address, counters in counted]
        violations = [
            (address, name, float(counted.rows))
            for address, o in queries
            for name, counted in sorted(o.violations.items())
        ]
        yield "violations", "Rows that violated the expectation.", ("expectation",), violations
        starts = [(a, cause, number) for a, counters in counted for cause, number in counters.starts.items()]
        yield "starts", "Starts by cause, since this runner leads.", ("cause",), starts

    def _instance_metrics(self) -> Iterator[tuple[str, str, float]]:
        runner = self._runner
        instances = runner.controller.instances
        lease, leads = instances.lease, instances.lease is not None and instances.loss is None
        yield "leader", "Whether this runner leads the instance.", float(leads)
        yield "healthy", "Whether /healthz reports no problem.", float(health_problem(runner) is None)
        away = instances.is_store_away
        yield "store_away", "1 while the store doesn't answer; queries continue.", float(away)
        yield "serial", "The serial that this runner follows; -1 before the first one.", float(runner.serial)
        yield "epoch", "The epoch of the lease.", float(runner.epoch)
        yield "round_seconds", "Duration of the last check of all queries.", runner.round_seconds
        if lease is not None:
            seconds_left = lease.heartbeat + lease.ttl - time.time()
            yield "lease_seconds", "Time until the lease lapses.", seconds_left
        try:
            disk = shutil.disk_usage(self._warehouse) if self._warehouse is not None else None
        except OSError:
            disk = None  # the warehouse doesn't exist yet
        if disk is not None:
            yield "warehouse_free_bytes", "Free space on the warehouse's disk.", float(disk.free)
            yield "warehouse_size_bytes", "Size of the warehouse's disk.", float(disk.total)

    def _errors(self, observation: Observation) -> Iterator[tuple[str, str]]:
        """Yield error codes, each with the connection at fault ("" for an error of the query itself)."""
        if observation.error_code is not None:
            yield observation.error_code, ""
        fault = self._runner.watches.connections.fault(observation.address)
        if fault is not None and fault.problem.code:
            yield fault.problem.code, str(fault.connection)

    def _query_values(self, observation: Observation) -> dict[str, Any]:
        state = self._runner.overview.queries.get(observation.address)
        run = state.decision.run if state is not None and state.decision is not None else None
        progress_at = run.last_progress_at if run is not None and run.active else None
        return {
            "step": observation.step if observation.step >= 0 else None,
            "input_rows_per_second": observation.input_rows_per_second,
            "processed_rows_per_second": observation.processed_rows_per_second,
            "lag_records": observation.lag,
            "left_out_records": observation.left_out,
            "failures": observation.failures,
            "idle_seconds": max(0.0, time.time() - progress_at) if progress_at is not None else None,
            **{name: getattr(observation, name) for name in MEASURES},
        }


_HELP = {
    "step": "The last finished micro-batch.",
    "input_rows_per_second": "Rows that arrived per second, for the last micro-batch.",
    "processed_rows_per_second": "Rows processed per second, in the last micro-batch.",
    "lag_records": "Unread input, if known, in the unit of mzplan status.",
    "left_out_records": "Malformed records that this run has skipped or set aside.",
    "failures": "Failures in a row.",
    "idle_seconds": "Time since the query finished a micro-batch or found nothing to do.",
    **{name: measure.help for name, measure in MEASURES.items()},
}
_COUNTER_HELP = {
    "rows": "Rows written, since this runner leads.",
    "batches": "Micro-batches finished, since this runner leads.",
    "restarts": "Starts after the first, since this runner leads.",
    "retries": "Attempts after a failed one, since this runner leads.",
}


class MetricsServer:
    """A server for metrics, which runs until it is closed."""

    def __init__(self, server: ThreadingHTTPServer):
        self._server = server
        self._thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def serve_metrics(
    runner: Runner, place: MetricsPlace, warehouse: str, find_drift: FindDrift
) -> MetricsServer | None:
    """Start serving metrics. If that fails, logs a warning and returns None; the runner continues."""
    try:
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry()
        registry.register(RunnerCollector(runner, warehouse, find_drift))
        loopback = place.host if is_loopback(socket.gethostbyname(place.host)) else None
        server = _Server((place.host, place.port), _handler(runner, registry, loopback))
    except (OSError, OverflowError, ImportError) as problem:
        log.warning(
            "metrics can't be served at %s:%d: %s. The runner continues, and tries again every minute. Fix: "
            "free this port, or choose another one (the instance's metrics, or --metrics-port).",
            place.host,
            place.port,
            problem,
        )
        return None
    metrics = MetricsServer(server)
    log.info("metrics are served at http://%s:%d/metrics", place.host, metrics.port)
    return metrics


class _Server(ThreadingHTTPServer):
    """An HTTP server with a thread for each connection; it limits their number."""

    daemon_threads = True
    request_queue_size = 16

    def __init__(self, *arguments: Any):
        self._connections = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._connections.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        timer = threading.Timer(_MAX_SECONDS, _shut_down, [request])
        timer.daemon = True
        try:
            timer.start()
            super().process_request_thread(request, client_address)
        finally:
            timer.cancel()
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error of ours. One of the connection is ignored: the client has gone, or speaks no HTTP."""
        if not isinstance(sys.exception(), OSError):
            log.exception("a request to the metrics server failed")


def _shut_down(connection: socket.socket) -> None:
    """Shut the connection down, so that its thread stops waiting."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _handler(runner: Runner, registry: Any, loopback: str | None) -> type[BaseHTTPRequestHandler]:
    """Return the class that answers requests.

    `loopback`: the loopback host that the server listens on. None if other machines can reach the server; it
    then accepts any Host header.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0  # seconds for a client to send its request
        server_version, sys_version = "mzplan", ""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            name = self.headers.get("Host", "localhost")
            if loopback is not None and not names_host(name, loopback, by_address=True):
                self._answer(421, b"Use localhost or a numeric address as the host.\n", "text/plain")
            elif path == "/metrics":
                self._answer(200, *_exposition(registry, self.headers.get("Accept", "")))
            elif path == "/healthz":
                problem = health_problem(runner)
                health = {"status": "ok"} if problem is None else {"status": "failing", "problem": problem}
                document = json.dumps(health).encode() + b"\n"
                self._answer(200 if problem is None else 503, document, "application/json")
            else:
                self._answer(404, b"Not found. This server has /metrics and /healthz.\n", "text/plain")

        do_HEAD = do_GET  # noqa: N815 - as the server calls it

        def _answer(self, code: int, body: bytes, type_: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", type_)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


def _exposition(registry: Any, accept: str) -> tuple[bytes, str]:
    from prometheus_client.exposition import choose_encoder

    encode, type_ = choose_encoder(accept)
    return bytes(encode(registry)), type_
