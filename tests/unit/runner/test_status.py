"""`status` shows backlogs, faults, retries and stages of starts; `logs` shows the lines of a query."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mzplan.controller.executor import CheckResult, Measurement, QueryName, QueryReport
from mzplan.controller.observations import Fault, QueryState, observe
from mzplan.controller.reconcile import Decision, Desired, Memory
from mzplan.controller.watches import ConnectionWatch, Sampler
from mzplan.host import spark_lines
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError, sentence
from mzplan.model.observed import Condition, Observation, Status, Verdict
from mzplan.model.state import InstanceStatus, ProjectStatus, QueryStatus
from mzplan.operations.follower import OutcomeFollower
from mzplan.operations.logs import entries, mention
from mzplan.operations.planning import version_notices
from mzplan.operations.project import Outcome
from mzplan.operations.status import read_project_status, repair_of
from mzplan.plan.drift import drift_between
from mzplan.render.resumption import render_resumed
from mzplan.render.status import has_failed, render_status, status_to_json
from mzplan.schema.description import Description, InlinedConnection, describe
from mzplan.secrets.policy import SecretValues
from mzplan.secrets.resolved import remember
from mzplan.store.formats import decode_status, encode_status
from mzplan.warehouse.step_history import backlog_of
from mzplan.warehouse.step_record import StepRecord
from tests.stored_steps import StoredSink, StoredSource, named
from tests.unit.cli_runs import run, write
from tests.unit.reporters import SilentReporter
from tests.unit.runner.test_runner import KAFKA, ORDERS, SINK, World, make_state

DOWN = Diagnostic(code="MZ050", summary="Kafka does not answer", detail="connection.k (a:1): refused.")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "state")
    yield made
    made.pool.shutdown(wait=True)


def until(world: World, is_so: Callable[[Observation], bool]) -> Observation:
    """Do rounds until a condition holds: watches answer later, and reports come every two seconds."""
    deadline = time.monotonic() + 30.0
    while not is_so(seen := world.settle().observations[ORDERS]):
        assert time.monotonic() < deadline, seen
        time.sleep(0.05)  # for the threads of the watches, on a busy machine
        world.now += 2.1
    return seen


def seen_of(address: Address, **fields: object) -> Observation:
    given = {"generation": 1, "digest": "d", "wanted_digest": "d", "wanted_generation": 1}
    return replace(Observation(address=address, condition="running", **given), **fields)  # type: ignore[arg-type]


def shown(observation: Observation | None, as_of: float | None = None) -> ProjectStatus:
    state = make_state(1)
    query = QueryStatus(
        resource=state.resources[ORDERS],
        observation=observation,
        as_of=as_of,
        repair=repair_of(state, observation.at_fault) if observation else None,
    )
    return ProjectStatus(serial=1, instances=(), queries=(query,))


def test_the_lag_of_a_paused_query_is_its_backlog(world: World) -> None:
    world.executor.measurement = lambda d: Measurement(
        backlog={"records": 7},
        recent=(StepRecord(step=3, rows=4, total=40, time=5.5), StepRecord(step=2)),
        since=(1, 2.5),
        at=time.time(),
    )
    world.commit(make_state(1, paused=True))
    seen = until(world, lambda seen: seen.lag is not None)
    assert (seen.condition, seen.lag, seen.lag_unit) == ("paused", 7, "records")
    assert (seen.total_rows, seen.last_rows, seen.last_batch_at) == (40, 4, 5.5)
    assert seen.last_steps == ((3, 5, 4), (2, None, None))
    assert seen.since == (1, 2.5)


def test_a_backlog_from_before_a_run_is_not_its_lag(world: World) -> None:
    world.executor.measurement = lambda d: Measurement(backlog={"records": 0}, at=time.time())
    world.commit(make_state(1))
    first = until(world, lambda seen: seen.lag == 0).run_id
    world.executor.measurement = lambda d: Measurement(backlog={"records": 7}, at=time.time())
    world.commit(make_state(2, where="amount > 1"))
    seen = until(world, lambda seen: seen.run_id != first)
    assert seen.lag in (None, 7)
    assert until(world, lambda seen: seen.lag is not None).lag == 7


def test_the_newer_of_reported_and_measured_lag_counts() -> None:
    name = QueryName("shop", ORDERS, 1, "d")
    report = QueryReport(
        name=name, query_id="q", run_id="r", active=True, triggered=True, lag=0, last_progress_at=100.0
    )

    def lag(report: QueryReport, at: float) -> tuple[int | None, str | None]:
        measured = Measurement(backlog={"rows": 5, "steps": 2}, at=at)
        decision = Decision(command=None, memory=Memory(), condition="running", run=report)
        seen = observe(ORDERS, QueryState(decision=decision, measurement=measured))
        return seen.lag, seen.lag_unit

    assert lag(report, at=99.0) == (0, "records")
    assert lag(report, at=101.0) == (5, "rows")
    assert lag(replace(report, active=False), at=99.0) == (
        5,
        "rows",
    )  # ended: its report is outdated


def test_the_lag_behind_a_server_that_does_not_answer_is_unknown() -> None:
    report = QueryReport(
        name=QueryName("shop", ORDERS, 1, "a"), query_id="q", run_id="r", active=True, triggered=True, lag=0
    )
    fault = Fault(connection=KAFKA, problem=DOWN, since=1.0)
    decision = Decision(command=None, memory=Memory(), condition="running", run=report)
    assert observe(ORDERS, QueryState(decision=decision)).lag == 0
    seen = observe(ORDERS, QueryState(decision=decision, fault=fault))
    assert (seen.lag, seen.lag_unit) == (None, None)
    assert observe(SINK, QueryState(decision=decision, fault=fault)).lag == 0  # its input is a collection


def test_the_error_code_belongs_to_the_shown_error() -> None:
    """The code of another problem would contradict the text."""
    failed = Verdict(serial=2, passed=False, reason="no progress within 30 s")
    query = QueryState(memory=Memory(error="refused", error_code="MZ050"), canary_verdict=failed)
    seen = observe(ORDERS, query)
    assert (seen.error, seen.error_code) == ("no progress within 30 s", None)


@pytest.mark.parametrize("condition", ["rejected", "failed"])
def test_a_sink_that_waits_for_its_source_has_its_own_code(condition: Condition) -> None:
    state = make_state(1)
    digests = {address: state.resources[address].digest for address in (ORDERS, SINK)}
    source = seen_of(
        ORDERS, condition=condition, wanted_digest=digests[ORDERS], error="refused", error_code="MZ050"
    )
    held = "waits for generation 1 of source.orders to start"
    sink = seen_of(SINK, condition="running", wanted_digest=digests[SINK], held=held)
    status = Status(
        instance="local", epoch=1, heartbeat=0.0, serial=1, observations={ORDERS: source, SINK: sink}
    )
    follower = OutcomeFollower(SimpleNamespace(), state, "local", {SINK})  # type: ignore[arg-type]
    outcome = follower._look(SINK, status, 1.0)
    assert isinstance(outcome, Outcome) and outcome.code == "MZ065"
    assert outcome.reason == f"{held}; source.orders is {condition}: MZ050: refused"


def test_a_retried_query_counts_as_failed_until_its_first_trigger(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.commit(make_state(1))
    world.settle()
    (report,) = (r for a, r in world.executor.running().items() if a == ORDERS)
    world.executor.triggers_at_once = False
    with caplog.at_level(logging.INFO, "mzplan.runner"):
        world.executor.fail_query(report.name, "the disk is full")
        failed = world.settle().observations[ORDERS]
        assert failed.condition == "failed" and failed.retry_at is not None
        assert failed.retry_at == pytest.approx(time.time() + 1.0, abs=30.0)
        world.now += 2.0
        again = world.settle().observations[ORDERS]
    assert ORDERS in world.executor.running()
    assert (again.condition, again.error) == ("failed", "the disk is full")
    lines = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert lines == ["source.orders: [MZ064] the disk is full"]
    world.executor.trigger()
    healed = world.settle().observations[ORDERS]
    assert (healed.condition, healed.error, healed.retry_at) == ("running", None, None)


def test_a_fault_of_a_running_query_has_its_fix(world: World) -> None:
    world.commit(make_state(1))
    world.settle()
    world.executor.faults = lambda one: (DOWN,)
    world.now += 5.0
    until(world, lambda seen: seen.at_fault is not None)
    seen = world.settle().observations
    assert (seen[ORDERS].condition, seen[ORDERS].at_fault) == ("running", KAFKA)
    assert seen[SINK].at_fault is None  # it uses no server
    status = shown(seen[ORDERS])
    assert [query.condition for query in status.queries] == ["degraded"] and has_failed(status)
    state = world.store.read_state()
    drift = drift_between(state, {"local": world.settle()}, {"local": True})
    assert [(one.address, one.kind) for one in drift] == [("source.orders", "connection-unreachable")]
    old = drift_between(state, {"local": world.settle()}, {"local": True}, {ORDERS: ("${env:K}",)})
    assert [(one.address, one.kind) for one in old] == [("source.orders", "secret-rotated")]
    text = render_status(status)
    assert "source.orders: error[MZ154]: connection.k is at fault: Kafka does not answer." in text
    assert "\n  Since 2" in text
    assert "mzplan alter \"ALTER CONNECTION k SET BROKERS = ('new-host:9092')\"" in text
    world.executor.faults = lambda one: ()
    world.now += 5.0
    until(world, lambda seen: seen.at_fault is None)


@pytest.mark.parametrize(("condition", "fails"), [("starting", True), ("running", False), ("paused", False)])
def test_a_starting_query_is_not_healthy(condition: Condition, fails: bool) -> None:
    assert has_failed(shown(seen_of(ORDERS, condition=condition))) == fails


def test_a_failed_query_is_retried_when_its_server_answers_again(world: World) -> None:
    world.executor.faults = lambda one: (DOWN,)
    world.executor.check_result = lambda description: CheckResult(
        diagnostics=(DOWN,) if description.address == ORDERS and world.executor.faults(None) else ()  # type: ignore[arg-type]
    )
    world.commit(make_state(1))
    for _ in range(8):
        world.settle()
        world.now += 61.0
    seen = until(world, lambda seen: seen.at_fault is not None and seen.failures > 6)
    assert seen.condition == "rejected" and seen.retry_at is not None
    world.executor.faults = lambda one: ()
    began = world.now
    healed = until(world, lambda seen: seen.condition == "running")
    assert world.now - began < 10.0
    assert healed.started_because is not None and "answers again" in healed.started_because.detail


def test_an_apply_retries_failed_queries_at_once(world: World) -> None:
    world.executor.fail_start = lambda one: "no table" if one.address == ORDERS else None
    world.commit(make_state(1))
    for _ in range(8):
        world.settle()
        world.now += 61.0
    seen = until(world, lambda seen: seen.failures > 6)
    assert seen.condition == "failed" and seen.retry_at is not None
    world.executor.fail_start = lambda one: None
    assert world.runner.secret_values.receive(SecretValues(retry_failed=True)) == 1
    world.runner.tick()
    status = world.store.read_status("local")
    assert status is not None and status.secret_values_in_use == 1
    assert status.observations[ORDERS].condition != "failed"  # the message with this number asks for a retry
    healed = world.settle().observations[ORDERS]
    assert healed.condition == "running" and healed.started_because is not None
    assert healed.started_because.detail == "an apply asks for it"


def test_a_replaced_pyspark_is_noticed(world: World) -> None:
    world.commit(make_state(1))
    assert world.settle().replaced == ""
    world.executor.replaced_by = "4.2.0"
    status = world.settle()
    assert decode_status(encode_status(status), "status").replaced == "4.2.0"
    project = SimpleNamespace(store=world.store, settings=SimpleNamespace(instances={}, environment=""))
    text = render_status(read_project_status(project))  # type: ignore[arg-type]
    assert "warning[MZ243]: PySpark was replaced under its runner (now: 4.2.0)" in text
    (found,) = version_notices(project, world.committed, {"local": status})  # type: ignore[arg-type]
    assert (found.code, found.severity) == ("MZ243", "warning")


LOADED = (
    "pyspark/version.py",
    "pyspark/sql/types.py",
    "pyspark/python/lib/pyspark.zip",
    "pyspark/jars/spark-core_2.13-4.2.0.jar",
    "pyspark-4.2.0.dist-info/RECORD",
)


@pytest.mark.parametrize("name", LOADED)
def test_a_replaced_installation_differs_from_the_former_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(spark_lines, "_package", lambda: tmp_path / "pyspark")
    monkeypatch.setattr(spark_lines, "installed_spark", lambda: "4.2.0")
    monkeypatch.delenv("SPARK_HOME", raising=False)
    for file in map(tmp_path.joinpath, LOADED):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("one")
    now = [0.0]
    there = spark_lines.Installation(lambda: now[0])
    file = tmp_path / name
    (file.parent / "__pycache__").mkdir()  # this changes the folder
    (file.parent / "__pycache__" / "a.pyc").write_text("compiled")
    (tmp_path / "pyspark" / "logs").write_text("of somebody")
    assert there.replaced_by(at_once=True) is None
    (tmp_path / "kept").hardlink_to(file)
    (tmp_path / "new").write_text("two")  # as long as the former file
    (tmp_path / "new").replace(file)
    assert there.replaced_by() is None  # it checks every few seconds, and when a query has failed
    assert there.replaced_by(at_once=True) == "4.2.0"
    (tmp_path / "kept").replace(file)
    now[0] = 3.0
    assert there.replaced_by() is None
    file.parent.rename(tmp_path / "away")
    now[0] = 6.0
    assert there.replaced_by() == "4.2.0"


def test_a_check_of_the_installation_is_cheap() -> None:
    there = spark_lines.Installation()
    began = time.perf_counter()
    assert there.replaced_by(at_once=True) is None
    assert time.perf_counter() - began < 0.2  # 2 ms on an idle machine


def test_a_server_that_answers_has_not_moved(world: World) -> None:
    """If a server refuses a password, another host doesn't help, so the status shows the right fix."""
    refused = Diagnostic(
        code="MZ051",
        summary="PostgreSQL refused the credentials",
        detail="connection.k (a:1): no.",
        hint="check user and password of connection.k.",
    )
    world.commit(make_state(1))
    world.settle()
    world.executor.faults = lambda one: (refused,)
    world.now += 5.0
    seen = until(world, lambda seen: seen.at_fault is not None)
    project = SimpleNamespace(store=world.store, settings=SimpleNamespace(instances={}, environment=""))
    status = read_project_status(project)  # type: ignore[arg-type]
    (query,) = (one for one in status.queries if one.resource.address == ORDERS)
    assert query.observation is not None and query.observation.at_fault == KAFKA and query.repair is None
    text = render_status(replace(status, queries=(query,)))
    assert "  Fix: check user and password of connection.k.\n" in text and "ALTER" not in text
    assert seen.fault_fix == refused.hint


def test_a_fix_with_several_lines_is_shown_in_full_and_can_be_run() -> None:
    """SQL in a fix keeps its lines and gets no full stop, however long the error is."""
    columns = ",\n".join(f"  column_{n} bigint" for n in range(60))
    table = f"CREATE TABLE public.orders (\n{columns}\n);"
    problem = Diagnostic(
        code="MZ052", summary="No table", detail="None is there.", hint=f"create it:\n{table}"
    )
    seen = seen_of(ORDERS, condition="failed", error=sentence(problem), error_code="MZ052")
    text = render_status(shown(seen))
    assert "\\n" not in text and "source.orders: [MZ052] No table. None is there. Fix: create it:\n" in text
    indented = text[text.index("  CREATE TABLE") :].rstrip("\n")
    assert [line.removeprefix("  ") for line in indented.splitlines()] == table.splitlines()
    warned = seen_of(ORDERS, condition="running", warning="[MZ045] a\n\x1b[1mb", held="c\nd")
    text = render_status(shown(warned))
    assert "warning [MZ045] a\n  \\x1b[1mb\n" in text and "held: c\n  d\n" in text


def using(address: Address, connection: InlinedConnection) -> Description:
    """Return a query that uses a connection and has its type."""
    return Description(
        address=address,
        id="s",
        generation=1,
        digest="d",
        type=connection.type,
        body={},
        connections={"connection": connection},
    )


def test_a_broken_tunnel_is_at_fault_for_its_servers() -> None:
    bastion = InlinedConnection(address=Address("connection", "bastion"), type="ssh-tunnel", body={})
    outer = InlinedConnection(address=KAFKA, type="kafka", body={}, connections={"ssh_tunnel": bastion})
    query = using(ORDERS, outer)
    asked: list[Address] = []

    def reach(one: InlinedConnection) -> tuple[Diagnostic, ...]:
        asked.append(one.address)
        return (DOWN,)

    with ThreadPoolExecutor(2) as pool:
        watch = ConnectionWatch(reach, pool, lambda: 0.0)
        both = {ORDERS: query, SINK: replace(query, address=SINK)}
        watch.poll(both, {})
        pool.submit(lambda: None).result()
        until = time.monotonic() + 30.0
        while watch.fault(ORDERS) is None and time.monotonic() < until:
            watch.poll(both, {})
        fault = watch.fault(ORDERS)
    assert fault is not None and fault.connection == bastion.address
    assert sorted(asked) == [bastion.address, KAFKA]  # once, for both queries


def test_a_fault_with_former_secret_values_does_not_count() -> None:
    """A query that now runs with the right password isn't `degraded` because of the wrong one."""
    body = {"url": "jdbc:x", "password": "${env:PG_PASSWORD}"}
    connection = InlinedConnection(address=Address("connection", "pg"), type="postgres", body=body)
    query = using(SINK, connection)
    asked: list[str] = []

    def reach(_: InlinedConnection) -> tuple[Diagnostic, ...]:
        asked.append("look")
        return (DOWN,)

    with ThreadPoolExecutor(2) as pool:
        watch = ConnectionWatch(reach, pool, lambda: 0.0)
        reference = "${env:PG_PASSWORD}"
        until = time.monotonic() + 30.0
        while watch.fault(SINK) is None and time.monotonic() < until:
            watch.poll({SINK: query}, {reference: "wrong"})
        assert watch.fault(SINK) is not None
        watch.poll({SINK: query}, {reference: "right"})
        assert watch.fault(SINK) is None
    assert len(asked) == 2  # and the connection is checked again at once


def test_a_job_asks_for_a_bounded_time_and_the_next_job_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mzplan.controller.watches.BUDGET", 0.0)
    with ThreadPoolExecutor(1) as pool:
        sampler: Sampler[int, int, int] = Sampler(lambda n: n, pool, lambda: 0.0)
        sampler.poll(dict.fromkeys(range(1000), 1), lambda _: 10.0)
        pool.submit(lambda: None).result()
        assert sampler.answers == {}


def test_the_sampler_rests_after_a_job_that_left_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A starting runner polls twenty times a second, and would otherwise only ask questions."""
    now = [100.0]
    asked = []

    def ask(n: int) -> int:
        asked.append(n)
        now[0] += 0.15
        return n

    monkeypatch.setattr("mzplan.controller.watches.time", SimpleNamespace(monotonic=lambda: now[0]))
    with ThreadPoolExecutor(1) as pool:
        sampler: Sampler[int, int, int] = Sampler(ask, pool, lambda: now[0])
        counted = []
        for rest in (0.0, 0.7, 0.2, 0.0):
            now[0] += rest
            sampler.poll({n: n for n in range(4)}, lambda _: 10.0)
            pool.submit(lambda: None).result()
            counted.append(len(asked))
    assert counted == [2, 2, 4, 4]


def test_the_lag_of_a_sink_is_its_unread_steps_and_rows(tmp_path: Path) -> None:
    source = StoredSource(tmp_path)
    sink = StoredSink(source)
    for i in range(3):
        source.run(named(i, i + 2))
    rows = [2, 2, 2]
    totals = [StepRecord(step=i, rows=n, total=sum(rows[: i + 1]), version=i + 1) for i, n in enumerate(rows)]
    source.history.index.append(totals)
    assert backlog_of(sink.history, source.history) == {"steps": 3, "rows": 6}
    sink.run(2)  # up to the table version after the first step
    assert backlog_of(sink.history, source.history) == {"steps": 2, "rows": 4}


def test_a_lag_has_a_unit_and_without_a_runner_an_age() -> None:
    seen = seen_of(ORDERS, lag=1204, lag_unit="records", total_rows=12345, last_rows=5, last_batch_at=940.0)
    line = next(r for r in render_status(shown(seen), now=1000.0).splitlines() if r.startswith("source."))
    assert "12,345" in line and "1,204 records" in line and "5 rows, 60 s ago" in line
    assert "1,204 records, 5 min ago" in render_status(shown(seen, as_of=700.0), now=1000.0)
    steps = seen_of(ORDERS, lag=120, lag_unit="rows", backlog={"steps": 3, "rows": 120})
    assert "120 rows in 3 steps" in render_status(shown(steps))
    failed = seen_of(ORDERS, condition="failed", failures=4, retry_at=1008.0)
    assert "4         in 8 s" in render_status(shown(failed), now=1000.0)
    document = status_to_json(shown(failed))["queries"][0]
    assert (document["attempts"], document["retry_at"], document["lag_unit"]) == (4, 1008.0, None)


@pytest.mark.parametrize(
    ("condition", "bad"), [("running", False), ("paused", False), ("failed", True), ("rejected", True)]
)
def test_a_failed_query_sets_the_exit_code(condition: str, bad: bool) -> None:
    assert has_failed(shown(seen_of(ORDERS, condition=condition))) is bad
    assert has_failed(shown(None)) is True  # no runner runs it


def test_only_the_exit_code_option_sets_the_exit_code(tmp_path: Path) -> None:
    folder = write(tmp_path)
    assert run("-C", str(folder), "apply", "--auto-approve").code == 0
    assert run("-C", str(folder), "status", "--exit-code").code == 0
    path = folder / "state" / "status" / "local.json"
    status = json.loads(path.read_text())
    status["observations"]["sink.out"] |= {"condition": "failed", "error": "gone", "error_code": "MZ050"}
    path.write_text(json.dumps(status))
    assert run("-C", str(folder), "status").code == 0
    assert run("-C", str(folder), "status", "--exit-code").code == 8


LOG = """\
2026-01-31T10:00:00.000Z INFO mzplan.runner: source.orders g1 started
2026-01-31T10:00:05.000Z ERROR mzplan.runner: source.orders: [MZ050] gone. Fix: wait.
2026-01-31 10:00:05.500 ERROR MicroBatchExecution: Query mzplan:shop:source.orders:g1:1:ab terminated
java.lang.RuntimeException: gone
\tat x.Y
sink.out step 3: {"id":1}
2026-01-31T10:00:06.000Z INFO mzplan.runner: source.orders_eu g1 started
{"time": "2026-01-31T10:00:07.000Z", "level": "INFO", "logger": "x", "message": "sink.out g1 started"}
"""


def test_the_status_has_the_stage_of_a_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.commit(make_state(1))
    with monkeypatch.context() as patched:
        patched.setattr(world.executor, "is_open", lambda: False)
        status = world.settle()
        assert status.opening_since is not None and status.opened_in is None
        assert status.start_stage(ORDERS) == "waiting for Spark"
    status = world.settle()
    assert status.opening_since is None and status.opened_in is not None and status.opened_in > 0.0
    seen = status.observations[ORDERS]
    assert seen.condition == "running" and status.start_stage(ORDERS) == "in the first batch"
    to_be_started = replace(status, observations={ORDERS: replace(seen, digest="1:former")})
    assert to_be_started.start_stage(ORDERS) == "to be started"


def test_before_the_first_apply(tmp_path: Path) -> None:
    assert run("-C", str(tmp_path / "p"), "init", "--from", "files").code == 0
    assert "No query is committed" in run("-C", str(tmp_path / "p"), "status").out
    refused = run("-C", str(tmp_path / "p"), "--json", "logs").error()
    assert refused["code"] == "MZ155" and "ever started" in refused["detail"]


class Told(SilentReporter):
    """Return the lines that a following command prints meanwhile."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def stage(self, text: str) -> None:
        self.said.append(text)

    def waiting(self, waiting: Mapping[Address, str], seconds: float) -> None:
        self.said.append(waiting[ORDERS])


def test_apply_shows_the_stage_of_a_start() -> None:
    committed = make_state(1)
    of_mine = {ORDERS: committed.resources[ORDERS]}
    digest = of_mine[ORDERS].digest
    status = Status(instance="local", epoch=1, heartbeat=0.0, serial=0, opening_since=900.0)
    ready = replace(status, serial=1, opening_since=None, opened_in=23.4)
    begins = seen_of(ORDERS, condition="starting", wanted_digest=digest, digest="former", run_id="a")
    first = replace(begins, digest=digest)
    there = replace(first, condition="running")
    coming = [status, *(replace(ready, observations={ORDERS: one}) for one in (begins, first, there))]

    class Followed(OutcomeFollower):
        def _read(self) -> Any:
            return coming.pop(0), True, None

    store = SimpleNamespace(backend=SimpleNamespace(poll_interval=0.0))
    told = Told()
    wanted = replace(committed, resources=of_mine)
    found = Followed(store, wanted, "local", {ORDERS}).follow(9.0, told, lambda: None)  # type: ignore[arg-type]
    assert found[ORDERS].status == "applied"
    assert told.said == [
        "waiting for Spark",
        "Spark of instance local was ready after 23 s",
        "to be started",
        "in the first batch",
    ]


def test_progress_names_the_plans_queries_until_a_status_has_the_serial() -> None:
    """Without a status of the runner, the queries that the plan leaves alone are unknown."""
    committed = make_state(1)
    others = {a for a in committed.resources if a.is_query} - {ORDERS}
    behind = Status(instance="local", epoch=1, heartbeat=0.0, serial=0)
    coming = [None, behind, replace(behind, serial=1)]

    class Followed(OutcomeFollower):
        def _read(self) -> Any:
            return coming.pop(0), True, None

    named: list[set[Address]] = []
    looks = SimpleNamespace(waiting=lambda waiting, _: named.append(set(waiting)), outcome=lambda _: None)
    store = SimpleNamespace(backend=SimpleNamespace(poll_interval=0.0))
    follower = Followed(store, committed, "local", {ORDERS})  # type: ignore[arg-type]
    ended = MzplanError([Diagnostic(code="MZ060", summary="The runner has ended")])
    follower.follow(9.0, looks, lambda: None if coming else ended)  # type: ignore[arg-type]
    assert named == [{ORDERS}, {ORDERS}, {ORDERS} | others] and others


def test_status_shows_the_stage_of_a_start() -> None:
    starts = seen_of(ORDERS, condition="starting")
    instance = InstanceStatus(
        name="local", epoch=1, alive=True, heartbeat=0.0, serial=1, opening_since=988.0, opened_in=None
    )
    query = replace(shown(starts).queries[0], start_stage="waiting for Spark")
    status = ProjectStatus(serial=1, instances=(instance,), queries=(query, query))
    text = render_status(status, now=1000.0)
    assert "Instance local: alive (epoch 1; Spark has been starting for 12 s)" in text
    assert "\n\nStarting: 2 waiting for Spark\n" in text
    assert status_to_json(status)["queries"][0]["awaits"] == "waiting for Spark"
    ready = replace(instance, opening_since=None, opened_in=23.4)
    status = replace(status, instances=(ready,), queries=(replace(query, start_stage="in the first batch"),))
    text = render_status(status, now=1000.0)
    assert "(epoch 1; Spark was ready after 23 s)" in text and "Starting: 1 in the first batch" in text
    assert "(epoch 1)" in render_status(replace(status, queries=shown(seen_of(ORDERS)).queries), now=1000.0)


def test_each_command_notes_that_a_dry_instance_runs_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path)
    assert run("-C", str(folder), "apply", "--auto-approve").code == 0
    never = "Its instance local is dry: it runs and stores nothing."
    assert run("-C", str(folder), "steps", "source.orders").out == f"source.orders has no steps. {never}\n"
    verified = run("-C", str(folder), "verify", "source.orders")
    assert (verified.code, verified.out) == (0, f"source.orders has no steps to verify. {never}\n")
    refused = run("-C", str(folder), "--json", "snapshot", "source.orders").error()
    assert (refused["code"], refused["detail"]) == ("MZ094", never) and "embedded" in refused["hint"]
    refused = run("-C", str(folder), "--json", "logs").error()
    assert refused["code"] == "MZ155" and "runs no queries" in refused["detail"]
    shown = run("-C", str(folder), "status").out
    assert "Instance local: dry (nothing runs" in shown and "alive" not in shown


def test_logs_shows_the_lines_of_one_query(tmp_path: Path) -> None:
    folder = write(tmp_path)
    assert run("-C", str(folder), "apply", "--auto-approve").code == 0
    missing = run("-C", str(folder), "--json", "logs", "source.orders")
    assert (missing.code, missing.error()["code"]) == (1, "MZ155")
    (folder / ".mzplan").mkdir(exist_ok=True)
    (folder / ".mzplan" / "local.log").write_text(LOG)
    found = run("-C", str(folder), "logs", "source.orders").out.splitlines()
    assert len(found) == 5 and found[-1].endswith("at x.Y") and not any("orders_eu" in line for line in found)
    late = run("-C", str(folder), "--json", "logs", "sink.out", "--since", "2026-01-31T10:00:06+00:00").json()
    assert [one["message"] for one in late["entries"]] == ["sink.out g1 started"]
    assert run("-C", str(folder), "logs", "--since", "soon").code == 64
    assert len(list(entries("local", folder / ".mzplan" / "local.log"))) == 6
    assert not mention(ORDERS).search("resource.orders")


def test_where_queries_resumed_proves_a_repair() -> None:
    one = {"step": 8, "position": {"orders": {"0": 1204311}}}
    seen = seen_of(ORDERS, resumed=one, run_rows=18040, lag=0, lag_unit="records")
    assert render_resumed(ORDERS, seen) == (
        "source.orders: resumed at 1,204,311; 18,040 records from the outage read"
    )
    two = {"step": 8, "position": {"orders": {"1": 2000, "0": 1}}}
    late = seen_of(ORDERS, resumed=two, run_rows=5, lag=7, lag_unit="records")
    assert render_resumed(ORDERS, late) == (
        "source.orders: resumed at 0: 1, 1: 2,000; 5 records read since, 7 records wait"
    )
    sink = seen_of(SINK, resumed={"step": 8, "position": {"reservoirVersion": 3}}, run_rows=2, lag=0)
    assert (
        render_resumed(SINK, sink) == "sink.orders_out: resumed after step 8; 2 rows from the outage written"
    )
    unknown = replace(sink, run_rows=0, lag=None)
    assert render_resumed(SINK, unknown) == (
        "sink.orders_out: resumed after step 8; 0 rows written since, the rest isn't counted yet"
    )


def test_a_desired_query_without_a_run_reports_its_recorded_step() -> None:
    state = make_state(1)
    wanted = Desired(description=describe(state.resources[ORDERS], state.resources), paused=True)
    decision = Decision(command=None, memory=Memory(), condition="paused", run=None)
    seen = observe(ORDERS, QueryState(wanted=wanted, decision=decision, last_step=4))
    assert (seen.step, seen.lag, seen.lag_unit) == (4, None, None)


def test_the_text_of_a_fault_has_no_secret() -> None:
    remember("hunter22-hunter22")
    seen = seen_of(ORDERS, at_fault=KAFKA, fault="refused hunter22-hunter22.")
    data = encode_status(
        Status(instance="local", epoch=1, heartbeat=0.0, serial=1, observations={ORDERS: seen})
    )
    assert b"hunter22" not in data and decode_status(data, "it").observations[ORDERS].fault == "refused ***."
