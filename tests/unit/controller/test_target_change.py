"""Whether a sink's target still has its steps, and whether a source still reads the same upstream."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mzplan.connectors.api.queries import ResolvedQuery, resolve
from mzplan.connectors.kafka.transactional_writer import compare_target as compare_topic
from mzplan.connectors.postgres.identity import WrittenSteps, compare_target
from mzplan.controller.executor import CheckResult
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, ExitCode
from mzplan.model.resources import Resource
from mzplan.plan import build_plan
from mzplan.schema.description import Description, describe
from mzplan.secrets.references import Secrets
from mzplan.warehouse.checkpoints import Checkpoint
from tests.unit.runner.test_runner import ORDERS, SINK, World, make_state
from tests.unit.runner.test_status import until
from tests.unit.small_projects import at, commit, kafka, postgres, shop, sink, source

HERE = {"type": "postgres", "system_identifier": "7", "timeline": 1, "database": "shop", "database_oid": 5}
THERE = WrittenSteps(query_id="q", step=3)


def query(folder: Path, **body: Any) -> ResolvedQuery:
    """A sink whose checkpoint has done steps 0 to 3."""
    resources = commit(shop(orders_pg=sink(**body))).resources
    checkpoint = Checkpoint(str(folder))
    for log in ("offsets", "commits"):
        (folder / "spark" / log).mkdir(parents=True)
        for step in range(4):
            (folder / "spark" / log / str(step)).touch()
    (folder / "spark" / "metadata").write_text(json.dumps({"id": "q"}))
    checkpoint.record_delivery({"delivery": "exactly-once", "target": HERE})
    found = resolve(describe(resources[at("sink.orders_pg")], resources), Secrets(".", {}), ".")
    return replace(found, checkpoint=checkpoint)


@pytest.mark.parametrize(
    ("found", "there", "code", "says"),
    [
        (HERE, THERE, "", ""),
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
