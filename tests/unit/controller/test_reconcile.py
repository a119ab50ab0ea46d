"""The rules by which a controller starts, switches and stops a query."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mzplan.controller.decision import Decision, Memory, Stop, Switch, WantedQuery, key_of
from mzplan.controller.executor import QueryName, QueryReport
from mzplan.controller.reconcile import after_failure, next_step
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
    wanted: Description,
    reports: list[QueryReport],
    memory: Memory | None = None,
    now: float = 0.0,
) -> Decision:
    return next_step(A, WantedQuery(description=wanted, paused=False), reports, memory or Memory(), now)


def test_a_failed_fallback_is_not_restarted_in_a_hot_loop() -> None:
    memory = after_failure(CHANGED, "rejected", "x", "MZ052", now=0.0)
    dead = report(OLD, active=False, error="y")
    found = step(NEW, [dead], replace(memory, retry_at=100.0), now=0.5)
    assert found.command == Stop(address=A, names=(dead.name,))
    assert step(NEW, [], found.memory, now=0.6).command is None


@pytest.mark.parametrize(
    ("address", "accepted", "condition", "kind", "resumes"),
    [
        (A, OLD, "rejected", None, True),
        (A, OLD, "failed", "not-migratable", True),
        (A, OLD, "failed", None, False),
        (A, replace(OLD, generation=3), "rejected", None, False),
        (Address("sink", "orders"), OLD, "rejected", None, False),
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


def test_a_query_whose_collection_gets_a_column_resumes_at_once_and_has_not_failed() -> None:
    """Unless the run never worked: then it would start again and again."""
    memory = Memory(target=key_of(NEW), accepted=NEW, healthy_since=1.0, failures=1)
    dead = report(NEW, active=False, error="x", error_code="MZ230", error_kind="columns-changed")
    found = step(NEW, [dead], memory, now=9.0)
    assert found.command == Stop(address=A, names=(dead.name,)) and found.condition == "starting"
    again = step(NEW, [], found.memory, now=9.1)
    assert isinstance(again.command, Switch) and again.command.cause.cause == "retry"
    assert step(NEW, [dead], found.memory, now=9.2).condition == "failed"
