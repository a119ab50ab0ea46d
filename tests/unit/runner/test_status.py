"""`status` shows backlogs, faults, retries and stages of starts; `logs` shows the lines of a query."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mzplan.controller.executor import CheckResult, Measurement
from mzplan.controller.jobs import Jobs, Recurring
from mzplan.controller.observations import Fault
from mzplan.controller.watches import ConnectionWatch
from mzplan.host import spark_lines
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError, sentence
from mzplan.model.observed import Observation, Status
from mzplan.model.state import ProjectStatus, QueryStatus, State
from mzplan.operations.follower import OutcomeFollower
from mzplan.operations.logs import entries, mention
from mzplan.operations.planning import version_notices
from mzplan.operations.project import Outcome
from mzplan.operations.status import read_project_status, repair_of
from mzplan.plan.drift import drift_between
from mzplan.render.resumption import render_resumed
from mzplan.render.status import has_failed, render_status
from mzplan.render.status_json import status_to_json
from mzplan.schema.description import Description, InlinedConnection
from mzplan.secrets.policy import SecretValues
from mzplan.secrets.resolved import remember
from mzplan.store.formats import decode_status, encode_status
from mzplan.warehouse.step_history import backlog_of
from mzplan.warehouse.step_record import StepRecord
from tests.stored_steps import StoredSink, StoredSource, named
from tests.unit.cli_runs import mzplan, write
from tests.unit.reporters import SilentReporter
from tests.unit.runner.test_runner import KAFKA, ORDERS, SINK, World, make_state

DOWN = Diagnostic(code="MZ050", summary="Kafka does not answer", detail="connection.k (a:1): refused.")


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


def project_of(world: World) -> Any:
    return SimpleNamespace(
        store=world.store, settings=SimpleNamespace(instances={}, environment="", directory="/")
    )


def status_text(world: World) -> str:
    return render_status(read_project_status(project_of(world)))


# --- lags and backlogs


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


def test_the_lag_of_a_sink_is_its_unread_steps_and_rows(tmp_path: Path) -> None:
    source = StoredSource(tmp_path)
    sink = StoredSink(source)
    for i in range(3):
        source.run(named(i, i + 2))
    source.history.index.append(
        [StepRecord(step=i, rows=2, total=2 * (i + 1), version=i + 1) for i in range(3)]
    )
    assert backlog_of(sink.history, source.history) == {"steps": 3, "rows": 6}
    sink.run(2)  # up to the table version after the first step
    assert backlog_of(sink.history, source.history) == {"steps": 2, "rows": 4}


def test_status_shows_lags_with_their_age_and_the_next_attempt() -> None:
    seen = seen_of(ORDERS, lag=1204, lag_unit="records", total_rows=12345, last_rows=5, last_batch_at=940.0)
    line = next(r for r in render_status(shown(seen), now=1000.0).splitlines() if r.startswith("source."))
    assert "12,345" in line and "1,204 records" in line and "5 rows, 60 s ago" in line
    assert "1,204 records, 5 min ago" in render_status(shown(seen, as_of=700.0), now=1000.0)
    steps = seen_of(ORDERS, lag=120, lag_unit="rows", backlog={"steps": 3, "rows": 120})
    assert "120 rows in 3 steps" in render_status(shown(steps))
    failed = shown(seen_of(ORDERS, condition="failed", failures=4, retry_at=1008.0))
    assert "4         in 8 s" in render_status(failed, now=1000.0)
    (query,) = status_to_json(failed)["queries"]
    assert (query["attempts"], query["retry_at"], query["lag_unit"]) == (4, 1008.0, None)


@pytest.mark.parametrize(
    ("address", "rows", "lag", "text"),
    [
        (ORDERS, 5, 7, "at 0: 1, 1: 2,000; 5 records read since, 7 records wait"),
        (SINK, 2, 0, "after step 8; 2 rows from the outage written"),
        (SINK, 0, None, "after step 8; 0 rows written since, the rest isn't counted yet"),
    ],
)
def test_where_queries_resumed_proves_a_repair(
    address: Address, rows: int, lag: int | None, text: str
) -> None:
    position: Any = {"orders": {"1": 2000, "0": 1}} if address == ORDERS else {"reservoirVersion": 3}
    seen = seen_of(address, resumed={"step": 8, "position": position}, run_rows=rows, lag=lag)
    assert render_resumed(address, seen) == f"{address}: resumed {text}"


def test_the_slowest_query_counts_the_longer_of_wait_and_last_step(world: World) -> None:
    """If the cores don't suffice, `status` says so."""
    status = world.apply(make_state(1))
    assert (status.cores, status.slowest) == (0, None)
    world.progress(ORDERS, last_progress_at=time.time() - 40.0)
    assert world.settle().slowest is None  # its input may be slow, while cores suffice
    world.executor.cores = 2
    status = world.settle()
    assert status.cores == 2 and status.slowest == pytest.approx(39.0, abs=5.0)  # a trigger of 1 s
    world.progress(ORDERS, last_progress_at=time.time(), batch_seconds=61.0)
    assert world.later(10.0).slowest == pytest.approx(60.0, abs=5.0)
    assert "queries share 2 cores; the slowest waits 60 s: give the runner more cores" in status_text(world)
    world.executor.cores = 0
    status = world.settle()
    assert (status.cores, status.slowest) == (0, None)
    assert "share" not in status_text(world)


def test_a_stall_of_the_engine_is_shown_at_each_query_that_runs(world: World) -> None:
    assert {seen.warning for seen in world.apply(make_state(1)).observations.values()} == {None}
    world.executor.stall_reason = "Spark has had no executor since noon, so its jobs wait."
    assert {seen.warning for seen in world.settle().observations.values()} == {world.executor.stall_reason}
    assert "warning Spark has had no executor since noon" in status_text(world)
    world.executor.stall_reason = None
    assert {seen.warning for seen in world.settle().observations.values()} == {None}


# --- failures and retries


def test_a_failed_query_resumes_and_counts_as_failed_until_its_first_trigger(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    before = world.apply(make_state(1)).observations[ORDERS]
    world.executor.triggers_at_once = False
    with caplog.at_level(logging.INFO, "mzplan.runner"):
        failed = world.fail(ORDERS, "the disk is full").observations[ORDERS]
        assert failed.condition == "failed" and failed.retry_at == pytest.approx(time.time() + 1.0, abs=30.0)
        again = world.later(2.0).observations[ORDERS]
    assert ORDERS in world.executor.running()
    assert (again.condition, again.error) == ("failed", "the disk is full")
    lines = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    assert lines == ["source.orders: [MZ064] the disk is full"]
    world.executor.trigger()
    healed = world.settle().observations[ORDERS]
    assert (healed.condition, healed.error, healed.retry_at) == ("running", None, None)
    assert healed.query_id == before.query_id  # the same checkpoint
    assert healed.failures == 1
    assert world.later(70.0).observations[ORDERS].failures == 0  # it has run for long enough


def fail_for_minutes(world: World, condition: str) -> None:
    """Commit a state whose source fails again and again, until its next attempt is a minute away."""
    world.commit(make_state(1))
    for _ in range(8):
        world.later(61.0)
    seen = until(world, lambda seen: seen.failures > 6)
    assert seen.condition == condition and seen.retry_at is not None


def test_an_apply_retries_failed_queries_at_once(world: World) -> None:
    world.executor.fail_start = lambda one: "no table" if one.address == ORDERS else None
    fail_for_minutes(world, "failed")
    world.executor.fail_start = lambda one: None
    assert world.runner.secret_values.receive(SecretValues(retry_failed=True)) == 1
    world.runner.tick()
    status = world.status()
    assert status.secret_values_in_use == 1
    assert status.observations[ORDERS].condition != "failed"  # the message with this number asks for a retry
    healed = world.settle().observations[ORDERS]
    assert healed.condition == "running" and healed.started_because is not None
    assert healed.started_because.detail == "an apply asks for it"


def test_a_query_that_does_not_run_sets_the_exit_code() -> None:
    for condition in ("running", "paused", "starting", "failed", "rejected"):
        fails = condition not in ("running", "paused")
        assert has_failed(shown(seen_of(ORDERS, condition=condition))) is fails, condition
    assert has_failed(shown(None)) is True  # no runner runs it


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


# --- faults of servers


def test_a_fault_of_a_running_query_has_its_fix(alive: World) -> None:
    for address in (ORDERS, SINK):
        alive.progress(address, lag=0)
    alive.executor.faults = lambda one: (DOWN,)
    until(alive, lambda seen: seen.at_fault is not None)
    statuses = {"local": alive.settle()}
    seen = statuses["local"].observations
    assert (seen[ORDERS].condition, seen[ORDERS].at_fault) == ("running", KAFKA)
    assert seen[SINK].at_fault is None  # it uses no server
    assert (seen[ORDERS].lag, seen[SINK].lag) == (None, 0)  # the server's backlog is unknown
    status = shown(seen[ORDERS])
    assert [query.condition for query in status.queries] == ["degraded"] and has_failed(status)
    for rotated, kind in (({}, "connection-unreachable"), ({ORDERS: ("${env:K}",)}, "secret-rotated")):
        drift = drift_between(alive.committed, statuses, {"local": True}, rotated)
        assert [(one.address, one.kind) for one in drift] == [("source.orders", kind)]
    text = render_status(status)
    assert "source.orders: error[MZ154]: connection.k is at fault: Kafka does not answer." in text
    assert "\n  Since 2" in text
    assert "mzplan alter \"ALTER CONNECTION k SET BROKERS = ('new-host:9092')\"" in text
    alive.executor.faults = lambda one: ()
    until(alive, lambda seen: seen.at_fault is None)


def test_a_failed_query_is_retried_when_its_server_answers_again(world: World) -> None:
    world.executor.faults = lambda one: (DOWN,)
    world.executor.check_result = lambda description: CheckResult(
        diagnostics=(DOWN,) if description.address == ORDERS and world.executor.faults(None) else ()  # type: ignore[arg-type]
    )
    fail_for_minutes(world, "rejected")
    until(world, lambda seen: seen.at_fault is not None)
    world.executor.faults = lambda one: ()
    began = world.now
    healed = until(world, lambda seen: seen.condition == "running")
    assert world.now - began < 10.0
    assert healed.started_because is not None and "answers again" in healed.started_because.detail


def test_a_server_that_answers_has_not_moved(alive: World) -> None:
    """If a server refuses a password, another host doesn't help, so the status shows the right fix."""
    hint = "check user and password of connection.k."
    refused = Diagnostic(code="MZ051", summary="PostgreSQL refused the credentials", hint=hint)
    alive.executor.faults = lambda one: (refused,)
    assert until(alive, lambda seen: seen.at_fault is not None).fault_fix == hint
    status = read_project_status(project_of(alive))
    (query,) = (one for one in status.queries if one.resource.address == ORDERS)
    assert query.observation is not None and query.observation.at_fault == KAFKA and query.repair is None
    text = render_status(replace(status, queries=(query,)))
    assert f"  Fix: {hint}\n" in text and "ALTER" not in text


def test_the_text_of_a_fault_has_no_secret() -> None:
    remember("hunter22-hunter22")
    seen = seen_of(ORDERS, at_fault=KAFKA, fault="refused hunter22-hunter22.")
    data = encode_status(
        Status(instance="local", epoch=1, heartbeat=0.0, serial=1, observations={ORDERS: seen})
    )
    assert b"hunter22" not in data and decode_status(data, "it").observations[ORDERS].fault == "refused ***."


@pytest.fixture
def fault_of() -> Iterator[Callable[..., Fault | None]]:
    """Return a function that watches a connection, which doesn't answer, and returns its query's fault."""
    with ThreadPoolExecutor(1) as pool:
        watch = ConnectionWatch(lambda connection: (DOWN,), Jobs(lambda kind: pool), lambda: 0.0)

        def fault_of(connection: InlinedConnection, rounds: int = 3, **digests: str) -> Fault | None:
            given = {"id": "s", "generation": 1, "digest": "d", "type": connection.type, "body": {}}
            query = Description(address=SINK, connections={"connection": connection}, **given)  # type: ignore[arg-type]
            for _ in range(rounds):
                watch.poll({SINK: query}, {f"${{env:{name}}}": digest for name, digest in digests.items()})
                pool.submit(lambda: None).result()
            return watch.fault(SINK)

        yield fault_of


def test_a_broken_tunnel_is_at_fault_for_its_servers(fault_of: Callable[..., Fault | None]) -> None:
    bastion = InlinedConnection(address=Address("connection", "bastion"), type="ssh-tunnel", body={})
    server = InlinedConnection(address=KAFKA, type="kafka", body={}, connections={"ssh_tunnel": bastion})
    fault = fault_of(server)
    assert fault is not None and fault.connection == bastion.address


def test_a_fault_with_former_secret_values_does_not_count(fault_of: Callable[..., Fault | None]) -> None:
    """A query that now runs with the right password isn't `degraded` because of the wrong one."""
    body = {"url": "jdbc:x", "password": "${env:PG_PASSWORD}"}
    server = InlinedConnection(address=Address("connection", "pg"), type="postgres", body=body)
    assert fault_of(server, PG_PASSWORD="wrong") is not None
    assert fault_of(server, rounds=1, PG_PASSWORD="right") is None
    assert fault_of(server, PG_PASSWORD="right") is not None  # it is checked again at once


def test_checks_take_a_bounded_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A starting runner polls twenty times a second, and would otherwise only ask questions."""
    now = [100.0]
    asked = []

    def ask(n: int) -> int:
        asked.append(n)
        now[0] += 0.15
        return n

    clock = SimpleNamespace(monotonic=lambda: now[0], time=time.time)
    monkeypatch.setattr("mzplan.controller.jobs.time", clock)
    with ThreadPoolExecutor(1) as pool:
        recurring: Recurring[int, int, int] = Recurring(Jobs(lambda kind: pool), "lag", ask, lambda: now[0])
        counted = []
        for rest in (0.0, 0.7, 0.2, 0.0):
            now[0] += rest
            recurring.poll({n: n for n in range(4)}, lambda _: 10.0)
            pool.submit(lambda: None).result()
            counted.append(len(asked))
    assert counted == [2, 2, 4, 4]


# --- a replaced installation of Spark


def test_a_replaced_pyspark_is_noticed(world: World) -> None:
    assert world.apply(make_state(1)).replaced == ""
    world.executor.replaced_by = "4.2.0"
    status = world.settle()
    assert status.replaced == "4.2.0"
    assert "warning[MZ243]: PySpark was replaced under its runner (now: 4.2.0)" in status_text(world)
    (found,) = version_notices(project_of(world), world.committed, {"local": status})
    assert (found.code, found.severity) == ("MZ243", "warning")


LOADED = ("pyspark/sql/types.py", "pyspark/jars/spark-core_2.13-4.2.0.jar", "pyspark-4.2.0.dist-info/RECORD")


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
    installation = spark_lines.Installation(lambda: now[0])
    file = tmp_path / name
    (file.parent / "__pycache__").mkdir()  # this changes the folder
    (file.parent / "__pycache__" / "a.pyc").write_text("compiled")
    assert installation.replaced_by(at_once=True) is None
    (tmp_path / "new").write_text("two")  # as long as the former file
    (tmp_path / "new").replace(file)
    assert installation.replaced_by() is None  # it checks every few seconds, and when a query has failed
    assert installation.replaced_by(at_once=True) == "4.2.0"
    file.parent.rename(tmp_path / "away")
    now[0] = 3.0
    assert installation.replaced_by() == "4.2.0"


# --- the stages of a start


def test_the_status_has_the_stage_of_a_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as opening:
        opening.setattr(world.executor, "is_open", lambda: False)
        status = world.apply(make_state(1))
        assert status.opening_since is not None and status.opened_in is None
        assert status.start_stage(ORDERS) == "waiting for Spark"
        text = status_text(world)
        assert "; Spark has been starting for " in text and "\n\nStarting: 2 waiting for Spark\n" in text
        query = status_to_json(read_project_status(project_of(world)))["queries"][0]
        assert query["awaits"] == "waiting for Spark"
        assert {o.condition for o in status.observations.values()} == {"starting"}
        assert drift_between(world.committed, {"local": status}, {"local": True}) == ()
    status = world.settle()
    assert status.opening_since is None and status.opened_in is not None and status.opened_in > 0.0
    seen = status.observations[ORDERS]
    assert seen.condition == "running" and status.start_stage(ORDERS) == "in the first batch"
    assert "(epoch 1)" in status_text(world)
    world.store.write_status(replace(status, observations={ORDERS: replace(seen, condition="starting")}))
    text = status_text(world)
    assert "(epoch 1; Spark was ready after " in text and "Starting: 1 in the first batch" in text
    to_be_started = replace(status, observations={ORDERS: replace(seen, digest="1:former")})
    assert to_be_started.start_stage(ORDERS) == "to be started"


class Watcher(SilentReporter):
    """Records what an apply shows. Whenever it shows waiting queries, the runner writes its next status."""

    def __init__(self, world: World, statuses: list[Status]) -> None:
        self.world, self.coming = world, list(statuses)
        self.text: list[str] = []
        self.waited: list[set[Address]] = []

    def stage(self, text: str) -> None:
        self.text.append(text)

    def waiting(self, waiting: Mapping[Address, str], seconds: float) -> None:
        self.text += [waiting[ORDERS]] if ORDERS in waiting else []
        self.waited.append(set(waiting))
        if self.coming:
            self.world.store.write_status(self.coming.pop(0))


def follow(
    world: World, state: State, touched: set[Address], *statuses: Status, others: bool = False
) -> tuple[Watcher, dict[Address, Outcome]]:
    """Follow a commit while the runner writes these statuses one after the other."""
    watcher = Watcher(world, [replace(one, epoch=world.lease.epoch) for one in statuses])
    end = MzplanError([Diagnostic(code="MZ060", summary="The runner has ended")])
    follower = OutcomeFollower(world.store, state, "local", touched, others=others)
    outcomes = follower.follow(30.0, watcher, lambda: end if len(watcher.waited) > len(statuses) else None)
    return watcher, outcomes


EMPTY = Status(instance="local", epoch=1, heartbeat=0.0, serial=0)


def test_apply_shows_the_stage_of_a_start(world: World) -> None:
    state = make_state(1)
    digest = state.resources[ORDERS].digest
    ready = replace(EMPTY, serial=1, opened_in=23.4)
    begins = seen_of(ORDERS, condition="starting", wanted_digest=digest, digest="former", run_id="a")
    first = replace(begins, digest=digest)
    done = replace(first, condition="running")
    stages = (replace(ready, observations={ORDERS: one}) for one in (begins, first, done))
    watcher, outcomes = follow(world, state, {ORDERS}, replace(EMPTY, opening_since=900.0), *stages)
    assert outcomes[ORDERS].status == "applied"
    assert watcher.text == [
        "starting",
        "waiting for Spark",
        "Spark of instance local was ready after 23 s",
        "to be started",
        "in the first batch",
    ]


def test_without_a_status_apply_waits_only_for_the_plans_queries(world: World) -> None:
    served = replace(EMPTY, heartbeat=1.0, serial=1)
    watcher, _ = follow(world, make_state(1), {ORDERS}, EMPTY, served, others=True)
    assert watcher.waited == [{ORDERS}, {ORDERS}, {ORDERS, SINK}]


def test_a_sink_that_waits_for_its_source_has_its_own_code(world: World) -> None:
    state = make_state(1)
    held = "waits for generation 1 of source.orders to start"
    rejected = {"condition": "rejected", "error": "refused", "error_code": "MZ050"}
    seen = {
        address: seen_of(address, wanted_digest=state.resources[address].digest, **more)
        for address, more in ((ORDERS, rejected), (SINK, {"held": held}))
    }
    _, outcomes = follow(world, state, {SINK}, replace(EMPTY, serial=1, observations=seen))
    assert outcomes[SINK].code == "MZ065"
    assert outcomes[SINK].reason == f"{held}; source.orders is rejected: MZ050: refused"


# --- the command line


def test_each_command_notes_that_a_dry_instance_runs_nothing(tmp_path: Path) -> None:
    folder = write(tmp_path)
    assert "No query is committed" in mzplan(folder, "status").out
    assert mzplan(folder, "apply", "--auto-approve").code == 0
    never = "Its instance local is dry: it runs and stores nothing."
    verified = mzplan(folder, "verify", "source.orders")
    assert (verified.code, verified.out) == (0, f"source.orders has no steps to verify. {never}\n")
    refused = mzplan(folder, "--json", "snapshot", "source.orders").error()
    assert (refused["code"], refused["detail"]) == ("MZ094", never) and "embedded" in refused["hint"]
    refused = mzplan(folder, "--json", "logs").error()
    assert refused["code"] == "MZ155" and "runs no queries" in refused["detail"]
    text = mzplan(folder, "status").out
    assert "Instance local: dry (nothing runs" in text and "alive" not in text


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


def test_logs_shows_the_lines_of_one_query(tmp_path: Path) -> None:
    refused = mzplan(write(tmp_path / "new", "embedded"), "--json", "logs").error()
    assert refused["code"] == "MZ155" and "ever started" in refused["detail"]
    folder = write(tmp_path)
    assert mzplan(folder, "apply", "--auto-approve").code == 0
    missing = mzplan(folder, "--json", "logs", "source.orders")
    assert (missing.code, missing.error()["code"]) == (1, "MZ155")
    (folder / ".mzplan").mkdir(exist_ok=True)
    (folder / ".mzplan" / "local.log").write_text(LOG)
    found = mzplan(folder, "logs", "source.orders").out.splitlines()
    assert len(found) == 5 and found[-1].endswith("at x.Y") and not any("orders_eu" in line for line in found)
    late = mzplan(folder, "--json", "logs", "sink.out", "--since", "2026-01-31T10:00:06+00:00").json()
    assert [one["message"] for one in late["entries"]] == ["sink.out g1 started"]
    assert mzplan(folder, "logs", "--since", "soon").code == 64
    assert len(list(entries("local", folder / ".mzplan" / "local.log"))) == 6
    assert not mention(ORDERS).search("resource.orders")


def test_apply_says_which_first_copy_a_view_still_waits_for(world: World) -> None:
    state = make_state(1)
    held = "waits for the first copy of source.customers: 3 of 12 blocks are read"
    seen = seen_of(SINK, condition="starting", wanted_digest=state.resources[SINK].digest, held=held)
    waiting = replace(EMPTY, serial=1, observations={SINK: seen})
    watcher = Watcher(world, [replace(waiting, epoch=world.lease.epoch)])
    follower = OutcomeFollower(world.store, state, "local", {SINK}, others=False)
    outcome = follower.follow(0.5, watcher, lambda: None)[SINK]
    assert (outcome.status, outcome.code, outcome.reason) == ("pending", "MZ065", held)
