"""The rules by which a controller starts, switches and stops a query."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mzplan.controller.executor import QueryName, QueryReport
from mzplan.controller.reconcile import (
    BACKOFF,
    Accept,
    Decision,
    Desired,
    Memory,
    Stop,
    Switch,
    after_failure,
    decide,
    key_of,
)
from mzplan.model.address import Address
from mzplan.schema.description import Description

A = Address("source", "orders")
OLD = Description(address=A, id="i", generation=1, digest="1:old", type="kafka", body={})
NEW = replace(OLD, digest="1:new")
CHANGED = Memory(target=key_of(NEW), accepted=OLD)


def report(description: Description, **fields: object) -> QueryReport:
    base = QueryReport(
        name=QueryName.of("shop", description), query_id="q", run_id="r", active=True, triggered=True
    )
    return replace(base, **fields)  # type: ignore[arg-type]


def step(
    wanted: Description | None,
    reports: list[QueryReport],
    memory: Memory | None = None,
    now: float = 0.0,
    paused: bool = False,
) -> Decision:
    desired = Desired(description=wanted, paused=paused) if wanted else None
    return decide(A, desired, reports, memory or Memory(), now)


def test_a_changed_query_is_switched_and_the_command_names_the_old_query() -> None:
    found = step(NEW, [report(OLD)], Memory(target=key_of(OLD), accepted=OLD))
    assert found.command == Switch(address=A, description=NEW, stop=(QueryName.of("shop", OLD),), check=True)


def test_a_running_query_is_accepted_once_after_its_first_trigger() -> None:
    waiting = step(NEW, [report(NEW, triggered=False)])
    assert (waiting.command, waiting.condition) == (None, "starting")
    found = step(NEW, [report(NEW)], waiting.memory)
    assert found.command == Accept(address=A, description=NEW)
    assert found.condition == "running"
    again = step(NEW, [report(NEW)], found.memory)
    assert (again.command, again.condition) == (None, "running")


def test_a_rejected_change_keeps_the_old_query_and_is_retried_later() -> None:
    memory = after_failure(CHANGED, "rejected", "no such topic", "MZ052", now=0.0)
    found = step(NEW, [report(OLD)], memory, now=0.5)
    assert found.command is None
    assert found.condition == "rejected"
    assert found.run is not None and found.run.name.digest == OLD.digest
    later = step(NEW, [report(OLD)], memory, now=1.5)
    assert isinstance(later.command, Switch) and later.command.check


def test_after_a_restart_of_the_runner_a_rejected_change_runs_the_accepted_description() -> None:
    memory = after_failure(CHANGED, "rejected", "no such topic", "MZ052", now=0.0)
    found = step(NEW, [], memory, now=0.5)
    assert found.command == Switch(address=A, description=OLD, stop=(), check=False)
    assert found.condition == "rejected"


def test_a_change_that_fails_before_its_first_trigger_falls_back() -> None:
    dead = report(NEW, active=False, triggered=False, error="boom", error_code="MZ064")
    ended = step(NEW, [dead], CHANGED)
    assert ended.command == Stop(address=A, names=(dead.name,))
    assert ended.memory.verdict == "failed" and ended.memory.error == "boom"
    back = step(NEW, [], ended.memory, now=0.1)
    assert back.command == Switch(address=A, description=OLD, stop=(), check=False)
    assert back.condition == "failed"
    # While the old query runs, the new one is retried after a longer wait.
    assert step(NEW, [report(OLD)], ended.memory, now=2.0).command is None
    assert isinstance(step(NEW, [report(OLD)], ended.memory, now=30.0).command, Switch)


def test_a_failed_fallback_is_not_restarted_in_a_hot_loop() -> None:
    memory = after_failure(CHANGED, "rejected", "x", "MZ052", now=0.0)
    dead = report(OLD, active=False, error="y")
    found = step(NEW, [dead], replace(memory, retry_at=100.0), now=0.5)
    assert found.command == Stop(address=A, names=(dead.name,))
    assert step(NEW, [], found.memory, now=0.6).command is None


def test_a_failed_query_is_retried_with_backoff() -> None:
    memory = Memory(target=key_of(NEW), accepted=NEW)
    now = 0.0
    waits = []
    for _ in range(9):
        dead = report(NEW, active=False, error="broker away")
        ended = step(NEW, [dead], memory, now=now)
        assert ended.condition == "failed"
        memory = ended.memory
        waits.append(memory.retry_at - now)
        assert step(NEW, [], memory, now=memory.retry_at - 0.01).command is None
        now = memory.retry_at
        assert isinstance(step(NEW, [], memory, now=now).command, Switch)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert BACKOFF.wait(10_000) == BACKOFF.last


def test_a_query_that_runs_long_enough_loses_its_failures() -> None:
    memory = Memory(target=key_of(NEW), accepted=NEW, failures=5)
    first = step(NEW, [report(NEW)], memory, now=10.0)
    assert first.memory.failures == 5
    assert step(NEW, [report(NEW)], first.memory, now=80.0).memory.failures == 0


def test_a_paused_query_is_stopped_and_stays_stopped() -> None:
    found = step(NEW, [report(NEW)], paused=True)
    assert found.command == Stop(address=A, names=(QueryName.of("shop", NEW),))
    assert found.condition == "running"  # until it has really stopped
    assert step(NEW, [], found.memory, paused=True).condition == "paused"


def test_an_address_never_has_two_running_queries() -> None:
    found = step(NEW, [report(OLD), report(NEW)])
    assert found.command == Stop(address=A, names=(QueryName.of("shop", OLD),))


SINK = Address("sink", "orders")
OLDER = replace(OLD, generation=3)


@pytest.mark.parametrize(
    ("address", "accepted", "condition", "kind", "resumes"),
    [
        (A, OLD, "rejected", None, True),
        (A, OLD, "failed", "not-migratable", True),
        (A, OLD, "failed", None, False),
        (A, OLDER, "rejected", None, False),
        (SINK, OLD, "rejected", None, False),
    ],
    ids=["rejected", "not-migrated", "started", "not-the-former", "sink"],
)
def test_the_former_generation_of_a_source_resumes_if_the_new_one_never_started(
    address: Address, accepted: Description, condition: Any, kind: Any, resumes: bool
) -> None:
    """A generation that has started may have changed the former storage."""
    replaced = replace(NEW, address=address, generation=2)
    memory = Memory(target=key_of(replaced), accepted=accepted)
    found = step(replaced, [], after_failure(memory, condition, "x", "MZ052", now=0.0, kind=kind), now=0.5)
    assert found.condition == condition
    if resumes:
        assert found.command == Switch(address=A, description=OLD, stop=(), check=False)
    else:
        assert found.command is None


def test_only_names_of_mzplans_queries_are_parsed() -> None:
    name = QueryName.of("shop", NEW)
    assert QueryName.parse(str(name)) == name
    assert QueryName.parse("somebody else's query") is None
    assert QueryName.parse(None) is None


def test_while_the_old_query_ends_the_new_query_is_starting_not_failed() -> None:
    ending = report(OLD, active=False)
    assert step(NEW, [ending], CHANGED).condition == "starting"
