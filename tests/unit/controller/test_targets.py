"""Whether a sink's target still has its steps, and whether a source still reads the same upstream. Compaction
of targets: which sinks, when, and what happens after a failure. Without Spark."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mzplan.connectors.api.queries import ResolvedQuery, resolve
from mzplan.connectors.kafka.transactional_writer import compare_target as compare_topic
from mzplan.connectors.postgres.identity import WrittenSteps, compare_target
from mzplan.controller.executor import CheckResult
from mzplan.controller.maintenance import COMPACTION_BACKOFF
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, ExitCode, error
from mzplan.model.resources import Instance, Resource
from mzplan.model.state import State
from mzplan.plan import build_plan
from mzplan.schema.description import Description, describe
from mzplan.secrets.references import Secrets
from mzplan.warehouse.checkpoints import Checkpoint
from tests import stored_steps
from tests.support import eventually
from tests.unit.runner.test_runner import ORDERS, SINK, World, make_state
from tests.unit.runner.test_status import until
from tests.unit.small_projects import commit, files, kafka, postgres, project, resource, shop, sink, source

HERE = {"type": "postgres", "system_identifier": "7", "timeline": 1, "database": "shop", "database_oid": 5}
THERE = WrittenSteps(query_id="q", step=3)


def query(folder: Path, **body: Any) -> ResolvedQuery:
    """A sink whose checkpoint has done steps 0 to 3."""
    resources = commit(shop(orders_pg=sink(**body))).resources
    checkpoint = Checkpoint(str(folder))
    for step in range(4):
        stored_steps.offsets(folder / "spark", step, {})
        stored_steps.commit(folder / "spark", step)
    (folder / "spark" / "metadata").write_text('{"id": "q"}')
    checkpoint.record_delivery({"delivery": "exactly-once", "target": HERE})
    found = resolve(describe(resources[Address("sink", "orders_pg")], resources), Secrets(".", {}), ".")
    return replace(found, checkpoint=checkpoint)


@pytest.mark.parametrize(
    ("found", "there", "code", "says"),
    [
        ({**HERE, "database": "renamed"}, THERE, "", ""),
        (None, THERE, "", ""),  # a service that hides its identity: its steps are enough
        ({**HERE, "system_identifier": "8"}, THERE, "MZ043", "system identifier 8 instead of 7"),
        ({**HERE, "database_oid": 6}, THERE, "MZ043", "dropped and recreated"),
        ({**HERE, "timeline": 2}, THERE, "MZ043", "timeline 2 instead of 1"),
        ({**HERE, "timeline": 2}, WrittenSteps(query_id="q", step=1), "MZ069", "its last step is 1"),
        (HERE, WrittenSteps(query_id="q", step=-1), "MZ069", "no step is written"),
        (HERE, WrittenSteps(query_id="other", step=3), "MZ069", "another checkpoint"),
        (None, None, "MZ069", "it has no record of this sink"),
    ],
)
def test_a_changed_target_is_refused_or_noticed(
    tmp_path: Path, found: dict[str, Any] | None, there: WrittenSteps | None, code: str, says: str
) -> None:
    told = compare_target(query(tmp_path), found, there)
    assert [d.code for d in told] == ([code] if code else [])
    assert all(says in d.detail for d in told)
    lost_nothing = says == "timeline 2 instead of 1"
    assert all((d.severity == "notice") is lost_nothing for d in told)
    if told and not lost_nothing:
        assert told[0].exit_code == ExitCode.REFUSED
        (accepted,) = compare_target(query(tmp_path / "b", on_target_change="accept"), found, there)
        assert (accepted.code, accepted.severity) == (code, "notice")


def test_a_sink_that_has_written_nothing_may_start_anywhere(tmp_path: Path) -> None:
    begun = query(tmp_path)
    assert compare_target(replace(begun, checkpoint=None), HERE, None) == []
    empty = replace(begun, checkpoint=Checkpoint(str(tmp_path / "empty")))
    assert compare_target(empty, {**HERE, "system_identifier": "8"}, None) == []


def test_a_topic_is_identified_by_cluster_and_id(tmp_path: Path) -> None:
    sink_ = query(tmp_path)
    sink_.link.body["brokers"] = ["a:1"]  # type: ignore[index]
    topic = {"cluster_id": "c", "topic": "t", "topic_id": "i"}
    assert compare_topic(sink_, {}, topic) is None and compare_topic(sink_, {"target": topic}, topic) is None
    for name, says in (("cluster_id", "Kafka cluster c instead of d"), ("topic_id", "created again")):
        other = compare_topic(sink_, {"target": {**topic, name: "d"}}, topic)
        assert other is not None and (other.code, says in other.detail) == ("MZ043", True)


def test_the_plan_says_what_happens_if_the_target_or_the_upstream_changes() -> None:
    def notices(**parts: Resource) -> list[str]:
        plan = build_plan(
            shop(k=kafka(brokers=["b:1"]), pg=postgres(host="o"), **parts), commit(shop(**parts))
        )
        return [d.summary for d in plan.diagnostics if "now leads to" in d.summary]

    assert notices() == []
    parts = {
        "orders": source(on_upstream_change="reset-latest"),
        "orders_pg": sink(on_target_change="accept"),
    }
    assert notices(**parts) == [
        "source.orders: if the connection now leads to another upstream, it continues with records written "
        "there from now on",
        "sink.orders_pg: if the connection now leads to another target, it writes its next step there, "
        "even if earlier steps are missing",
    ]


# --- a running source


OTHER = Diagnostic(code="MZ043", kind="another-upstream", summary="another upstream", detail="Deleted.")
AWAY = Diagnostic(code="MZ050", summary="not reached")


def test_sources_are_checked_each_minute_and_sinks_every_five(world: World) -> None:
    """The start of a query has checked it before. A problem stays until the next check."""
    found: list[Diagnostic] = []
    checked: list[Address] = []

    def check(description: Description) -> CheckResult:
        checked.append(description.address)
        return CheckResult(diagnostics=tuple(found))

    world.apply(make_state(1))
    world.executor.check_result = check
    for problems in ([OTHER], [AWAY], []):  # a server that is away proves nothing
        found[:] = problems
        checked.clear()
        world.now += 61.0
        until(world, lambda seen: ORDERS in checked)
        seen = until(world, lambda seen: (seen.error is None) == (not found))
        assert (seen.condition, seen.error) == ("running", "another upstream. Deleted." if found else None)
        assert SINK not in checked
    world.now += 120.0
    until(world, lambda seen: SINK in checked)


# --- compaction

EVERY = 60.0


def with_delta(serial: int, instance: str = "local", **more: Any) -> State:
    """The sink writes a Delta table."""
    body = {"from": "orders", "connection": "f", "path": "orders", "instance": instance, **more}
    lake = resource(str(SINK), "delta", type="delta", **body)
    instances = {name: Instance(name=name, type="embedded") for name in ("local", instance)}
    return replace(commit(project(kafka(), files(), source(), lake, instances=instances)), serial=serial)


def compacted(world: World) -> int:
    return sum(what == "compact" for what, _ in world.executor.log)


def pass_time(world: World, seconds: float) -> None:
    """Let some time pass, and process the work that is then due."""
    world.now += seconds
    world.settle()
    eventually("the compaction has ended", lambda: not world.jobs.is_full("compaction"))
    world.settle()


def test_only_running_sinks_with_compaction_are_compacted_each_minute(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mzplan.storage")
    asked: dict[str, Any] = {"compaction": {"min_files": 10}}
    world.apply(with_delta(1))
    pass_time(world, EVERY + 1)
    assert compacted(world) == 0
    runs = world.executor.running()[SINK].run_id
    world.apply(with_delta(2, **asked))
    assert world.executor.running()[SINK].run_id == runs  # it is the same query
    assert compacted(world) == 0
    world.executor.compaction = lambda sink: f"{sink.body['compaction']['min_files']} files merged"
    pass_time(world, EVERY + 1)
    pass_time(world, EVERY / 2)
    assert compacted(world) == 1
    assert caplog.messages == ["sink.orders_out: 10 files merged"]
    world.executor.compaction = lambda sink: None
    pass_time(world, EVERY)
    assert (compacted(world), len(caplog.messages)) == (2, 1)
    world.apply(with_delta(3, paused=True, **asked))
    pass_time(world, EVERY * 3)
    assert compacted(world) == 2


def test_a_failed_compaction_is_a_warning_and_is_retried_later(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(sink: Description) -> None:
        raise error("MZ280", "They could not be merged now", "Somebody else has.", "nothing to do.")

    world.executor.compaction = fail
    world.apply(with_delta(1, compaction={"min_files": 2}))
    with caplog.at_level(logging.WARNING, "mzplan.storage"):
        pass_time(world, EVERY + 1)
        pass_time(world, EVERY * 2)
    warning = "[MZ280] They could not be merged now. Somebody else has. Fix: nothing to do."
    assert caplog.messages == [f"sink.orders_out: {warning}"]
    seen = world.settle().observations[SINK]
    assert (seen.condition, seen.error, seen.warning, compacted(world)) == ("running", None, None, 1)
    pass_time(world, EVERY * COMPACTION_BACKOFF)
    assert compacted(world) == 2


def test_the_next_runner_of_a_moved_sink_waits_for_the_compaction(world: World) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(sink: Description) -> None:
        begun.set()
        assert go_on.wait(60)

    world.executor.compaction = slow
    world.apply(with_delta(1, compaction={"min_files": 2}))
    world.now += EVERY + 1
    world.settle()
    assert begun.wait(60)
    moved = world.apply(with_delta(2, compaction={"min_files": 2}, instance="other"))
    assert SINK in moved.observations  # so it has not released the query
    go_on.set()
    pass_time(world, 5.0)
    assert SINK not in world.settle().observations
