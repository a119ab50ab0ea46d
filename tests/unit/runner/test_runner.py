"""The runner's protocol against the in-memory executor: no Spark, no server."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mzplan.controller.executor import CheckResult, QueryName
from mzplan.controller.jobs import Jobs
from mzplan.controller.memory import InMemoryExecutor
from mzplan.controller.terms import LagSteps
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, ExitCode
from mzplan.model.observed import Status
from mzplan.model.resources import Retries
from mzplan.model.state import Canary, State
from mzplan.schema.description import Description, describe, digest_of
from mzplan.secrets.references import Secrets
from mzplan.store.backends.local import LocalBackend
from mzplan.store.journal import Prepared
from mzplan.store.limits import write_limit
from mzplan.store.proposals import Answer
from mzplan.store.store import Store
from tests.runners import runner_in_memory
from tests.unit.cli_runner import rejecting
from tests.unit.small_projects import commit, console, kafka, project, source

KAFKA = Address("connection", "k")
ORDERS = Address("source", "orders")
SINK = Address("sink", "orders_out")


def make_state(serial: int, broker: str = "a:1", **more: Any) -> State:
    """One connection, one source, one console sink."""
    orders = source(columns="id BIGINT", **{"topic": "t", **more})
    state = commit(project(kafka(brokers=[broker]), orders, console("orders_out", "orders"), warehouse="w"))
    ids = {KAFKA: "c", ORDERS: "s", SINK: "o"}
    resources = {a: replace(one, id=ids[a], because=None) for a, one in state.resources.items()}
    return replace(state, serial=serial, lineage="l", settings=None, resources=resources)


class HookedExecutor(InMemoryExecutor):
    """Calls `before` with each start, stop, release and removal; records the epoch of each start."""

    def __init__(self, project: str) -> None:
        super().__init__(project)
        self.before: Callable[[str, Address | str], None] = lambda action, subject: None
        self.epochs: dict[Address, int] = {}

    def start(self, description: Description, secrets: Secrets, epoch: int) -> None:
        self.before("start", description.address)
        self.epochs[description.address] = epoch
        super().start(description, secrets, epoch)

    def stop(self, name: QueryName) -> None:
        self.before("stop", name.address)
        super().stop(name)

    def release_upstream(self, id_: str, generation: int) -> None:
        self.before("release", id_)

    def reclaim(self, id_: str, generation: int) -> None:
        self.before("reclaim", id_)
        super().reclaim(id_, generation)


class Blocked:
    """Blocks one kind of action, of some or all addresses, until the test sets `let`."""

    def __init__(self, executor: HookedExecutor, action: str, *addresses: Address) -> None:
        self.action, self.addresses = action, addresses
        self.let, self.begun = threading.Event(), list[Address | str]()
        executor.before = self

    def __call__(self, action: str, subject: Address | str) -> None:
        if action == self.action and (not self.addresses or subject in self.addresses):
            self.begun.append(subject)
            self.let.wait(30.0)


class World:
    """A store, an executor and a runner with a manual clock."""

    def __init__(self, folder: Path):
        self.store = Store(LocalBackend(folder), "shop")
        self.executor = HookedExecutor("shop")
        self.now = 0.0
        self.jobs = Jobs()
        self.committed = State(project="shop")
        self.new_runner()

    def new_runner(self) -> None:
        lease = self.store.leases.acquire("local", f"test-{self.now}")
        assert lease is not None
        self.lease = lease
        self.runner = runner_in_memory(self.store, self.executor, lease, self.jobs, clock=lambda: self.now)

    def next_runner(self, executor: HookedExecutor | None = None) -> None:
        """Release the lease, and let another runner lead, perhaps with an executor of its own."""
        self.executor = executor or self.executor
        self.store.leases.renew(self.lease, released=True)
        self.new_runner()

    def commit(self, state: State) -> None:
        self.store.commit(state, self.committed)
        self.committed = state

    def rounds(self, number: int = 20) -> None:
        """Do rounds while some work doesn't end."""
        for _ in range(number):
            self.runner.tick()
            threading.Event().wait(0.005)

    def until(self, holds: Callable[[], object]) -> None:
        """Do rounds until this holds."""
        deadline = time.monotonic() + 30.0
        while not holds():
            assert time.monotonic() < deadline
            self.rounds(1)

    def settle(self) -> Status:
        """Do rounds until no work is under way."""
        for _ in range(200):
            busy = self.runner.tick()
            if not busy:
                break
            threading.Event().wait(0.005)
        self.runner.tick()
        return self.status()

    def later(self, seconds: float) -> Status:
        """Settle after these seconds."""
        self.now += seconds
        return self.settle()

    def apply(self, state: State) -> Status:
        """Commit the state and settle."""
        self.commit(state)
        return self.settle()

    def answer(self, state: State, *queries: Address) -> Answer:
        """Propose these queries of the state, settle, and return the answer."""
        asked = tuple(describe(state.resources[query], state.resources) for query in queries)
        proposal = self.store.proposals.make("local", asked)
        self.settle()
        answer = self.store.proposals.read_answer(proposal)
        assert answer is not None
        return answer

    def status(self) -> Status:
        status = self.store.read_status("local")
        assert status is not None
        return status

    def fail(self, address: Address, error: str = "boom") -> Status:
        """Let the running query fail, and settle."""
        self.executor.fail_query(self.executor.running()[address].name, error)
        return self.settle()

    def progress(self, address: Address, **seen: Any) -> None:
        """Set these fields of the running query's report."""
        self.executor.progress(self.executor.running()[address].name, **seen)

    def reclaimed(self) -> list[str]:
        return sorted(name for what, name in self.executor.log if what == "reclaim")

    def journal(self) -> list[tuple[str, int]]:
        """Return the dropped storage that is still there."""
        return [entry.place for entry in self.store.read_journal("local")]


def edited(state: State, *queries: Address, **fields: Any) -> State:
    """Return the state with these fields of these queries."""
    resources = dict(state.resources)
    for query in queries:
        made = replace(resources[query], **fields)
        resources[query] = replace(made, digest=digest_of(made, {**resources, query: made}))
    return replace(state, resources=resources)


def second_generation(state: State) -> State:
    """Return the state with new generations of both queries."""
    return edited(state, ORDERS, SINK, generation=2)


def with_copies(state: State, query: Address, *names: str, **fields: Any) -> State:
    """Return the state with more queries like this one."""
    resources = dict(state.resources)
    for name in names:
        address, id_ = Address(query.kind, name), f"{query.kind}-{name}"
        made = replace(resources[query], address=address, id=id_, **fields)
        resources[address] = replace(made, digest=digest_of(made, resources))
    return replace(state, resources=resources)


def without(state: State, *addresses: Address) -> State:
    return replace(state, resources={a: r for a, r in state.resources.items() if a not in addresses})


def emptied(serial: int) -> State:
    return replace(make_state(serial), resources={})


def pause_all(state: State) -> State:
    return edited(state, ORDERS, SINK, override="paused")


def refusing(
    code: str, refuses: Callable[[Description], bool] = lambda description: True, **more: Any
) -> Callable[[Description], CheckResult]:
    """Return a check that refuses these descriptions."""
    problem = Diagnostic(code=code, summary="no", **more)
    return lambda one: CheckResult(diagnostics=(problem,) if refuses(one) else ())


def lost(*ids: str, generation: int = 0) -> Callable[[Description], tuple[Diagnostic, ...]]:
    """Return a check that finds the storage of these ids and of this generation gone (default: all)."""
    gone = Diagnostic(code="MZ161", summary="gone", detail="Gone.")
    return lambda one: (
        (gone,) if (not ids or one.id in ids) and (not generation or one.generation == generation) else ()
    )


def starts(world: World) -> list[str]:
    return [name.split(":")[2] for what, name in world.executor.log if what == "start"]


def test_each_serial_restarts_only_the_queries_that_it_changes(world: World) -> None:
    before = world.apply(make_state(1)).observations
    assert {a: o.condition for a, o in before.items()} == {ORDERS: "running", SINK: "running"}
    world.executor.log.clear()
    after = world.apply(make_state(2, broker="b:1")).observations
    assert starts(world) == ["source.orders"]
    assert after[ORDERS].run_id != before[ORDERS].run_id
    assert after[ORDERS].query_id == before[ORDERS].query_id
    assert after[SINK].run_id == before[SINK].run_id
    # The next runner restarts nothing and writes nothing twice. It may have a later version, because records
    # have the query's id from the beginning.
    written = world.store.backend.read("status/local.accepted.json")
    world.executor.log.clear()
    world.next_runner()
    seen = world.settle().observations
    assert {a: o.run_id for a, o in seen.items()} == {a: o.run_id for a, o in after.items()}
    assert world.executor.log == []
    assert world.store.backend.read("status/local.accepted.json") == written
    # A change of retention restarts nothing either.
    seen = world.apply(make_state(3, broker="b:1", retention={"steps": 5})).observations
    assert {a: o.run_id for a, o in seen.items()} == {a: o.run_id for a, o in after.items()}
    assert world.runner.controller.frontiers.by_id["s"].policy == LagSteps(steps=5)
    # A deleted query is stopped and forgotten.
    assert set(world.apply(without(make_state(4, broker="b:1"), SINK)).observations) == {ORDERS}
    assert set(world.executor.running()) == set(world.store.read_accepted("local")) == {ORDERS}


def test_only_attempts_at_a_new_description_count_for_it(world: World) -> None:
    """Even if the digest is the same, and while an earlier attempt is under way."""
    world.executor.fail_start = lambda d: "no" if d.id == "s" and "on_upstream_change" not in d.body else None
    slow = Blocked(world.executor, "start", ORDERS)
    world.commit(make_state(1))
    world.until(lambda: slow.begun)
    fixed = make_state(2, on_upstream_change="reset-earliest")
    assert fixed.resources[ORDERS].digest == world.committed.resources[ORDERS].digest
    world.commit(fixed)
    world.runner.tick()
    seen = world.status().observations[ORDERS]
    assert (world.status().serial, seen.condition, seen.error) == (2, "starting", None)
    slow.let.set()
    assert world.settle().observations[ORDERS].condition == "running"


@pytest.mark.parametrize("parallelism", [None, 1])
def test_parallelism_limits_the_starts_at_once(world: World, parallelism: int | None) -> None:
    both = threading.Barrier(2)

    def slow(action: str, subject: Address | str) -> None:
        if action == "start":
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.3 if parallelism else 20.0)

    world.executor.before = slow
    write_limit(world.store, 1, parallelism)
    status = world.apply(make_state(1))
    assert {o.condition for o in status.observations.values()} == {"running"}
    assert both.broken == bool(parallelism)  # it breaks unless two starts meet
    # A limit for another serial, or a damaged limit, is ignored.
    world.apply(make_state(2))
    assert world.runner.controller.parameters.parallelism == 8
    world.store.backend.write("parallelism.json", b"{")
    assert world.apply(make_state(3)).serial == 3


def test_a_rejected_change_never_stops_the_old_query(world: World) -> None:
    before = world.apply(make_state(1)).observations
    world.executor.log.clear()
    refuse = refusing("MZ050", lambda one: "b:1" in str(one.connections))
    world.executor.check_result = refuse
    seen = world.apply(make_state(2, broker="b:1")).observations[ORDERS]
    assert world.executor.log == []
    assert (seen.condition, seen.run_id, seen.error_code) == ("rejected", before[ORDERS].run_id, "MZ050")
    assert seen.digest != seen.wanted_digest
    # A new runner continues with the accepted description, and reports the rejection.
    world.next_runner(HookedExecutor("shop"))
    world.executor.check_result = refuse
    seen = world.settle().observations[ORDERS]
    assert (seen.condition, seen.digest) == ("rejected", before[ORDERS].digest)
    # The cause disappears, and the query converges by itself.
    world.executor.check_result = lambda d: CheckResult()
    assert world.later(100.0).observations[ORDERS].condition == "running"


@pytest.mark.parametrize("begins", [False, True])
def test_a_failed_change_falls_back_to_the_accepted_description(world: World, begins: bool) -> None:
    """Whether it fails to start, or before its first trigger. It is tried again after a longer wait."""
    first, second = (make_state(1), make_state(2, broker="b:1"))
    old, new = (state.resources[ORDERS].digest for state in (first, second))
    world.apply(first)
    world.commit(second)
    tries: list[float] = []

    def check(description: Description) -> CheckResult:
        tries.extend([world.now] if description.digest == new else [])
        return CheckResult()

    world.executor.check_result = check
    if begins:
        world.executor.triggers_at_once = False
        world.until(lambda: any(report.name.digest == new for report in world.executor.running().values()))
        world.executor.triggers_at_once = True
        world.fail(ORDERS, "boom.")
    else:
        world.executor.fail_start = lambda d: "boom" if d.digest == new else None
    for passed in (0.0, 1.0, 1.0):
        seen = world.later(passed).observations[ORDERS]
        assert (seen.condition, seen.error) == ("failed", "boom.")
        assert world.executor.running()[ORDERS].name.digest == old
    assert tries == [0.0]
    world.later(30.0)
    assert tries == [0.0, 32.0]


def test_an_address_never_has_two_running_queries(alive: World) -> None:
    other = make_state(2, broker="b:1")
    alive.executor.start(describe(other.resources[ORDERS], other.resources), Secrets("."), 1)
    alive.settle()
    (running,) = (one for one in alive.executor.reports() if one.active and one.name.address == ORDERS)
    assert running.name.digest == make_state(1).resources[ORDERS].digest


def test_a_proposal_is_answered_with_every_problem(world: World) -> None:
    check, _ = rejecting(str(ORDERS), str(SINK), code="MZ043", exit_code=ExitCode.REFUSED)
    world.executor.check_result = lambda one: replace(check(one), upstream={"cluster_id": "x"})
    other = world.store.proposals.make("elsewhere", ())
    answer = world.answer(make_state(1), ORDERS, SINK)
    assert [(d.address, d.exit_code) for d in answer.diagnostics] == [(ORDERS, 7), (SINK, 7)]
    assert answer.upstreams[ORDERS] == {"cluster_id": "x"}
    assert world.store.proposals.read_answer(other) is None
    world.store.proposals.withdraw(answer.id)
    assert world.store.proposals.open("local") == []
    world.store.proposals.answer(answer)  # too late, so it is removed
    assert world.store.proposals.open("local") == []
    assert world.store.backend.list("proposals/") == [f"proposals/{other.id}.json"]


def test_only_committed_descriptions_create_targets(world: World) -> None:
    """A proposal, or an accepted description, must not create anything."""
    state = make_state(1)

    def done_for_sink() -> list[str]:
        found = [what for what, name in world.executor.log if f":{SINK}:" in name]
        world.executor.log.clear()
        return found

    world.executor.check_result = lambda one: CheckResult(must_create=one.address == SINK)
    assert (world.answer(state, SINK).diagnostics, done_for_sink()) == ((), [])
    world.apply(state)
    assert done_for_sink() == ["prepare", "start"]
    # A query that waits for a canary runs its accepted description, which isn't a commit.
    canary = Canary(address=ORDERS, serial=2, holds=(SINK,), wait=60.0)
    world.executor.triggers_at_once = False
    world.commit(replace(make_state(2, "b:1"), canaries=(canary,)))
    world.runner.tick()
    world.executor.fail_query(QueryName.of("shop", world.store.read_accepted("local")[SINK]), "gone")
    done: list[str] = []
    for _ in range(500):  # the canary never starts, so the runner never settles
        world.now += 0.5
        world.rounds(1)
        done += done_for_sink()
        if "start" in done:
            break
    assert done == ["stop", "start"]


# --- dropped and renamed queries, and their storage


def test_dropped_storage_is_journalled_kept_and_then_removed(alive: World) -> None:
    alive.apply(second_generation(make_state(2, topic="u")))
    assert (alive.journal(), alive.reclaimed()) == ([("o", 1), ("s", 1)], [])
    alive.runner.controller.queries.claims.retain = 0.0
    alive.settle()
    alive.settle()
    assert (alive.journal(), alive.reclaimed()) == ([], ["o g1", "s g1"])


def test_dropped_storage_stays_if_it_is_claimed_again_or_still_read(world: World) -> None:
    first = make_state(1)
    world.apply(first)
    world.runner.controller.queries.claims.retain = 0.0
    # The sink's change is rejected, so its old query still reads the source's old collection.
    world.executor.check_result = refusing("MZ052", lambda d: d.address == SINK and d.generation == 2)
    world.commit(second_generation(make_state(2, topic="u")))
    for _ in range(3):
        world.settle()
    assert (world.journal(), world.reclaimed()) == ([("s", 1)], [])
    # Rolled back: the state claims it again.
    world.commit(replace(first, serial=3))
    for _ in range(3):
        world.settle()
    assert ("s", 1) not in world.journal() and "s g1" not in world.reclaimed()


def rename(state: State, serial: int, *, kind: str = "sink", **names: str) -> State:
    """Return the state with renamed sinks, which keep their ids."""
    resources = dict(state.resources)
    moved = {Address(kind, new): resources.pop(Address(kind, old)) for old, new in names.items()}
    resources |= {address: replace(record, address=address) for address, record in moved.items()}
    return replace(state, serial=serial, resources=resources)


def sink_ids(world: World) -> dict[str, str]:
    """Return the storage that each running sink resumes from, by its accepted description."""
    accepted = world.store.read_accepted("local")
    return {a.name: d.id for a, d in accepted.items() if a.kind == "sink"}


def test_renamed_queries_stop_before_they_resume_from_their_own_checkpoints(world: World) -> None:
    state = with_copies(make_state(1), SINK, "other")  # two sinks whose digests are equal
    world.apply(state)
    world.executor.log.clear()
    renamed = rename(state, 2, orders_out="new_name")
    status = world.apply(renamed)
    assert [(what, name.split(":")[2]) for what, name in world.executor.log] == [
        ("stop", "sink.orders_out"),
        ("start", "sink.new_name"),
    ]
    assert {o.condition for o in status.observations.values()} == {"running"}
    assert sink_ids(world) == {"new_name": "o", "other": "sink-other"}
    # Two queries swap their names.
    status = world.apply(rename(renamed, 3, new_name="other", other="new_name"))
    assert sink_ids(world) == {"new_name": "sink-other", "other": "o"}
    assert {o.condition for o in status.observations.values()} == {"running"}
    assert world.journal() == []  # their storage stays


def dropped_and_being_removed(world: World) -> tuple[State, threading.Event]:
    """Both queries have run, are dropped, and their storage is being removed until the event is set."""
    world.runner.controller.queries.claims.retain = 0.0
    first = make_state(1)
    world.apply(first)
    removal = Blocked(world.executor, "reclaim")
    world.commit(emptied(2))
    world.until(lambda: removal.begun)
    world.executor.log.clear()
    return first, removal.let


def test_a_rollback_waits_for_the_end_of_a_removal(world: World) -> None:
    first, let = dropped_and_being_removed(world)
    world.commit(replace(first, serial=3))
    world.rounds(5)
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


@pytest.mark.parametrize("begun", ["being removed", "removed before the runner"])
def test_a_rollback_does_not_restart_a_query_whose_storage_was_removed(world: World, begun: str) -> None:
    first, let = dropped_and_being_removed(world)
    world.executor.missing = lost(generation=1)
    if begun == "removed before the runner":
        let.set()
        world.settle()
        assert world.journal() == []
        world.next_runner()
    world.commit(replace(first, serial=3))
    world.runner.tick()
    let.set()
    world.settle()
    seen = world.settle().observations
    assert {(o.condition, o.error_code) for o in seen.values()} == {("rejected", "MZ161")}
    assert "was dropped, and unclaimed storage is removed after a while" in (seen[SINK].error or "")
    assert world.executor.running() == {}
    # The fix of the error works: a new generation starts.
    world.apply(second_generation(make_state(4)))
    assert set(world.executor.running()) == {ORDERS, SINK}
    # Nor does it start over if its storage is lost while it is kept.
    world.runner.controller.queries.claims.retain = 1000.0
    world.apply(emptied(5))
    world.executor.missing = lost()
    world.apply(second_generation(make_state(6)))
    assert {o.error_code for o in world.settle().observations.values()} == {"MZ161"}


def made_again(serial: int) -> State:
    """The same resources, dropped and created again under the same names. Only their ids differ."""
    state = make_state(serial)
    ids = {KAFKA: "c", ORDERS: "s2", SINK: "o2"}
    return replace(state, resources={a: replace(r, id=ids[a]) for a, r in state.resources.items()})


@pytest.mark.parametrize("paused", [True, False])
def test_a_query_dropped_and_declared_again_between_rounds_is_a_new_query(alive: World, paused: bool) -> None:
    """Both serials come while the runner is down, or between two rounds while the queries are paused."""
    if paused:
        alive.apply(pause_all(make_state(2)))
        alive.commit(emptied(3))
        alive.apply(pause_all(made_again(4)))
        assert alive.store.read_accepted("local") == {}
        alive.commit(made_again(5))
    else:
        alive.executor.close()
        alive.commit(emptied(3))
        alive.commit(made_again(4))
        alive.next_runner()
    alive.settle()
    assert {d.id for d in alive.store.read_accepted("local").values()} == {"s2", "o2"}
    assert alive.journal() == [("o", 1), ("s", 1)]
    # Its storage is lost, which the runner now notices.
    alive.executor.missing = lost()
    alive.fail(ORDERS)
    assert alive.later(10.0).observations[ORDERS].error_code == "MZ161"


def test_failures_of_a_former_resource_do_not_count_for_its_name(world: World) -> None:
    world.runner.controller.queries.backoff = Retries(budget=1)
    world.executor.fail_start = lambda description: "boom" if description.id == "s" else None
    world.apply(make_state(1))
    assert "Given up" in (world.settle().observations[ORDERS].error or "")
    world.commit(emptied(2))
    assert world.apply(made_again(3)).observations[ORDERS].condition == "running"


def test_storage_of_a_former_resource_stays_until_its_query_has_stopped(alive: World) -> None:
    alive.runner.controller.queries.claims.retain = 0.0
    stop = Blocked(alive.executor, "stop")
    alive.commit(made_again(2))
    alive.until(lambda: stop.begun)
    alive.rounds(3)
    assert alive.journal() == []
    stop.let.set()
    alive.settle()
    assert {d.id for d in alive.store.read_accepted("local").values()} == {"s2", "o2"}


def test_a_query_without_its_checkpoint_does_not_start_over(alive: World) -> None:
    alive.executor.missing = lost("s")
    alive.fail(ORDERS)

    def later(state: State | None = None, address: Address = ORDERS) -> tuple[str, str | None]:
        if state is not None:
            alive.commit(state)
        seen = alive.later(10.0).observations[address]
        return seen.condition, seen.error_code

    assert later() == ("failed", "MZ161")
    # Neither the next runner, a change nor a new name starts it over; a new generation may start.
    alive.next_runner()
    assert later(make_state(2, broker="b:1"))[1] == "MZ161" and ORDERS not in alive.executor.running()
    alone = without(make_state(3, broker="b:1"), SINK)
    renamed = rename(alone, 3, kind="source", orders="renamed")
    assert later(renamed, Address("source", "renamed"))[1] == "MZ161"
    assert later(edited(make_state(4, broker="b:1"), ORDERS, id="anew")) == ("running", None)


def test_an_export_that_an_earlier_version_prepared_is_forgotten(world: World) -> None:
    """Its runner was killed right after it prepared the sink. `state gc` would wait for it."""
    world.store.write_prepared("local", [Prepared(id="o", from_id="s", step=0)])
    world.next_runner()
    world.apply(without(make_state(1), SINK))
    assert world.runner.controller.frontiers.by_id["s"].holds == {}
    assert world.store.read_prepared("local") == []


# --- the order of starts


def test_sources_start_before_sinks_and_larger_lags_go_first(world: World) -> None:
    state = make_state(1)
    for query in (ORDERS, SINK):
        state = with_copies(state, query, "a", "b", "z")
    status = world.apply(state)
    behind = {Address("source", "z"): 7, Address("sink", "b"): 5, ORDERS: 900}
    seen = {a: replace(one, lag=behind.get(a)) for a, one in status.observations.items()}
    world.store.write_status(replace(status, observations=seen))
    world.jobs = Jobs(lambda kind: ThreadPoolExecutor(1))
    world.next_runner(HookedExecutor("shop"))
    world.settle()
    assert starts(world) == [
        *("source.orders", "source.z", "source.a", "source.b"),
        *("sink.b", "sink.a", "sink.orders_out", "sink.z"),
    ]


@pytest.mark.parametrize("paused", [False, True])
def test_sinks_of_a_replaced_source_wait_until_it_has_started(world: World, paused: bool) -> None:
    """The new generation may be rejected. No target may have been emptied by then."""
    before = world.apply(make_state(1)).observations
    world.executor.log.clear()
    refuse = refusing("MZ292", lambda d: d.generation == 2 and d.address == ORDERS)
    world.executor.check_result = refuse
    second = edited(second_generation(make_state(2)), SINK, override="paused" if paused else None)
    seen = world.apply(second).observations
    assert (seen[ORDERS].condition, seen[ORDERS].run_id) == ("rejected", before[ORDERS].run_id)
    assert seen[SINK].held == "waits for generation 2 of source.orders to start"
    assert seen[SINK].condition == ("paused" if paused else "running")
    assert starts(world) == []
    # After a restart of the runner, the former sink still runs.
    world.next_runner(HookedExecutor("shop"))
    world.executor.check_result = refuse
    assert world.settle().observations[SINK].generation == (2 if paused else 1)
    # Once the new generation starts, the sink follows its source.
    world.executor.check_result = lambda d: CheckResult()
    seen = world.later(100.0).observations
    assert (seen[ORDERS].generation, seen[SINK].generation, seen[SINK].held) == (2, 2, None)
    assert seen[SINK].condition == ("paused" if paused else "running")


# --- the status


def test_a_paused_query_reports_its_last_step(alive: World) -> None:
    for address in (ORDERS, SINK):
        alive.progress(address, step=4)
    alive.settle()
    seen = alive.apply(pause_all(make_state(2))).observations
    assert {(o.condition, o.run_id, o.step) for o in seen.values()} == {("paused", None, 4)}


def test_the_status_shows_a_batch_that_does_not_end_and_foreign_queries(world: World) -> None:
    assert world.apply(make_state(1)).observations[SINK].quiet_since is None
    for heard, quiet_since in ((1_000_000.0, 1_000_000.0), (time.time(), None)):
        world.progress(SINK, last_progress_at=heard)
        assert world.later(5.0).observations[SINK].quiet_since == quiet_since
    for names in (["by_hand"], []):
        world.executor.foreign[:] = names
        assert world.apply(make_state(world.committed.serial + 1)).foreign == tuple(names)


def test_a_sample_of_each_query_is_recorded_each_minute_for_an_hour(alive: World) -> None:
    assert alive.store.read_recent("local") == {}
    for _ in range(70):
        alive.now += 61
        alive.runner.tick()
    kept = alive.store.read_recent("local")
    assert set(kept) == {ORDERS, SINK} and len(kept[ORDERS]) <= 60
    assert {sample[3] for sample in kept[ORDERS]} <= {"running", "starting"}


def test_a_busy_runner_looks_for_proposals_only_now_and_then(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.settle()
    monkeypatch.setattr(type(world.store.backend), "idle_interval", 1000.0)
    lists: list[str] = []
    list_keys = world.store.backend.list
    monkeypatch.setattr(
        world.store.backend,
        "list",
        lambda prefix, after="": lists.append(prefix) or list_keys(prefix, after),  # type: ignore[func-returns-value]
    )
    slow = Blocked(world.executor, "start", ORDERS)
    world.commit(make_state(1))
    try:
        world.until(lambda: bool(slow.begun))
        lists.clear()
        world.rounds()
        assert world.runner.controller.busy and lists.count("proposals/") == 0
    finally:
        slow.let.set()
    world.settle()
    lists.clear()
    world.rounds()
    assert not world.runner.controller.busy and lists.count("proposals/") > 1
