"""The cause of a start: decided with the start, kept with its run, and shown in the Status."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mzplan.controller.executor import CheckResult
from mzplan.controller.runs import takeover
from mzplan.model.cause import Cause
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.observed import Status, Versions
from mzplan.model.state import Canary, ProjectStatus, QueryStatus, State
from mzplan.model.times import instant
from mzplan.render.status import render_status, status_to_json
from mzplan.store.formats import encode_lease
from mzplan.store.leases import new_lease
from tests.unit.runner.test_runner import ORDERS, SINK, World, make_state
from tests.unit.runner.test_runner_handover import Worlds


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


def test_a_commit_is_the_cause_of_the_starts_that_it_requires(world: World) -> None:
    world.commit(committed(1))
    first = cause_of(world.settle())
    assert (first.cause, first.serial, first.detail) == ("change", 1, "new")
    assert first.at is not None and instant(first.at)
    world.commit(committed(2, "brokers[0] a:1 → b:1", broker="b:1"))
    assert (cause_of(world.settle()).serial, cause_of(world.settle()).detail) == (2, "brokers[0] a:1 → b:1")
    world.commit(committed(3, "paused by hand", "hand", broker="b:1", paused=True))
    world.settle()
    world.commit(committed(4, "resumed by hand", "hand", broker="b:1"))
    status = world.settle()
    assert (cause_of(status).cause, cause_of(status).serial) == ("hand", 4)
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
    world.commit(committed(1))
    world.settle()
    world.executor.fail_query(world.executor.running()[ORDERS].name, "the disk is full")
    world.settle()
    world.now += 5.0
    found = cause_of(world.settle())
    assert (found.cause, found.serial) == ("retry", 1)
    assert found.detail == "attempt 2, 1 s after [MZ064] the disk is full"
    failing = make_state(2, "b:1").resources[ORDERS].digest
    world.executor.fail_start = lambda one: "no" if one.digest == failing else None
    world.commit(committed(2, broker="b:1"))
    world.now += 70.0
    world.settle()
    world.now += 5.0
    back = cause_of(world.settle())
    assert (back.cause, back.serial) == ("retry", 2)
    assert back.detail == "fallback after [MZ064] no."


def test_after_a_refused_change_the_running_query_keeps_its_cause(world: World) -> None:
    world.commit(committed(1))
    first = cause_of(world.settle())
    no = Diagnostic(code="MZ052", summary="no such topic")
    world.executor.check_result = lambda one: CheckResult(diagnostics=(no,))
    world.commit(committed(2, broker="b:1"))
    assert cause_of(world.settle()) == first


def test_the_change_of_runner_is_the_cause_for_queries_that_ran_before(world: World) -> None:
    world.commit(committed(1))
    world.settle()
    for released, how in ((True, "was stopped"), (False, "was killed")):
        former = world.lease
        world.executor.close()
        stale = replace(former, heartbeat=0.0, released=released)
        world.store.backend.write("leases/local.json", encode_lease(stale))
        world.new_runner()
        found = cause_of(world.settle())
        assert (found.cause, found.serial) == ("runner", 0) and how in found.detail
        assert f"epoch {world.lease.epoch}" in found.detail and f"epoch {former.epoch}" in found.detail


def test_a_commit_made_without_a_runner_is_the_cause(world: World) -> None:
    world.commit(committed(1))
    world.settle()
    world.commit(committed(2, paused=True))
    world.settle()
    world.executor.close()
    world.store.leases.renew(world.lease, released=True)
    world.commit(committed(3, "resumed by hand", "hand"))
    world.new_runner()
    assert (cause_of(world.settle()).cause, cause_of(world.settle()).serial) == ("hand", 3)
    world.executor.close()
    world.store.leases.renew(world.lease, released=True)
    world.commit(committed(4, "brokers", broker="b:1"))
    world.new_runner()
    assert (cause_of(world.settle()).cause, cause_of(world.settle()).serial) == ("change", 4)


def test_an_upgrade_of_the_runner_is_the_cause() -> None:
    old = Versions(mzplan="1", spark="4.0", delta="4", kafka="4")
    before = Status(instance="local", epoch=1, heartbeat=0.0, serial=1, versions=old)
    now = replace(old, mzplan="2", spark="4.1")
    found = takeover(None, before, 3, now)
    assert found.cause == "upgrade" and found.detail.endswith("mzplan 1 → 2, Spark 4.0 → 4.1")
    assert takeover(None, before, 3, old).cause == "runner"
    elsewhere = replace(new_lease("local", "o", 2), host="other")
    assert "killed or lost the store" in takeover(elsewhere, None, 3, None).detail


def test_a_new_secret_value_retries_failed_queries(world: World) -> None:
    world.executor.fail_start = lambda one: "wrong password" if one.address == ORDERS else None
    secured = {"options": {"x": "${env:X}"}}
    world.commit(committed(1, **secured))
    world.settle()
    world.executor.fail_start = lambda one: None
    queries = world.runner.controller.queries
    assert queries is not None
    queries.secrets_in_use.references_of = lambda address, one: {"${env:X}"}  # type: ignore[method-assign]
    queries.retry_with_secrets({"${env:X}"})
    found = cause_of(world.settle())
    assert (found.cause, found.detail) == ("secret", "new value of ${env:X}")
    assert ORDERS in world.executor.running()


def test_the_causes_of_a_canary_and_of_its_fallback(world: World) -> None:
    world.commit(committed(1))
    world.settle()
    canary = Canary(address=ORDERS, serial=2, holds=(SINK,), wait=60.0)
    world.executor.triggers_at_once = False
    world.commit(replace(committed(2, broker="b:1"), canaries=(canary,)))
    for _ in range(100):
        world.runner.tick()
    first = cause_of(world.store.read_status("local"))  # type: ignore[arg-type]
    assert (first.cause, first.serial, first.detail) == ("canary", 2, "goes first, before 1 other query")
    world.executor.fail_query(world.executor.running()[ORDERS].name, "boom")
    for _ in range(100):
        world.runner.tick()
        world.now += 0.5
    world.executor.trigger()
    back = cause_of(world.settle())
    assert back.cause == "canary" and back.detail.startswith("back: boom")


def test_the_cause_of_a_query_that_comes_from_another_instance(worlds: Worlds) -> None:
    worlds.runner("big")
    worlds.runner("local")
    worlds.commit(1)
    worlds.settle("big")
    worlds.settle("local")
    worlds.commit(2, sink="big")
    worlds.settle("local")
    found = worlds.settle("big")[str(SINK)].started_because
    assert found is not None
    assert (found.cause, found.serial, found.detail) == ("hand-over", 2, "came from instance local")


def test_a_dry_pass_adopts_the_queries_of_the_status(tmp_path: Path, world: World) -> None:
    world.commit(committed(1))
    before = world.settle()
    adopted = type(world.executor)("shop", before)
    assert {one.started_because for one in adopted.reports()} == {
        one.started_because for one in before.observations.values()
    }
