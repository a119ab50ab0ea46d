"""The contract of the storage controller (mzplan.controller.protocol): the same tests in memory and on Spark.

For each method: its effect, its errors, a repeated call, and the state after a crash.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mzplan.controller.adapter import StorageController
from mzplan.controller.memory import InMemoryStorage
from mzplan.controller.terms import (
    AppendCommand,
    IdentifierMissingError,
    IdentifierReusedError,
    InstanceInUseError,
    InvalidUppersError,
    LagDuration,
    LagSteps,
    NotAttachedError,
    ReadBeforeSinceError,
    ReplicaLocation,
    RetainFrom,
    Row,
    StorageError,
    StorageParameters,
    Update,
    UpdateBeyondUpperError,
)
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.resources import Retries
from mzplan.model.state import State
from mzplan.store.journal import Prepared
from tests.contract.controllers import (
    SECONDS,
    World,
    altered,
    append,
    appending,
    create,
    create_sink,
    in_memory,
    local_source,
    on_spark,
    play,
    rows,
    run_ids,
    running,
    settle,
    sink_of,
    snapshot,
)
from tests.support import eventually
from tests.unit import small_projects as small

SEED = """
    initialization_complete update_configuration collection create_instance drop_instance connect_replica
    collection_mut collections migrate_collections create_collections export export_mut create_exports
    prepare_export cancel_prepare_export drop_sources drop_sinks drop_sinks_unvalidated
    drop_sources_unvalidated append snapshot set_read_policy update_write_frontiers
    update_read_capabilities ready process reconcile_state
"""


@pytest.fixture(params=["memory", pytest.param("spark", marks=pytest.mark.nightly)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    yield from (in_memory if request.param == "memory" else on_spark)(tmp_path)


def refused(
    kind: type[Exception], command: Callable[..., object], *arguments: Any, match: str | None = None
) -> None:
    """Check that this error refuses the command."""
    with pytest.raises(kind, match=match):
        command(*arguments)


def test_the_controller_has_the_seeds_27_methods() -> None:
    named = {name for name, _ in inspect.getmembers(StorageController, inspect.isfunction) if name[0] != "_"}
    assert len(SEED.split()) == 27 and named == set(SEED.split())
    assert all(getattr(StorageController, name).__doc__ for name in named)


# ── initialization


def test_commands_wait_for_the_end_of_initialization_and_parameters_restart_nothing(world: World) -> None:
    controller = world.controller(complete=False)
    create(controller, local_source("a"))
    settle(controller)
    assert running(controller) == set()
    controller.initialization_complete()
    controller.initialization_complete()
    settle(controller)
    assert running(controller) == {"source.s_a"}
    before = run_ids(controller.kernel.executor)
    controller.update_configuration(StorageParameters(backoff=Retries(first=9.0), maintain_every=7.0))
    settle(controller)
    assert run_ids(controller.kernel.executor) == before  # other parameters restart nothing
    assert controller.kernel.maintenance.every == 7.0


# ── instances


def test_an_instance_in_use_cannot_be_dropped(world: World) -> None:
    controller = world.controller()
    controller.create_instance("other")
    refused(IdentifierReusedError, controller.create_instance, "other", match="other")
    controller.drop_instance("other")
    for missing in (
        controller.drop_instance,
        lambda i: controller.connect_replica(i, ReplicaLocation(owner="x")),
    ):
        refused(IdentifierMissingError, missing, "other", match="other")
    create(controller, local_source("a"))
    refused(InstanceInUseError, controller.drop_instance, "local", match=r"source\.s_a")
    controller.drop_sources(["a"])
    refused(InstanceInUseError, controller.drop_instance, "local", match="epoch 1")
    controller.kernel.release()  # a released or lapsed lease doesn't count
    controller.drop_instance("local")


def test_a_controller_that_attaches_again_runs_its_queries(world: World) -> None:
    controller = world.hosting("a")
    append(controller, appending("a", 0, *rows(0, 2)))
    play(controller, "a", 1)
    controller.connect_replica("local", ReplicaLocation(owner="again"))
    settle(controller)
    assert running(controller) == {"source.s_a"}
    append(controller, appending("a", 1, *rows(2, 1)))
    play(controller, "a", 2)
    assert len(snapshot(controller, "a", 1)) == 3


def test_a_new_replica_severs_the_old_replica_and_resumes_its_queries(world: World) -> None:
    old = world.hosting("a")
    append(old, appending("a", 0, *rows(0, 2)))
    play(old, "a", 1)
    new = world.controller()
    assert new.kernel.instances.attached is not None and old.kernel.instances.attached is not None
    assert new.kernel.instances.attached.epoch > old.kernel.instances.attached.epoch
    old.kernel.instances.loss = (
        old.kernel.instances.loss or "another runner"
    )  # its lease keeper notices within a heartbeat
    refused(NotAttachedError, settle, old)
    assert running(old) == set()
    refused(NotAttachedError, create, old, local_source("b"))
    create(new, local_source("a"))
    settle(new)
    assert running(new) == {"source.s_a"}
    append(new, appending("a", 1, *rows(2, 1)))
    play(new, "a", 2)
    assert snapshot(new, "a", 1) == [(row, 1) for row in rows(0, 3)]


def test_a_lost_lease_stops_the_queries_even_if_the_loop_is_blocked(world: World) -> None:
    """No thread calls `process` of the old controller: the unreachable store may block it."""
    old = world.hosting("a")
    settle(old)
    world.controller()
    eventually("the queries have stopped", lambda: not running(old), SECONDS)


def test_without_a_replica_every_command_is_refused(world: World) -> None:
    controller = StorageController(world.make(world.store, world.jobs))
    refused(NotAttachedError, create, controller, local_source("a"))
    refused(NotAttachedError, controller.process)


# ── collections


def test_collections_are_created_altered_and_read(world: World) -> None:
    controller = world.controller()
    source = local_source("a")
    controller.migrate_collections([("a", source)])
    create(controller, source)
    settle(controller)
    before = run_ids(controller.kernel.executor)
    create(controller, source)  # again, without effect
    settle(controller)
    assert run_ids(controller.kernel.executor) == before
    assert controller.collection("a") is controller.collection_mut("a")
    assert [id_ for id_, _ in controller.collections()] == ["a"]
    assert controller.collection("a").condition == "running"
    create(controller, altered(source, "1:b"))
    settle(controller)
    after = run_ids(controller.kernel.executor)
    assert after.keys() == before.keys() and after != before
    for missing in (controller.collection, controller.collection_mut):
        refused(IdentifierMissingError, missing, "nobody")


def test_creation_is_all_or_nothing(world: World) -> None:
    controller = world.controller()
    a, b = local_source("a"), local_source("b")
    create(controller, a)
    create_sink(controller, sink_of(a, "k"))
    twice = [("b", b), ("b", altered(b, "1:z"))]
    taken = [("b", b), ("k", local_source("k"))]
    misnamed = [("b", b), ("c", a)]
    kinds = (IdentifierReusedError, IdentifierReusedError, StorageError)
    for wrong, kind in zip((twice, taken, misnamed), kinds, strict=True):
        refused(kind, controller.create_collections, wrong)
        assert [id_ for id_, _ in controller.collections()] == ["a"]


def test_a_crash_after_a_command_loses_nothing(world: World) -> None:
    """The committed serial repeats the commands, and queries resume from their checkpoints."""
    controller = world.hosting("a")
    append(controller, appending("a", 0, *rows(0, 2)))
    play(controller, "a", 1)
    world.crash()
    again = world.hosting("a")
    settle(again)
    append(again, appending("a", 1, *rows(2, 2)))
    play(again, "a", 2)
    assert snapshot(again, "a", 1) == [(row, 1) for row in rows(0, 4)]


def test_sources_are_dropped(world: World) -> None:
    controller = world.hosting("a", "b")
    create_sink(controller, sink_of(local_source("a"), "k"))
    for _ in range(2):  # again: no record shows that it ran
        controller.drop_sinks(["k"])
    settle(controller)
    refused(IdentifierMissingError, controller.drop_sources, ["a", "nobody"], match="nobody")
    assert running(controller) == {"source.s_a", "source.s_b"}
    controller.drop_sources(["a"])
    controller.drop_sources_unvalidated(["nobody"])
    settle(controller, lambda: running(controller) == {"source.s_b"})
    assert [entry.id for entry in world.store.read_journal("local")] == ["a"]
    controller.drop_sources(["a"])  # again: the journal has the id
    refused(IdentifierMissingError, controller.drop_sinks, ["a"])
    refused(IdentifierMissingError, controller.collection, "a")


def test_a_drop_after_a_crash_is_validated_against_the_durable_history(world: World) -> None:
    controller = world.hosting("a")
    settle(controller)
    world.crash()
    again = world.controller()  # it got no command, but the record shows that `a` ran
    again.drop_sources(["a"])
    settle(again, lambda: [e.id for e in world.store.read_journal("local")] == ["a"])
    committed = small.commit(small.project(small.resource("source.c", "local", type="local", schema="a INT")))
    world.store.commit(committed, State(project="shop"))
    world.store.commit(small.commit(small.project(), committed), committed)
    (once,) = (resource.id for resource in committed.resources.values())
    again.drop_sources([once])
    refused(IdentifierMissingError, again.drop_sources, ["never"])
    refused(IdentifierMissingError, again.drop_sinks, [once])


# ── exports


def test_exports_are_created_with_a_token_altered_and_dropped(world: World) -> None:
    controller, source = world.hosting("a"), local_source("a")
    sink = sink_of(source, "k")
    refused(IdentifierMissingError, controller.prepare_export, "k", "nobody")
    refused(IdentifierReusedError, controller.prepare_export, "a", "a")
    token = controller.prepare_export("k", "a")
    assert controller.prepare_export("k", "a") == token
    other = controller.prepare_export("other", "a")
    refused(StorageError, controller.create_exports, [(token, sink), (other, sink)])
    refused(IdentifierMissingError, controller.export, "k")
    controller.create_exports([(token, sink)])
    refused(IdentifierMissingError, controller.create_exports, [(token, sink)])  # it is consumed
    settle(controller)
    assert running(controller) == {"source.s_a", "sink.k_k"}
    assert controller.export("k") is controller.export_mut("k")
    before = run_ids(controller.kernel.executor)
    create_sink(controller, altered(sink, "1:b"))
    settle(controller)
    after = run_ids(controller.kernel.executor)
    assert after["sink.k_k"] != before["sink.k_k"] and after["source.s_a"] == before["source.s_a"]
    for missing in (controller.export, controller.export_mut):
        refused(IdentifierMissingError, missing, "nobody")
    refused(IdentifierMissingError, controller.drop_sinks, ["k", "nobody"])
    controller.drop_sinks(["k"])
    controller.drop_sinks_unvalidated(["k", "nobody"])
    settle(controller, lambda: running(controller) == {"source.s_a"})


def test_a_token_holds_its_step_until_it_is_used_or_cancelled(world: World) -> None:
    controller = world.hosting("a")
    token = controller.prepare_export("k", "a")
    controller.set_read_policy([("a", LagSteps(steps=1))])
    controller.update_write_frontiers([("a", 10)])
    assert controller.collection("a").since == token.step == 0
    world.crash()
    again = world.hosting("a")  # the hold is journalled
    again.set_read_policy([("a", LagSteps(steps=1))])
    again.update_write_frontiers([("a", 10)])
    assert again.collection("a").since == 0
    again.cancel_prepare_export(token)
    again.cancel_prepare_export(token)
    again.update_write_frontiers([("a", 11)])
    assert again.collection("a").since == 10
    refused(IdentifierMissingError, again.create_exports, [(token, sink_of(local_source("a"), "k"))])
    assert world.store.read_prepared("local") == []


def test_a_prepared_export_survives_a_crash_and_is_cancelled_with_its_hold(world: World) -> None:
    controller = world.hosting("a", "b")
    tokens = [controller.prepare_export(*pair) for pair in (("gone", "a"), ("kept", "a"), ("lost", "b"))]
    world.crash()
    again = world.hosting("a")  # the collection `b` is gone
    again.set_read_policy([("a", LagSteps(steps=1))])
    again.update_write_frontiers([("a", 100)])
    assert again.collection("a").since == 0
    for token in (tokens[0], tokens[2]):
        again.cancel_prepare_export(token)
    assert [entry.id for entry in world.store.read_prepared("local")] == ["kept"]
    assert list(again.collection("a").holds) == ["prepared:kept"]
    again.cancel_prepare_export(tokens[1])
    again.update_write_frontiers([("a", 101)])
    assert (again.collection("a").since, world.store.read_prepared("local")) == (100, [])


def test_a_command_with_an_unwritable_journal_changes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller, source = world.hosting("a"), local_source("a")

    def failing(instance: str, entries: list[Prepared]) -> None:
        raise error("MZ090", "The disk is full")

    def fails(command: Callable[[], object]) -> None:
        with monkeypatch.context() as broken:
            broken.setattr(world.store, "write_prepared", failing)
            refused(MzplanError, command)

    fails(lambda: controller.prepare_export("k", "a"))
    assert (controller.prepared, controller.collection("a").holds) == ({}, {})
    token = controller.prepare_export("k", "a")
    journalled = world.store.read_prepared("local")
    assert [entry.id for entry in journalled] == ["k"]
    fails(lambda: controller.cancel_prepare_export(token))
    fails(lambda: controller.create_exports([(token, sink_of(source, "k"))]))
    refused(IdentifierMissingError, controller.export, "k")
    assert (controller.prepared, world.store.read_prepared("local")) == ({("k", "a"): token}, journalled)
    controller.cancel_prepare_export(token)
    assert (controller.collection("a").holds, world.store.read_prepared("local")) == ({}, [])


def test_exports_are_all_created_or_none(world: World) -> None:
    controller, a, b = world.hosting("a", "b"), local_source("a"), local_source("b")
    tokens = [controller.prepare_export("ka", "a"), controller.prepare_export("kb", "b")]
    controller.drop_sources(["b"])
    sinks = [(tokens[0], sink_of(a, "ka")), (tokens[1], sink_of(b, "kb"))]
    refused(IdentifierMissingError, controller.create_exports, sinks)
    twice = [sinks[0], (tokens[0], altered(sink_of(a, "ka"), "1:b"))]
    refused(IdentifierReusedError, controller.create_exports, twice)
    assert list(controller.kernel.wanted) == [a.description.address]
    refused(IdentifierMissingError, controller.export, "ka")
    assert [entry.id for entry in world.store.read_prepared("local")] == ["ka", "kb"]


# ── data


def test_append_and_snapshot(world: World) -> None:
    controller = world.hosting("a")
    refused(ReadBeforeSinceError, snapshot, controller, "a", 0)
    first = appending("a", 0, *rows(0, 2), key="first")
    append(controller, first)
    append(controller, first)  # the same append, which is already stored
    later = replace(
        appending("a", 2, *rows(4, 1)),
        updates=(Update(row=rows(2, 1)[0], step=1), Update(row=rows(2, 1)[0], step=2)),
        upper=3,
    )
    append(controller, later)
    play(controller, "a", 3)
    assert snapshot(controller, "a", 0) == [(row, 1) for row in rows(0, 2)]
    assert snapshot(controller, "a", 2) == [*[(row, 1) for row in rows(0, 2)], (rows(2, 1)[0], 2)]
    for step in (3, 99):
        refused(ReadBeforeSinceError, snapshot, controller, "a", step, match="0 to 3")
    refused(IdentifierMissingError, snapshot, controller, "nobody", 0)


def test_a_refused_append_writes_nothing(world: World) -> None:
    controller = world.controller()
    source = local_source("a")
    create(controller, source, local_source("b"))
    create_sink(controller, sink_of(source, "k"))
    append(controller, appending("a", 0, *rows(0, 1)))
    row = rows(5, 1)[0]
    commands = [
        (appending("a", 0, row), InvalidUppersError),
        (replace(appending("a", 1, row), upper=1), InvalidUppersError),
        (replace(appending("a", 5, row), upper=3), UpdateBeyondUpperError),
        (appending("a", 1, {"id": "no number"}), StorageError),
        (appending("a", 1, {"name": "no id"}), StorageError),
        (appending("a", 1, {"id": 1, "colour": "red"}), StorageError),
        (replace(appending("a", 1), updates=(Update(row=row, step=1, diff=-1),)), StorageError),
    ]
    for command, kind in commands:
        refused(kind, append, controller, command)
        refused(kind, append, controller, appending("b", 0, row), command)
    refused(IdentifierMissingError, controller.append, [appending("nobody", 0, row)])
    # The first command wrote nothing either. Two commands for one input are written in order.
    append(controller, appending("b", 0, row), appending("b", 1, row))
    append(controller, appending("a", 1, row))  # the next step is still 1
    settle(controller)
    play(controller, "a", 2)
    assert snapshot(controller, "a", 1) == [(rows(0, 1)[0], 1), (row, 1)]


# ── frontiers


def test_read_policies_downgrade_at_once_and_never_recover(world: World) -> None:
    controller = world.hosting("a", "b")
    state = controller.collection("a")
    controller.update_write_frontiers([("a", 10)])
    controller.update_write_frontiers([("a", 4), ("nobody", 7)])  # older and unknown uppers are ignored
    assert (state.upper, state.since) == (10, 0)
    controller.set_read_policy([("a", LagSteps(steps=2)), ("a", LagSteps(steps=3))])  # in order
    assert state.since == 8
    controller.set_read_policy([("a", RetainFrom(step=2))])
    assert state.since == 8
    controller.update_write_frontiers([("a", 20)])
    assert state.since == 8
    controller.set_read_policy([("a", LagSteps(steps=5))])
    assert state.since == 15
    controller.set_read_policy([("a", LagDuration(seconds=3600.0))])
    assert state.since == 15
    policies = [("b", LagSteps(steps=0)), ("nobody", LagSteps(steps=1))]
    refused(IdentifierMissingError, controller.set_read_policy, policies)
    assert controller.collection("b").policy == RetainFrom(step=0)


def test_a_duration_policy_moves_since_at_once(world: World) -> None:
    controller = world.hosting("a")
    for step in range(3):
        append(controller, appending("a", step, *rows(step, 1)))
    play(controller, "a", 3)
    controller.update_write_frontiers([("a", 3)])
    state = controller.collection("a")
    controller.set_read_policy([("a", LagDuration(seconds=86_400.0 * 36_500))])
    assert state.since == 0
    controller.set_read_policy([("a", LagDuration(seconds=0.0))])
    assert state.since == 2  # the newest step can always be read
    controller.set_read_policy([("a", LagDuration(seconds=86_400.0 * 36_500))])
    assert state.since == 2


def test_an_export_holds_each_collection_that_it_reads(world: World) -> None:
    controller, a, b = world.hosting("a", "b"), local_source("a"), local_source("b")

    def holds() -> list[dict[str, int]]:
        return [dict(controller.collection(id_).holds) for id_ in ("a", "b")]

    create_sink(controller, sink_of(a, "k"))
    assert holds() == [{"k": 0}, {}]
    create_sink(controller, sink_of(b, "k"))  # altered to read another collection
    assert holds() == [{}, {"k": 0}]
    controller.drop_sinks(["k"])
    assert holds() == [{}, {}]

    both = sink_of(a, "k2")
    reads = {**both.description.reads, **sink_of(b, "k2").description.reads}
    both = replace(both, description=replace(both.description, reads=reads))
    create_sink(controller, both)
    controller.update_write_frontiers([("a", 10), ("b", 10)])
    controller.update_read_capabilities({"a": {"k2": 7}, "b": {"k2": 4}})
    assert controller.export("k2").read_holds == {"a": 7, "b": 4}
    assert holds() == [{"k2": 7}, {"k2": 4}]
    controller.drop_sinks(["k2"])
    assert holds() == [{}, {}]

    # A query of another instance may read a collection here, and collections that aren't here.
    controller.drop_sources(["b"])
    create_sink(controller, both)
    assert list(controller.export("k2").read_holds) == ["a"]


def test_since_is_the_least_of_all_capabilities(world: World) -> None:
    controller, source = world.hosting("a"), local_source("a")
    create_sink(controller, sink_of(source, "k"), sink_of(source, "m"))
    state = controller.collection("a")
    controller.set_read_policy([("a", LagSteps(steps=1))])
    controller.update_write_frontiers([("a", 10), ("k", 3)])
    assert state.since == 0 and controller.export("k").upper == 3
    controller.update_read_capabilities({"a": {"k": 7}, "nobody": {"k": 1}})
    assert (state.since, controller.export("k").read_holds) == (0, {"a": 7})
    controller.update_read_capabilities({"a": {"m": 4, "k": 5}})  # a hold never moves back
    assert (state.since, controller.export("k").read_holds) == (4, {"a": 7})
    controller.update_read_capabilities({"a": {"m": None}})
    assert state.since == 7
    controller.drop_sinks(["k"])
    controller.update_write_frontiers([("a", 11)])
    assert state.since == 10


# ── work


def test_ready_ends_when_it_is_woken(world: World) -> None:
    controller = world.controller()
    timer = threading.Timer(0.1, controller.kernel.wake)
    timer.start()
    controller.ready()
    timer.join()


def test_unclaimed_queries_are_stopped_and_unclaimed_storage_is_listed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    controller = world.hosting("a", "b")
    append(controller, *(appending(id_, 0, *rows(0, 1)) for id_ in ("a", "b")))
    for id_ in ("a", "b"):
        play(controller, id_, 1)
    world.crash()
    world.store.write_accepted("local", {})  # no process remembers them
    again = world.controller(complete=False)
    stray = local_source("a").description
    again.kernel.executor.start(stray, again.kernel.secrets, 1)
    create(again, local_source("b"))
    caplog.set_level(logging.INFO, "mzplan.controller")
    again.reconcile_state()
    assert running(again) == set()
    assert "unclaimed storage: a g1 (mzplan state gc)" in caplog.messages
    again.kernel.follow([local_source("b")], claimed=[("a", 1)])
    caplog.clear()
    again.reconcile_state()
    assert caplog.messages == []


def test_a_sink_that_does_not_read_holds_steps_for_a_limited_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = world.controller()
    source = local_source("a", max_hold="1h")
    create(controller, source)
    create_sink(controller, replace(sink_of(source, "k"), paused=True))
    controller.set_read_policy([("a", LagSteps(steps=1))])
    for step in range(4):
        append(controller, appending("a", step, *rows(step, 1)))
    play(controller, "a", 4)
    state = controller.collection("a")
    looked: list[int] = []
    storage = controller.kernel.storage
    read = storage.first_unread
    monkeypatch.setattr(storage, "first_unread", lambda *places: looked.append(1) or read(*places))
    controller.update_configuration(StorageParameters(maintain_every=0.1))
    if isinstance(storage, InMemoryStorage):
        storage.first_unread_steps["k", 1] = 0
    settle(controller, lambda: len(looked) > 1)
    assert (state.since, state.implied, state.holds["k"]) == (0, 3, 0)
    kept = controller.kernel.frontiers.describe_holds("k")
    assert kept == "It has read source.s_a up to step 0, and later rows are kept for it, for at most 1h."
    controller.create_collections([("a", local_source("a", max_hold="0s"))])
    settle(controller, lambda: state.since == 3)
    assert controller.kernel.frontiers.describe_holds("k") is None


def test_rows_of_a_key_come_and_go(world: World) -> None:
    """An update of a row is a deletion of the former row and an insertion of the new row, in any order."""
    controller = world.hosting("a", key=["id"])
    one, two, new = ({"id": n, "name": name} for n, name in ((1, "one"), (2, "two"), (1, "new")))

    def change(step: int, *updates: tuple[Row, int]) -> None:
        made = tuple(Update(row=row, step=step, diff=diff) for row, diff in updates)
        command = AppendCommand(id="a", updates=made, upper=step + 1, key=f"k{step}")
        append(controller, command)

    change(0, (one, 1), (two, 1))
    change(1, (new, 1), (one, -1), (two, -1))
    change(2, ({"id": 2}, -1), (two, 1))
    change(3, ({"id": 7}, -1))
    play(controller, "a", 3)
    assert sorted(snapshot(controller, "a", 0), key=str) == [(one, 1), (two, 1)]
    assert snapshot(controller, "a", 1) == [(new, 1)]
    assert sorted(snapshot(controller, "a", 2), key=str) == [(new, 1), (two, 1)]
    refused(StorageError, change, 4, (one, 2), match="a key has at most one row")
