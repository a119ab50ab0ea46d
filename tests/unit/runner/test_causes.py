"""The cause of a start: decided with the start, kept with its run, and shown in the Status."""

from __future__ import annotations

from dataclasses import replace

from mzplan.controller.runs import takeover
from mzplan.model.cause import Cause
from mzplan.model.observed import Status, Versions
from mzplan.model.state import Canary, ProjectStatus, QueryStatus, State
from mzplan.model.times import instant
from mzplan.render.status import render_status, status_to_json
from mzplan.store.formats import encode_lease
from mzplan.store.leases import new_lease
from tests.unit.runner.test_runner import ORDERS, SINK, World, make_state, refusing


def committed(serial: int, detail: str = "new", cause: str = "change", **more: object) -> State:
    """A state whose source has a cause."""
    state = make_state(serial, **more)  # type: ignore[arg-type]
    because = Cause(cause=cause, serial=serial, detail=detail)  # type: ignore[arg-type]
    return replace(
        state,
        resources={
            a: one if a.is_connection else replace(one, because=because) for a, one in state.resources.items()
        },
    )


def cause_of(status: Status) -> Cause:
    found = status.observations[ORDERS].started_because
    assert found is not None
    return found


def brief(status: Status) -> tuple[str, int, str]:
    found = cause_of(status)
    return found.cause, found.serial, found.detail


def test_a_commit_is_the_cause_of_the_starts_that_it_requires(world: World) -> None:
    first = world.apply(committed(1))
    assert brief(first) == ("change", 1, "new")
    assert instant(cause_of(first).at or "")
    moved = world.apply(committed(2, "brokers[0] a:1 → b:1", broker="b:1"))
    assert brief(moved) == ("change", 2, "brokers[0] a:1 → b:1")
    world.apply(committed(3, "paused by hand", "hand", broker="b:1", paused=True))
    status = world.apply(committed(4, "resumed by hand", "hand", broker="b:1"))
    assert brief(status) == ("hand", 4, "resumed by hand")
    query = QueryStatus(resource=world.committed.resources[ORDERS], observation=status.observations[ORDERS])
    shown = ProjectStatus(serial=4, instances=(), queries=(query,))
    (found,) = status_to_json(shown)["queries"]
    assert found["started_because"] == {
        "cause": "hand",
        "serial": 4,
        "through": None,
        "detail": "resumed by hand",
        "at": cause_of(status).at,
    }
    assert found["starts"] == {"change": 2, "hand": 1}
    assert "source.orders: started for serial 4: resumed by hand" in render_status(shown)


def test_the_causes_of_a_retry_and_a_fallback_name_the_failure(world: World) -> None:
    world.apply(committed(1))
    world.fail(ORDERS, "the disk is full")
    world.settle()
    world.now += 5.0
    assert brief(world.settle()) == ("retry", 1, "attempt 2, 1 s after [MZ064] the disk is full")
    failing = make_state(2, "b:1").resources[ORDERS].digest
    world.executor.fail_start = lambda one: "no" if one.digest == failing else None
    world.commit(committed(2, broker="b:1"))
    world.now += 70.0
    world.settle()
    world.now += 5.0
    assert brief(world.settle()) == ("retry", 2, "fallback after [MZ064] no.")


def test_after_a_refused_change_the_running_query_keeps_its_cause(world: World) -> None:
    first = cause_of(world.apply(committed(1)))
    world.executor.check_result = refusing("MZ052")
    assert cause_of(world.apply(committed(2, broker="b:1"))) == first


def test_the_change_of_runner_is_the_cause_for_queries_that_ran_before(world: World) -> None:
    world.apply(committed(1))
    for released, how in ((True, "was stopped"), (False, "was killed")):
        former = world.lease
        world.executor.close()
        stale = replace(former, heartbeat=0.0, released=released)
        world.store.backend.write("leases/local.json", encode_lease(stale))
        world.new_runner()
        cause, serial, detail = brief(world.settle())
        assert (cause, serial) == ("runner", 0) and how in detail
        assert f"epoch {world.lease.epoch}" in detail and f"epoch {former.epoch}" in detail


def test_a_commit_made_without_a_runner_is_the_cause(world: World) -> None:
    world.apply(committed(1))
    world.apply(committed(2, paused=True))
    for state in (committed(3, "resumed by hand", "hand"), committed(4, "brokers", broker="b:1")):
        world.executor.close()
        world.commit(state)
        world.next_runner()
        because = state.resources[ORDERS].because
        assert because is not None and brief(world.settle())[:2] == (because.cause, because.serial)


def test_an_upgrade_of_the_runner_is_the_cause() -> None:
    old = Versions(mzplan="1", spark="4.0", delta="4", kafka="4")
    before = Status(instance="local", epoch=1, heartbeat=0.0, serial=1, versions=old)
    now = replace(old, mzplan="2", spark="4.1")
    found = takeover(None, before, 3, now)
    assert found.cause == "upgrade" and found.detail.endswith("mzplan 1 → 2, Spark 4.0 → 4.1")
    assert takeover(None, before, 3, old).cause == "runner"
    elsewhere = replace(new_lease("local", "o", 2), host="other")
    assert "killed or lost the store" in takeover(elsewhere, None, 3, None).detail


def test_the_causes_of_a_canary_and_of_its_fallback(world: World) -> None:
    world.apply(committed(1))
    canary = Canary(address=ORDERS, serial=2, holds=(SINK,), wait=60.0)
    world.executor.triggers_at_once = False
    world.commit(replace(committed(2, broker="b:1"), canaries=(canary,)))
    for _ in range(100):
        world.runner.tick()
    assert brief(world.status()) == ("canary", 2, "goes first, before 1 other query")
    world.fail(ORDERS)
    for _ in range(100):
        world.runner.tick()
        world.now += 0.5
    world.executor.trigger()
    back = cause_of(world.settle())
    assert back.cause == "canary" and back.detail.startswith("back: boom")
