"""The runner's protocol against the in-memory executor: no Spark, no server."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mzplan.controller.executor import CheckResult, QueryName
from mzplan.controller.memory import InMemoryExecutor
from mzplan.model.address import Address
from mzplan.model.codec import encode
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError
from mzplan.model.observed import Observation, Recent, Status, with_samples
from mzplan.model.resources import Instance, Retries
from mzplan.model.state import Canary, Forgotten, ResourceState, State
from mzplan.schema.description import Description, describe, digest_of
from mzplan.store.backends.local import LocalBackend
from mzplan.store.leases import is_live
from mzplan.store.limits import write_limit
from mzplan.store.store import Store
from tests.runners import runner_in_memory

KAFKA = Address("connection", "k")
ORDERS = Address("source", "orders")
SINK = Address("sink", "orders_out")


def make_state(serial: int, broker: str = "a:1", **source: object) -> State:
    """One connection, one source, one console sink."""
    body = {"connection": "k", "topic": "t", "format": {"type": "json", "schema": "id BIGINT"}, **source}
    resources = {
        KAFKA: ResourceState(
            address=KAFKA, id="c", type="kafka", body={"type": "kafka", "brokers": [broker]}
        ),
        ORDERS: ResourceState(
            address=ORDERS,
            id="s",
            type="kafka",
            body=body,
            references={"connection": KAFKA},
            dependencies=(KAFKA,),
        ),
        SINK: ResourceState(
            address=SINK,
            id="o",
            type="console",
            body={"type": "console", "from": "orders"},
            references={"from": ORDERS},
            dependencies=(ORDERS,),
        ),
    }
    for address in (ORDERS, SINK):
        resource = resources[address]
        resources[address] = replace(resource, digest=digest_of(resource, resources))
    instances = {"local": Instance(name="local", type="embedded")}
    return State(
        project="shop", lineage="l", serial=serial, warehouse="w", instances=instances, resources=resources
    )


class World:
    """A store, an executor and a runner with a manual clock."""

    def __init__(self, folder: Path):
        self.store = Store(LocalBackend(folder), "shop")
        self.executor = InMemoryExecutor("shop")
        self.now = 0.0
        self.pool = ThreadPoolExecutor(4)
        self.committed = State(project="shop")
        self.new_runner()

    def new_runner(self) -> None:
        lease = self.store.leases.acquire("local", f"test-{self.now}")
        assert lease is not None
        self.lease = lease
        self.runner = runner_in_memory(self.store, self.executor, lease, self.pool, clock=lambda: self.now)

    def commit(self, state: State) -> None:
        self.store.commit(state, self.committed)
        self.committed = state

    def settle(self) -> Status:
        """Do rounds until no work is under way."""
        for _ in range(200):
            busy = self.runner.tick()
            if not busy:
                break
            threading.Event().wait(0.005)
        self.runner.tick()
        status = self.store.read_status("local")
        assert status is not None
        return status


def second_generation(state: State) -> State:
    """Return the state with new generations of both queries."""
    resources = dict(state.resources)
    for address in (ORDERS, SINK):
        anew = replace(resources[address], generation=2)
        resources[address] = replace(anew, digest=digest_of(anew, {**resources, address: anew}))
    return replace(state, resources=resources)


def starts(world: World) -> list[str]:
    return [name.split(":")[2] for what, name in world.executor.log if what == "start"]


def test_only_attempts_at_a_new_description_count_for_it(world: World) -> None:
    """Even if the digest is the same, and while an earlier attempt is under way."""
    other = Diagnostic(code="MZ043", summary="another topic", exit_code=ExitCode.REFUSED)
    entered, goes_on = threading.Event(), threading.Event()

    def check(description: Description) -> CheckResult:
        if "on_upstream_change" in description.body or description.address != ORDERS:
            return CheckResult()
        entered.set()
        goes_on.wait(10)
        return CheckResult(diagnostics=(other,))

    world.executor.check_result = check
    goes_on.set()
    world.commit(make_state(1))
    assert world.settle().observations[ORDERS].error_code == "MZ043"
    entered.clear(), goes_on.clear()
    world.now += 100
    while not entered.wait(0.01):
        world.runner.tick()
    fixed = make_state(2, on_upstream_change="reset-earliest")
    assert fixed.resources[ORDERS].digest == world.committed.resources[ORDERS].digest
    world.commit(fixed)
    world.runner.tick()
    seen = world.store.read_status("local")
    assert seen is not None and seen.serial == 2
    assert (seen.observations[ORDERS].condition, seen.observations[ORDERS].error) == ("starting", None)
    goes_on.set()
    assert world.settle().observations[ORDERS].condition == "running"


def test_a_commit_becomes_running_queries(world: World) -> None:
    world.commit(make_state(1))
    status = world.settle()
    assert status.serial == 1
    assert {a: o.condition for a, o in status.observations.items()} == {ORDERS: "running", SINK: "running"}
    assert set(world.store.read_accepted("local")) == {ORDERS, SINK}


@pytest.mark.parametrize("parallelism", [None, 1])
def test_parallelism_limits_the_starts_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch, parallelism: int | None
) -> None:
    start, both, now, most = world.executor.start, threading.Barrier(2), [], [0]

    def slow(*arguments: Any) -> None:
        now.append(1)
        most[0] = max(most[0], len(now))
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.3 if parallelism else 20.0)
        start(*arguments)
        now.pop()

    monkeypatch.setattr(world.executor, "start", slow)
    write_limit(world.store, 1, parallelism)
    world.commit(make_state(1))
    status = world.settle()
    assert {o.condition for o in status.observations.values()} == {"running"}
    assert most == [parallelism or 2]
    # A limit for another serial, or a damaged limit, is ignored.
    world.commit(make_state(2))
    world.settle()
    assert world.runner.controller.parameters.parallelism == 8
    world.store.backend.write("parallelism.json", b"{")
    world.commit(make_state(3))
    assert world.settle().serial == 3


def test_a_changed_connection_restarts_only_the_queries_that_use_it(world: World) -> None:
    world.commit(make_state(1))
    before = world.settle().observations
    world.executor.log.clear()
    world.commit(make_state(2, broker="b:1"))
    after = world.settle().observations
    assert starts(world) == ["source.orders"]
    assert after[ORDERS].run_id != before[ORDERS].run_id
    assert after[ORDERS].query_id == before[ORDERS].query_id
    assert after[SINK].run_id == before[SINK].run_id


def test_a_rejected_change_never_stops_the_old_query(world: World) -> None:
    world.commit(make_state(1))
    before = world.settle().observations
    world.executor.log.clear()
    problem = Diagnostic(code="MZ050", summary="Cannot reach b:1")
    world.executor.check_result = lambda d: (
        CheckResult(diagnostics=(problem,)) if "b:1" in str(d.connections) else CheckResult()
    )
    world.commit(make_state(2, broker="b:1"))
    seen = world.settle().observations[ORDERS]
    assert world.executor.log == []
    assert (seen.condition, seen.run_id, seen.error_code) == ("rejected", before[ORDERS].run_id, "MZ050")
    assert seen.digest != seen.wanted_digest
    # A new runner continues with the accepted description, and reports the rejection.
    world.executor = InMemoryExecutor("shop")
    world.executor.check_result = lambda d: (
        CheckResult(diagnostics=(problem,)) if "b:1" in str(d.connections) else CheckResult()
    )
    world.store.leases.renew(world.lease, released=True)
    world.new_runner()
    seen = world.settle().observations[ORDERS]
    assert seen.condition == "rejected"
    assert seen.digest == before[ORDERS].digest
    # The cause disappears, and the query converges by itself.
    world.executor.check_result = lambda d: CheckResult()
    world.now += 100.0
    assert world.settle().observations[ORDERS].condition == "running"


def test_a_failed_change_falls_back_to_the_accepted_description(world: World) -> None:
    world.commit(make_state(1))
    world.settle()
    world.executor.fail_start = lambda d: "boom" if "b:1" in str(d.connections) else None
    world.commit(make_state(2, broker="b:1"))
    seen = world.settle().observations[ORDERS]
    assert (seen.condition, seen.error) == ("failed", "boom.")
    running = world.executor.running()[ORDERS]
    assert running.name.digest == make_state(1).resources[ORDERS].digest


def test_a_deleted_query_is_stopped_and_forgotten(world: World) -> None:
    world.commit(make_state(1))
    world.settle()
    without = make_state(2)
    world.commit(replace(without, resources={a: r for a, r in without.resources.items() if a != SINK}))
    status = world.settle()
    assert set(status.observations) == {ORDERS}
    assert set(world.executor.running()) == {ORDERS}
    assert set(world.store.read_accepted("local")) == {ORDERS}


def test_a_dead_query_is_restarted(world: World) -> None:
    world.commit(make_state(1))
    before = world.settle().observations[ORDERS]
    world.executor.fail_query(world.executor.running()[ORDERS].name, "broker away")
    seen = world.settle().observations[ORDERS]
    assert (seen.condition, seen.error) == ("failed", "broker away")
    world.now += 1.5
    healed = world.settle().observations[ORDERS]
    assert healed.condition == "running"
    assert healed.query_id == before.query_id


def test_a_proposal_is_answered_with_every_problem(world: World) -> None:
    def check(description: Description) -> CheckResult:
        problem = Diagnostic(
            code="MZ043",
            summary="another cluster",
            address=description.address,
            exit_code=ExitCode.REFUSED,
        )
        return CheckResult(diagnostics=(problem,), upstream={"cluster_id": "x"})

    world.executor.check_result = check
    state = make_state(1)
    asked = tuple(describe(state.resources[a], state.resources) for a in (ORDERS, SINK))
    proposal = world.store.proposals.make("local", asked)
    other = world.store.proposals.make("elsewhere", asked)
    world.settle()
    answer = world.store.proposals.read_answer(proposal)
    assert answer is not None
    assert [d.address for d in answer.diagnostics] == [ORDERS, SINK]
    assert answer.diagnostics[0].exit_code == ExitCode.REFUSED
    assert answer.upstreams[ORDERS] == {"cluster_id": "x"}
    assert world.store.proposals.read_answer(other) is None
    world.store.proposals.withdraw(proposal.id)
    assert world.store.proposals.open("local") == []


def test_only_committed_descriptions_create_targets(world: World) -> None:
    """A proposal, or an accepted description, must not create anything."""
    state = make_state(1)

    def check(description: Description) -> CheckResult:
        return CheckResult(must_create=description.address == SINK)

    def done_for_sink() -> list[str]:
        found = [what for what, name in world.executor.log if f":{SINK}:" in name]
        world.executor.log.clear()
        return found

    def propose() -> None:
        """Make a proposal with claims that it has no right to."""
        asked = tuple(describe(one, state.resources) for one in state.resources.values())
        proposal = world.store.proposals.make("local", asked[1:])
        key = f"proposals/{proposal.id}.json"
        claims = {**encode(proposal), "prepares": True}
        world.store.backend.write(key, json.dumps(claims).encode())
        world.settle()
        answer = world.store.proposals.read_answer(proposal)
        assert answer is not None and answer.diagnostics == ()
        world.store.proposals.withdraw(proposal.id)

    world.executor.check_result = check
    propose()
    assert done_for_sink() == []
    world.commit(state)
    world.settle()
    assert done_for_sink() == ["prepare", "start"]
    propose()
    assert done_for_sink() == []
    # A query that waits for a canary runs its accepted description, which isn't a commit.
    canary = Canary(address=ORDERS, serial=2, holds=(SINK,), wait=60.0)
    world.executor.triggers_at_once = False
    world.commit(replace(make_state(2, "b:1"), canaries=(canary,)))
    world.runner.tick()
    world.executor.fail_query(QueryName.of("shop", world.store.read_accepted("local")[SINK]), "gone")
    done: list[str] = []
    for _ in range(500):  # the canary never starts, so the runner never settles
        world.now += 0.5
        world.runner.tick()
        done += done_for_sink()
        if "start" in done:
            break
        time.sleep(0.005)
    assert done == ["stop", "start"]


def test_one_runner_leads_and_a_dead_runner_is_replaced(world: World) -> None:
    assert world.store.leases.acquire("local", "second") is None
    dead = replace(world.lease, pid=2**22 + 12345)
    assert not is_live(dead)
    assert not is_live(replace(world.lease, pid_started=1.0))  # a stale pid that another process has now
    assert not is_live(replace(world.lease, heartbeat=0.0))
    world.store.leases.renew(world.lease, released=True)
    successor = world.store.leases.acquire("local", "second")
    assert successor is not None and successor.epoch == world.lease.epoch + 1
    assert world.store.leases.renew(world.lease) is None


def test_a_commit_on_another_serial_is_stale(world: World) -> None:
    world.commit(make_state(1))
    with pytest.raises(MzplanError) as caught:
        world.store.commit(make_state(2), State(project="shop"))
    assert caught.value.exit_code == ExitCode.STALE
    assert world.store.read_state().serial == 1


def test_dropped_storage_is_journalled_kept_and_then_removed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.commit(make_state(1))
    world.settle()
    world.commit(second_generation(make_state(2, topic="u")))
    world.settle()
    assert [d.place for d in world.store.read_journal("local")] == [("o", 1), ("s", 1)]
    assert not [what for what, _ in world.executor.log if what == "reclaim"]
    world.runner.controller.queries.claims.retain = 0.0
    world.settle()
    world.settle()
    assert sorted(name for what, name in world.executor.log if what == "reclaim") == ["o g1", "s g1"]
    assert world.store.read_journal("local") == []


def test_dropped_storage_stays_if_it_is_claimed_again_or_still_read(world: World) -> None:
    first = make_state(1)
    world.commit(first)
    world.settle()
    world.runner.controller.queries.claims.retain = 0.0
    # The sink's change is rejected, so its old query still reads the source's old collection.
    world.executor.check_result = lambda d: (
        CheckResult(diagnostics=(Diagnostic(code="MZ052", summary="no"),))
        if d.address == SINK and d.generation == 2
        else CheckResult()
    )
    second = make_state(2, topic="u")
    resources = dict(second.resources)
    for address in (ORDERS, SINK):
        again = replace(resources[address], generation=2)
        resources[address] = replace(again, digest=digest_of(again, {**resources, address: again}))
    world.commit(replace(second, resources=resources))
    for _ in range(3):
        world.settle()
    assert [d.place for d in world.store.read_journal("local")] == [("s", 1)]
    assert not [what for what, _ in world.executor.log if what == "reclaim"]
    # Rolled back: the state claims it again.
    world.commit(replace(first, serial=3))
    for _ in range(3):
        world.settle()
    assert [d.place for d in world.store.read_journal("local")] == [("s", 2)] or not [
        d for d in world.store.read_journal("local") if d.place == ("s", 1)
    ]
    assert ("reclaim", "s g1") not in world.executor.log


def rename(state: State, serial: int, *, kind: str = "sink", **names: str) -> State:
    """Return the state with renamed sinks, which keep their ids."""
    resources = dict(state.resources)
    moved = {Address(kind, new): resources.pop(Address(kind, old)) for old, new in names.items()}
    resources |= {address: replace(record, address=address) for address, record in moved.items()}
    return replace(state, serial=serial, resources=resources)


def two_sinks() -> State:
    """Two sinks with equal descriptions and digests. Only their ids differ."""
    state = make_state(1)
    other = replace(state.resources[SINK], address=Address("sink", "other"), id="o2")
    return replace(state, resources={**state.resources, other.address: other})


def ids_by_address(world: World) -> dict[str, str]:
    """Return the storage that each running sink resumes from, by its accepted description."""
    accepted = world.store.read_accepted("local")
    return {a.name: d.id for a, d in accepted.items() if a.kind == "sink"}


def test_a_renamed_query_stops_before_it_resumes_under_its_new_name(world: World) -> None:
    world.commit(make_state(1))
    world.settle()
    world.executor.log.clear()
    world.commit(rename(make_state(1), 2, orders_out="new_name"))
    status = world.settle()
    assert [(what, name.split(":")[2]) for what, name in world.executor.log] == [
        ("stop", "sink.orders_out"),
        ("start", "sink.new_name"),
    ]
    assert {str(a): o.condition for a, o in status.observations.items()} == {
        "sink.new_name": "running",
        "source.orders": "running",
    }
    assert world.store.read_journal("local") == []  # its storage stays


def dropped_and_being_removed(world: World) -> tuple[State, threading.Event]:
    """Both queries have run, are dropped, and their storage is being removed until the event is set."""
    began, let = threading.Event(), threading.Event()
    reclaim = world.executor.reclaim

    def slowly(id_: str, generation: int) -> None:
        began.set()
        let.wait(10.0)
        reclaim(id_, generation)

    world.executor.reclaim = slowly  # type: ignore[method-assign]
    world.runner.controller.queries.claims.retain = 0.0
    first = make_state(1)
    world.commit(first)
    world.settle()
    world.commit(emptied(2))
    for _ in range(200):
        world.runner.tick()
        if began.wait(0.005):
            break
    assert began.is_set()
    world.executor.log.clear()
    return first, let


def test_a_rollback_waits_for_the_end_of_a_removal(world: World) -> None:
    first, let = dropped_and_being_removed(world)
    world.commit(replace(first, serial=3))
    for _ in range(5):
        world.runner.tick()
        threading.Event().wait(0.005)
    assert world.executor.log == []
    assert {d.condition for d in world.runner.controller.decisions.values()} == {"starting"}
    let.set()
    world.settle()
    log = world.executor.log
    assert sorted(what for what, _ in log) == ["reclaim", "reclaim", "start", "start"]
    for address in (ORDERS, SINK):
        removed = log.index(("reclaim", f"{first.resources[address].id} g1"))
        assert [what for what, name in log[removed:] if str(address) in name] == ["start"]
    assert not world.runner.controller.busy


@pytest.mark.parametrize("begun", ["being removed", "removed", "removed before the runner"])
def test_a_rollback_does_not_restart_a_query_whose_storage_was_removed(world: World, begun: str) -> None:
    first, let = dropped_and_being_removed(world)
    world.executor.missing = lambda description: (
        (Diagnostic(code="MZ161", summary="gone", detail="x"),) if description.generation == 1 else ()
    )
    if begun != "being removed":
        let.set()
        world.settle()
        assert world.store.read_journal("local") == []
    if begun == "removed before the runner":
        world.store.leases.renew(world.lease, released=True)
        world.new_runner()
    world.commit(replace(first, serial=3))
    world.runner.tick()
    let.set()
    world.settle()
    seen = world.settle().observations
    assert {(o.condition, o.error_code) for o in seen.values()} == {("rejected", "MZ161")}
    assert "was dropped, and unclaimed storage is removed after a while" in (seen[SINK].error or "")
    assert world.executor.running() == {}
    # The fix of the error works: a new generation starts.
    world.commit(second_generation(make_state(4)))
    world.settle()
    assert set(world.executor.running()) == {ORDERS, SINK}


def test_a_query_claimed_again_without_its_storage_does_not_start_over(world: World) -> None:
    first = make_state(1)
    world.commit(first)
    world.settle()
    world.commit(emptied(2))
    world.settle()
    world.executor.missing = lambda description: (Diagnostic(code="MZ161", summary="gone", detail="x"),)
    world.commit(replace(first, serial=3))
    world.settle()
    assert {o.error_code for o in world.settle().observations.values()} == {"MZ161"}
    # A query that has never run may start.
    world.commit(emptied(4))
    world.commit(made_again(5))
    world.settle()
    assert set(world.executor.running()) == {ORDERS, SINK}


def test_two_queries_that_swap_names_keep_their_checkpoints(world: World) -> None:
    world.commit(two_sinks())
    world.settle()
    assert ids_by_address(world) == {"orders_out": "o", "other": "o2"}
    world.commit(rename(two_sinks(), 2, orders_out="other", other="orders_out"))
    status = world.settle()
    assert ids_by_address(world) == {"orders_out": "o2", "other": "o"}
    assert {o.condition for o in status.observations.values()} == {"running"}
    assert world.store.read_journal("local") == []


def test_a_resource_declared_again_does_not_inherit_the_former_query(
    world: World,
) -> None:
    world.commit(make_state(1))
    world.settle()
    again = make_state(2)
    record = replace(again.resources[SINK], id="fresh")  # forgotten and applied again between two rounds
    world.executor.log.clear()
    world.commit(replace(again, resources={**again.resources, SINK: record}))
    world.settle()
    assert [what for what, _ in world.executor.log] == ["stop", "start"]
    assert ids_by_address(world) == {"orders_out": "fresh"}
    assert [entry.id for entry in world.store.read_journal("local")] == ["o"]


def made_again(serial: int) -> State:
    """The same resources, dropped and created again under the same names. Only their ids differ."""
    state = make_state(serial)
    ids = {ORDERS: "s2", SINK: "o2"}
    resources = {a: replace(r, id=ids.get(a, r.id)) for a, r in state.resources.items()}
    assert {a: r.digest for a, r in resources.items()} == {
        a: digest_of(r, resources) if a in ids else r.digest for a, r in resources.items()
    }
    return replace(state, resources=resources)


def emptied(serial: int) -> State:
    return replace(make_state(serial), resources={})


def pause_all(state: State) -> State:
    return replace(state, resources={a: replace(r, override="paused") for a, r in state.resources.items()})


def test_a_paused_query_reports_its_last_step(world: World) -> None:
    world.commit(make_state(1))
    world.settle()
    for name, report in world.executor._reports.items():
        world.executor._reports[name] = replace(report, step=4)
    world.settle()
    world.commit(pause_all(make_state(2)))
    seen = world.settle().observations
    assert {(o.condition, o.run_id, o.step) for o in seen.values()} == {("paused", None, 4)}


@pytest.mark.parametrize("paused", [True, False])
def test_a_query_dropped_and_declared_again_between_rounds_is_a_new_query(world: World, paused: bool) -> None:
    """Both serials come while the runner is down, or between two rounds while the queries are paused."""
    world.commit(make_state(1))
    world.settle()
    if paused:
        world.commit(pause_all(make_state(2)))
        world.settle()
    else:
        world.executor.close()
        world.store.leases.renew(world.lease, released=True)
    world.commit(emptied(3))
    world.commit(pause_all(made_again(4)) if paused else made_again(4))
    if not paused:
        world.new_runner()
    world.settle()
    if paused:
        assert world.store.read_accepted("local") == {}
        world.commit(made_again(5))
        world.settle()
    assert {d.id for d in world.store.read_accepted("local").values()} == {"s2", "o2"}
    assert [entry.id for entry in world.store.read_journal("local")] == ["o", "s"]
    # Its storage is lost, which the runner now notices.
    world.executor.missing = lambda description: (Diagnostic(code="MZ161", summary="gone"),)
    world.executor.fail_query(world.executor.running()[ORDERS].name, "boom")
    world.settle()
    world.now += 10.0
    assert world.settle().observations[ORDERS].error_code == "MZ161"


def test_failures_of_a_former_resource_do_not_count_for_its_name(world: World) -> None:
    world.runner.controller.queries.backoff = Retries(budget=1)
    world.executor.fail_start = lambda description: "boom" if description.id == "s" else None
    world.commit(make_state(1))
    world.settle()
    assert "Given up" in (world.settle().observations[ORDERS].error or "")
    world.commit(emptied(2))
    world.commit(made_again(3))
    assert world.settle().observations[ORDERS].condition == "running"


def test_storage_of_a_former_resource_stays_until_its_query_has_stopped(world: World) -> None:
    world.commit(make_state(1))
    world.settle()
    world.runner.controller.queries.claims.retain = 0.0
    stopping, let = threading.Event(), threading.Event()
    stop = world.executor.stop

    def slowly(name: QueryName) -> None:
        stopping.set()
        let.wait(10.0)
        stop(name)

    world.executor.stop = slowly  # type: ignore[method-assign]
    world.commit(made_again(2))
    world.runner.tick()
    assert stopping.wait(10.0)
    for _ in range(3):
        world.runner.tick()
    assert world.store.read_journal("local") == []
    let.set()
    world.settle()
    assert {d.id for d in world.store.read_accepted("local").values()} == {"s2", "o2"}


def test_the_next_runner_restarts_nothing_and_writes_nothing_twice(world: World) -> None:
    """The next runner may have a later version, because records have the query's id from the beginning."""
    world.commit(make_state(1))
    before = world.settle().observations
    written = world.store.backend.read("status/local.accepted.json")
    world.executor.log.clear()
    world.store.leases.renew(world.lease, released=True)
    world.new_runner()
    after = world.settle().observations
    assert {a: o.run_id for a, o in after.items()} == {a: o.run_id for a, o in before.items()}
    assert world.executor.log == []
    assert world.store.backend.read("status/local.accepted.json") == written


def test_sources_start_before_sinks_and_larger_lags_go_first(world: World) -> None:
    state = make_state(1)
    resources = dict(state.resources)
    for kind, model in (("source", ORDERS), ("sink", SINK)):
        for name in ("a", "b", "z"):
            address = Address(kind, name)
            resources[address] = replace(resources[model], address=address, id=f"{kind}-{name}")
    world.commit(replace(state, resources=resources))
    status = world.settle()
    behind = {Address("source", "z"): 7, Address("sink", "b"): 5, Address("source", "orders"): 900}
    seen = {a: replace(one, lag=behind.get(a)) for a, one in status.observations.items()}
    world.store.write_status(replace(status, observations=seen))
    world.store.leases.renew(world.lease, released=True)
    world.executor = InMemoryExecutor("shop")
    world.pool = ThreadPoolExecutor(1)
    world.new_runner()
    world.settle()
    assert starts(world) == [
        *("source.orders", "source.z", "source.a", "source.b"),
        *("sink.b", "sink.a", "sink.orders_out", "sink.z"),
    ]


def test_storage_of_a_forgotten_query_stays(world: World) -> None:
    world.commit(make_state(1))
    world.settle()
    without = make_state(2)
    resources = {a: r for a, r in without.resources.items() if a != SINK}
    world.commit(replace(without, resources=resources, forgotten={"o": Forgotten(SINK, 1)}))
    world.settle()
    assert set(world.executor.running()) == {ORDERS}
    assert world.store.read_journal("local") == []


def test_the_status_shows_a_batch_that_does_not_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.commit(make_state(1))
    assert world.settle().observations[SINK].quiet_since is None
    reports = world.executor.reports
    heard = 1_000_000.0
    monkeypatch.setattr(
        world.executor, "reports", lambda: [replace(r, last_progress_at=heard) for r in reports()]
    )
    world.now += 5.0
    assert world.settle().observations[SINK].quiet_since == heard
    heard = time.time()
    world.now += 5.0
    assert world.settle().observations[SINK].quiet_since is None


def test_a_query_without_its_checkpoint_does_not_start_over(world: World) -> None:
    world.commit(make_state(1))
    world.settle()
    gone = Diagnostic(code="MZ161", summary="gone")
    world.executor.missing = lambda description: (gone,) if description.id == "s" else ()
    world.executor.fail_query(world.executor.running()[ORDERS].name, "boom")
    world.settle()
    world.now += 10.0
    seen = world.settle().observations[ORDERS]
    assert (seen.condition, seen.error_code) == ("failed", "MZ161")
    # Neither the next runner, a change nor a new name starts it over; a new generation may start.
    world.store.leases.renew(world.lease, released=True)
    world.new_runner()
    world.commit(make_state(2, broker="b:1"))
    world.now += 10.0
    seen = world.settle().observations[ORDERS]
    assert (seen.error_code, ORDERS in world.executor.running()) == ("MZ161", False)
    alone = make_state(3, broker="b:1")
    alone = replace(alone, resources={a: r for a, r in alone.resources.items() if a.kind != "sink"})
    world.commit(rename(alone, 3, kind="source", orders="renamed"))
    world.now += 10.0
    (seen,) = (o for a, o in world.settle().observations.items() if a.name == "renamed")
    assert seen.error_code == "MZ161"
    state = make_state(4, broker="b:1")
    anew = replace(state.resources[ORDERS], id="anew")
    world.commit(replace(state, resources={**state.resources, ORDERS: anew}))
    world.now += 10.0
    assert world.settle().observations[ORDERS].condition == "running"


def test_a_prepared_export_of_an_unwanted_sink_is_cancelled(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner is killed right after it has prepared the sink, and the sink is removed meanwhile."""
    world.commit(make_state(1))

    def killed(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(world.runner.controller, "create_exports", killed)
    with pytest.raises(KeyboardInterrupt):
        world.settle()
    assert [entry.id for entry in world.store.read_prepared("local")] == ["o"]
    without = make_state(2)
    world.commit(replace(without, resources={a: r for a, r in without.resources.items() if a != SINK}))
    world.store.leases.renew(world.lease, released=True)
    world.new_runner()
    world.settle()
    assert world.runner.controller.collection("s").holds == {}
    assert world.store.read_prepared("local") == []


def test_the_status_names_foreign_queries(world: World) -> None:
    world.commit(make_state(1))
    assert world.settle().foreign == ()
    world.executor.foreign.append("by_hand")
    assert world.settle().foreign == ("by_hand",)
    world.executor.foreign.clear()
    assert world.settle().foreign == ()


def test_there_is_no_drift_while_the_engine_opens(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner that has just restarted, whose queries haven't started yet."""
    from mzplan.plan.drift import drift_between

    monkeypatch.setattr(world.executor, "is_open", lambda: False)
    world.commit(make_state(1))
    status = world.settle()
    assert {o.condition for o in status.observations.values()} == {"starting"}
    assert drift_between(world.committed, {"local": status}, {"local": True}) == ()


def test_a_sample_of_each_query_is_recorded_each_minute(tmp_path: Path) -> None:
    """For an hour, across runners. A store that refuses a sample stops no query."""
    world = World(tmp_path)
    world.commit(make_state(1))
    world.settle()
    assert world.store.read_recent("local") == {}
    for _ in range(70):
        world.now += 61
        world.runner.tick()
    kept = world.store.read_recent("local")
    assert set(kept) == {ORDERS, SINK} and len(kept[ORDERS]) <= 60
    assert {sample[3] for sample in kept[ORDERS]} <= {"running", "starting"}


def test_samples_cover_the_last_hour_of_existing_queries() -> None:
    one = Observation(
        address=ORDERS, generation=1, digest="", wanted_digest="", wanted_generation=1, condition="running"
    )
    seen = {ORDERS: one}
    recent: Recent = {}
    for minute in range(100):
        recent = with_samples(recent, seen, now=6000.0 + 60 * minute)
    assert len(recent[ORDERS]) == 60 and recent[ORDERS][0][0] == 6000 + 60 * 40
    assert [s[0] for s in with_samples(recent, seen, now=6000.0 + 60 * 158)[ORDERS]] == [11880, 11940, 15480]
    assert with_samples(recent, {}, now=12_000.0) == {}


@pytest.mark.parametrize("paused", [False, True])
def test_sinks_of_a_replaced_source_wait_until_it_has_started(world: World, paused: bool) -> None:
    """The new generation may be rejected. No target may have been emptied by then."""
    world.commit(make_state(1))
    before = world.settle().observations
    world.executor.log.clear()
    lost = Diagnostic(code="MZ292", summary="200 of 300 records can't be read again")
    world.executor.check_result = lambda d: (
        CheckResult(diagnostics=(lost,)) if d.generation == 2 and d.address == ORDERS else CheckResult()
    )
    second = second_generation(make_state(2))
    resources = dict(second.resources)
    if paused:
        resources[SINK] = replace(resources[SINK], override="paused")
    world.commit(replace(second, resources=resources))
    seen = world.settle().observations
    assert (seen[ORDERS].condition, seen[ORDERS].run_id) == ("rejected", before[ORDERS].run_id)
    assert seen[SINK].held == "waits for generation 2 of source.orders to start"
    assert seen[SINK].condition == ("paused" if paused else "running")
    assert starts(world) == []
    # After a restart of the runner, the former sink still runs.
    rejects, world.executor = world.executor.check_result, InMemoryExecutor("shop")
    world.executor.check_result = rejects
    world.store.leases.renew(world.lease, released=True)
    world.new_runner()
    assert world.settle().observations[SINK].generation == (2 if paused else 1)
    # Once the new generation starts, the sink follows its source.
    world.executor.check_result = lambda d: CheckResult()
    world.now += 100.0
    seen = world.settle().observations
    assert (seen[ORDERS].generation, seen[SINK].generation, seen[SINK].held) == (2, 2, None)
    assert seen[SINK].condition == ("paused" if paused else "running")
