"""Run events: the start, progress and end of runs, and lineage with the names and schemas of OpenLineage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from openlineage.client.serde import Serde

from mzplan.connectors.api.lineage_names import at_path
from mzplan.connectors.unresolved import QueryLineage, lineage_of
from mzplan.controller.executor import CheckResult
from mzplan.model.address import Address
from mzplan.model.cause import Cause
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.state import ResourceState
from mzplan.runner.run_events.server import lineage_event
from mzplan.runner.run_events.watch import RunEvent, RunWatch
from mzplan.schema.description import Description, describe
from mzplan.secrets import resolved
from mzplan.secrets.resolved import remember
from tests.event_collector import check_event
from tests.unit.runner.test_runner import ORDERS, SINK, World, make_state, second_generation

Seen = list[tuple[str, str]]


class Watched:
    """A runner in memory with a RunWatch that uses the same clock."""

    def __init__(self, world: World):
        self.world = world
        self.events: list[RunEvent] = []
        self.watch = RunWatch(self.events.append, 300.0, lambda: world.now)
        world.runner.observe_runs = self.watch.observe

    def new(self) -> Seen:
        """Return the events since the last call."""
        self.world.settle()
        found = [(event.kind, str(event.description.address)) for event in self.events]
        self.events.clear()
        return sorted(found)


@pytest.fixture
def watched(world: World) -> Watched:
    return Watched(world)


def test_events_of_a_run_from_start_to_end(watched: Watched, world: World) -> None:
    world.commit(make_state(1))
    assert watched.new() == [("START", "sink.orders_out"), ("START", "source.orders")]
    world.now = 299.0
    assert watched.new() == []
    world.now = 301.0
    assert watched.new() == [("RUNNING", "sink.orders_out"), ("RUNNING", "source.orders")]
    assert watched.new() == []
    watched.watch.close("COMPLETE")
    assert sorted(event.description.address for event in watched.events) == [SINK, ORDERS]
    assert {event.kind for event in watched.events} == {"COMPLETE"}


def test_a_restart_ends_a_run_and_starts_another_run_of_the_same_job(watched: Watched, world: World) -> None:
    world.commit(make_state(1))
    watched.new()
    world.commit(make_state(2, broker="b:1"))
    world.settle()
    ended, began = watched.events
    assert (ended.kind, began.kind) == ("COMPLETE", "START")
    assert ended.run_id != began.run_id and ended.description.address == began.description.address == ORDERS
    assert began.description.connections["connection"].body["brokers"] == ["b:1"]
    assert ended.description.connections["connection"].body["brokers"] == ["a:1"]


def test_a_paused_or_destroyed_query_completes_its_run(watched: Watched, world: World) -> None:
    world.commit(make_state(1))
    watched.new()
    paused = make_state(2)
    resources = {**paused.resources, SINK: replace(paused.resources[SINK], override="paused")}
    world.commit(replace(paused, resources=resources))
    assert watched.new() == [("COMPLETE", "sink.orders_out")]
    world.commit(replace(make_state(3), resources={}))
    assert watched.new() == [("COMPLETE", "source.orders")]


def test_a_failed_run_has_its_error_and_another_run_follows(watched: Watched, world: World) -> None:
    world.commit(make_state(1))
    watched.new()
    report = world.executor.running()[ORDERS]
    world.executor.progress(report.name, run_rows=70)
    world.executor.fail_query(report.name, "the broker says no")
    world.now += 5.0
    watched.world.settle()
    world.now += 5.0
    watched.world.settle()
    failed, began = watched.events
    assert (failed.kind, failed.error, failed.rows) == ("FAIL", "the broker says no", 70)
    assert (began.kind, began.error, began.rows) == ("START", None, None)
    assert failed.run_id == report.run_id != began.run_id


def test_the_running_query_of_a_rejected_change_fails_under_its_own_description(
    watched: Watched, world: World
) -> None:
    """The description that ran is no longer the committed one."""
    world.commit(make_state(1))
    watched.new()
    broken = Diagnostic(code="MZ051", summary="no such broker")
    world.executor.check_result = lambda one: CheckResult(
        diagnostics=(broken,) if one.connections and "b:1" in str(one.connections) else ()
    )
    world.commit(make_state(2, broker="b:1"))
    assert watched.new() == []
    world.executor.fail_query(world.executor.running()[ORDERS].name, "it died")
    world.settle()
    failed = watched.events[0]
    assert (failed.kind, failed.error) == ("FAIL", "it died")
    assert failed.description.connections["connection"].body["brokers"] == ["a:1"]


def test_a_lost_lease_aborts_the_runs(watched: Watched, world: World) -> None:
    world.commit(make_state(1))
    watched.new()
    watched.watch.close("ABORT")
    assert {event.kind for event in watched.events} == {"ABORT"}


def test_a_replacement_is_another_run_of_the_same_job(watched: Watched, world: World) -> None:
    world.commit(make_state(1))
    watched.new()
    world.commit(second_generation(make_state(2)))
    found = watched.new()
    assert found == [
        ("COMPLETE", "sink.orders_out"),
        ("COMPLETE", "source.orders"),
        ("START", "sink.orders_out"),
        ("START", "source.orders"),
    ]


# --- lineage


def describing(
    address: str, type_: str, body: dict[str, Any], connection: dict[str, Any] | None = None
) -> Description:
    """A query with a connection, and for a sink the source `orders` of three columns."""
    linked, source = Address("connection", "c"), Address("source", "orders")
    columns = "id BIGINT, name STRING, payload STRUCT<city: STRING>"
    resources = {
        source: ResourceState(
            address=source,
            id="s",
            type="kafka",
            body={"topic": "t", "format": {"type": "json", "schema": columns}},
        )
    }
    references = {}
    if connection is not None:
        resources[linked] = ResourceState(address=linked, id="c", type=connection["type"], body=connection)
        references["connection"] = linked
    where = Address.parse(address)
    if where.kind == "sink":
        references["from"] = source
    made = ResourceState(address=where, id="q", type=type_, body=body, references=references)
    return describe(made, resources)


def lineage(description: Description) -> QueryLineage:
    return lineage_of(description, "/project", "/warehouse")


KAFKA = {"type": "kafka", "brokers": ["SSL://B1.example:9093", "b2.example:9093"]}
POSTGRES = {
    "type": "postgres",
    "host": "db.example",
    "database": "shop",
    "user": "${env:PG_USER}",
    "password": "${env:PG_PASSWORD}",
}
JSON = {"type": "json", "schema": "id BIGINT"}
TABLES = {"tables": ["public.a", "stock.b"], "schema": "id BIGINT", "key": ["id"], "include": ["table"]}
OWN = ("file", "/warehouse/collections/q/g1")


@pytest.mark.parametrize(
    ("type_", "body", "connection", "reads", "writes"),
    [
        ("kafka", {"topic": "t", "format": JSON}, KAFKA, [("kafka://b1.example:9093", "t")], [OWN]),
        (
            "kafka",
            {"topic": "t", "format": JSON, "on_error": "dead-letter", "dead_letter": {"topic": "bad"}},
            KAFKA,
            [("kafka://b1.example:9093", "t")],
            [OWN, ("kafka://b1.example:9093", "bad")],
        ),
        (
            "kafka",
            {"topic": "t", "format": JSON, "on_error": "dead-letter", "dead_letter": {"path": "bad"}},
            KAFKA,
            [("kafka://b1.example:9093", "t")],
            [OWN, ("file", "/project/bad")],
        ),
        (
            "postgres",
            TABLES,
            POSTGRES,
            [("postgres://db.example:5432", "shop.public.a"), ("postgres://db.example:5432", "shop.stock.b")],
            [OWN],
        ),
        (
            "files",
            {"path": "in/orders", "format": JSON},
            {"type": "files", "path": "s3://lake/raw/"},
            [("s3://lake", "raw/in/orders")],
            [OWN],
        ),
        ("local", {"schema": "id BIGINT"}, None, [], [OWN]),
    ],
)
def test_the_lineage_of_a_source(
    type_: str, body: dict[str, Any], connection: dict[str, Any] | None, reads: Seen, writes: Seen
) -> None:
    found = lineage(describing("source.q", type_, body, connection))
    assert [tuple(one.name) for one in found.inputs] == reads
    assert [tuple(one.name) for one in found.outputs] == writes


@pytest.mark.parametrize(
    ("type_", "body", "connection", "writes"),
    [
        ("kafka", {"topic": "out"}, KAFKA, [("kafka://b1.example:9093", "out")]),
        ("postgres", {"table": "t"}, POSTGRES, [("postgres://db.example:5432", "shop.public.t")]),
        (
            "postgres",
            {"table": "a.t"},
            {**POSTGRES, "host": "/run/pg", "port": 7},
            [("postgres://localhost:7", "shop.a.t")],
        ),
        ("delta", {"path": "t"}, {"type": "files", "path": "lake"}, [("file", "/project/lake/t")]),
        (
            "files",
            {"path": "t", "format": {"type": "json"}},
            {"type": "files", "path": "gs://b"},
            [("gs://b", "t")],
        ),
        ("console", {}, None, []),
    ],
)
def test_the_lineage_of_a_sink(
    type_: str, body: dict[str, Any], connection: dict[str, Any] | None, writes: Seen
) -> None:
    found = lineage(describing("sink.q", type_, body, connection))
    assert [tuple(one.name) for one in found.inputs] == [("file", "/warehouse/collections/s/g1")]
    assert [tuple(one.name) for one in found.outputs] == writes


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/data/x", ("file", "/data/x")),
        ("file:///data/x", ("file", "/data/x")),
        ("s3a://bucket/a/b/", ("s3://bucket", "a/b")),
        ("s3://bucket", ("s3://bucket", "/")),
        ("abfss://c@a.dfs.core.windows.net/x", ("abfss://c@a.dfs.core.windows.net", "x")),
        ("hdfs://someone@name:8020/x", ("hdfs://name:8020", "/x")),
    ],
)
def test_the_lineage_name_of_a_folder(path: str, name: tuple[str, str]) -> None:
    assert at_path(path) == name


# --- events


@pytest.fixture
def no_secrets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(resolved, "_values", {})
    yield


def event_of(description: Description, kind: Any = "RUNNING", **more: Any) -> dict[str, Any]:
    """Return the event as it is sent. It conforms to the specification."""
    run = "8a0e1c54-27f3-4f1b-9c6e-0d7a2b5c9e10"
    event = RunEvent(kind=kind, at=1_700_000_000.5, run_id=run, description=description, **more)
    sent: dict[str, Any] = json.loads(Serde.to_json(lineage_event(event, lineage(description), "shop")))
    check_event(sent)
    return sent


SELECT = ["ID", "name AS customer", "upper(name) AS shout", "payload.city AS city", "1 AS one"]


def test_an_event_has_the_cause_of_its_run() -> None:
    through = Address("connection", "pg")
    cause = Cause(cause="change", serial=7, through=through, detail="host a → b", at="2026-11-24T12:00:00Z")
    sent = event_of(describing("sink.q", "postgres", {"table": "t"}, POSTGRES), kind="START", cause=cause)
    found = sent["run"]["facets"]["mzplan_startedBecause"]
    assert {name: found[name] for name in ("cause", "serial", "through", "detail", "at")} == {
        "cause": "change",
        "serial": 7,
        "through": "connection.pg",
        "detail": "host a → b",
        "at": "2026-11-24T12:00:00Z",
    }
    assert found["_producer"].startswith("pkg:pypi/mzplan@")


def test_an_event_of_a_sink() -> None:
    body = {"table": "public.t", "select": SELECT, "where": "id > 0 AND name IS NOT NULL"}
    sent = event_of(describing("sink.q", "postgres", body, POSTGRES), rows=12)
    assert (sent["eventType"], sent["eventTime"]) == ("RUNNING", "2023-11-14T22:13:20.500+00:00")
    assert (sent["job"]["namespace"], sent["job"]["name"]) == ("shop", "sink.q")
    assert sent["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    assert sent["run"]["runId"] == "8a0e1c54-27f3-4f1b-9c6e-0d7a2b5c9e10"
    assert "parent" not in sent["run"]["facets"] and "nominalTime" not in sent["run"]["facets"]
    assert sent["producer"].startswith("pkg:pypi/mzplan@")
    (read,), (written,) = sent["inputs"], sent["outputs"]
    assert [(one["name"], one["type"]) for one in read["facets"]["schema"]["fields"]] == [
        ("id", "BIGINT"),
        ("name", "STRING"),
        ("payload", "STRUCT<city: STRING>"),
    ]
    assert [one["name"] for one in written["facets"]["schema"]["fields"]][1:] == [
        "customer",
        "shout",
        "city",
        "one",
    ]
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 12
    columns = written["facets"]["columnLineage"]
    made = {
        name: [
            (one["field"], one["transformations"][0]["type"], one["transformations"][0]["subtype"])
            for one in of["inputFields"]
        ]
        for name, of in columns["fields"].items()
    }
    assert made == {
        "ID": [("id", "DIRECT", "IDENTITY")],
        "customer": [("name", "DIRECT", "IDENTITY")],
        "shout": [("name", "DIRECT", "TRANSFORMATION")],
        "city": [("payload", "DIRECT", "TRANSFORMATION")],
    }
    assert [(one["field"], one["transformations"][0]["subtype"]) for one in columns["dataset"]] == [
        ("id", "FILTER"),
        ("name", "FILTER"),
    ]
    assert {(one["namespace"], one["name"]) for one in columns["dataset"]} == {
        (read["namespace"], read["name"])
    }


def test_column_lineage_of_a_sink_that_leaves_columns_out() -> None:
    body = {"table": "t", "select": ["* EXCEPT (name)", "transform(array(id), x -> x + 1) AS more"]}
    (written,) = event_of(describing("sink.q", "postgres", body, POSTGRES))["outputs"]
    assert [one["name"] for one in written["facets"]["schema"]["fields"]] == ["id", "payload", "more"]
    fields = written["facets"]["columnLineage"]["fields"]
    assert {name: [one["field"] for one in of["inputFields"]] for name, of in fields.items()} == {
        "id": ["id"],
        "payload": ["payload"],
        "more": ["id"],
    }


@pytest.mark.parametrize("kind", ["START", "COMPLETE", "ABORT"])
def test_events_of_a_source(kind: str) -> None:
    sent = event_of(describing("source.q", "kafka", {"topic": "t", "format": JSON}, KAFKA), kind)
    assert "facets" not in sent["inputs"][0] or sent["inputs"][0]["facets"] == {}
    assert [one["name"] for one in sent["outputs"][0]["facets"]["schema"]["fields"]] == ["id"]
    assert "columnLineage" not in sent["outputs"][0]["facets"]


def test_a_failure_has_its_error_and_no_event_has_a_secret(no_secrets: None) -> None:
    remember("hunter2-hunter2")
    problem = "login failed for hunter2-hunter2 " + "x" * 20_000
    sent = event_of(describing("sink.q", "postgres", {"table": "t"}, POSTGRES), "FAIL", error=problem)
    facet = sent["run"]["facets"]["errorMessage"]
    assert facet["message"].startswith("login failed for *** xxx") and len(facet["message"]) <= 10_000
    text = json.dumps(sent)
    assert "hunter2" not in text and "PG_PASSWORD" not in text and "PG_USER" not in text
