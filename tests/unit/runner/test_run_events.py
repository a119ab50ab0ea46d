"""Run events: the start, progress and end of runs, and lineage with the names and schemas of OpenLineage."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from openlineage.client.serde import Serde

from mzplan.connectors.api.lineage_names import at_path
from mzplan.connectors.unresolved import QueryLineage, lineage_of
from mzplan.model.address import Address
from mzplan.model.cause import Cause
from mzplan.model.history import GitRevision
from mzplan.model.state import ResourceState, State
from mzplan.model.violations import ViolationCount
from mzplan.runner.run_events.server import lineage_event
from mzplan.runner.run_events.watch import RunEvent, RunWatch
from mzplan.schema.description import Description, describe
from mzplan.secrets.resolved import remember
from tests.event_collector import check_event
from tests.unit.runner.test_runner import ORDERS, SINK, World, edited, make_state, refusing, second_generation

Seen = list[tuple[str, str]]


class Watched:
    """A runner in memory with a RunWatch that uses the same clock."""

    def __init__(self, world: World):
        self.world = world
        self.events: list[RunEvent] = []
        self.watch = RunWatch(self.events.append, 300.0, lambda: world.now)
        world.runner.observe_runs = self.watch.observe

    def new(self, state: State | None = None) -> Seen:
        """Commit a state, and return the events since the last call."""
        if state is not None:
            self.world.commit(state)
        self.world.settle()
        found = [(event.kind, str(event.description.address)) for event in self.events]
        self.events.clear()
        return sorted(found)


@pytest.fixture
def watched(world: World) -> Watched:
    return Watched(world)


def of_both(*kinds: str) -> Seen:
    return [(kind, name) for kind in kinds for name in ("sink.orders_out", "source.orders")]


@pytest.mark.parametrize("end", ["COMPLETE", "ABORT"])
def test_events_of_a_run_from_start_to_end(watched: Watched, world: World, end: Any) -> None:
    assert watched.new(make_state(1)) == of_both("START")
    world.now = 299.0
    assert watched.new() == []
    world.now = 301.0
    assert watched.new() == of_both("RUNNING")
    assert watched.new() == []
    watched.watch.close(end)  # ABORT if the lease is lost
    assert sorted((event.kind, str(event.description.address)) for event in watched.events) == of_both(end)


def test_a_replaced_paused_or_destroyed_query_completes_its_run(watched: Watched) -> None:
    watched.new(make_state(1))
    second = second_generation(make_state(2))
    assert watched.new(second) == of_both("COMPLETE", "START")
    paused = replace(edited(second, SINK, override="paused"), serial=3)
    assert watched.new(paused) == [("COMPLETE", "sink.orders_out")]
    assert watched.new(replace(make_state(4), resources={})) == [("COMPLETE", "source.orders")]


def test_a_failed_run_has_its_error_and_another_run_follows(watched: Watched, world: World) -> None:
    watched.new(make_state(1))
    run_id = world.executor.running()[ORDERS].run_id
    world.progress(ORDERS, run_rows=70)
    # The description that runs is no longer the committed one.
    world.executor.check_result = refusing("MZ051", lambda one: "b:1" in str(one.connections))
    assert watched.new(make_state(2, broker="b:1")) == []
    world.fail(ORDERS, "the broker says no")
    for _ in range(2):
        world.later(5.0)
    failed, began = watched.events
    assert (failed.kind, failed.error, failed.rows) == ("FAIL", "the broker says no", 70)
    assert (began.kind, began.error, began.rows) == ("START", None, None)
    assert failed.run_id == run_id != began.run_id
    hosts = [str(one.description.connections["connection"].body["brokers"][0]) for one in (failed, began)]
    assert hosts == ["a:1", "a:1"]


# --- lineage


def describing(
    address: str, type_: str, body: dict[str, Any], connection: dict[str, Any] | None = None
) -> Description:
    """A query with a connection, and for a view or sink the source `orders` of three columns."""
    columns = "id BIGINT, name STRING, payload STRUCT<city: STRING>"
    resources = dict(make_state(1, format={"type": "json", "schema": columns}).resources)
    where, linked = Address.parse(address), Address("connection", "c")
    references = {} if where.kind == "source" else {"from": ORDERS}
    if connection is not None:
        resources[linked] = ResourceState(address=linked, id="c", type=connection["type"], body=connection)
        references["connection"] = linked
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
TWO = ["public.a", "stock.b"]
TABLES = {"tables": TWO, "schema": "id BIGINT", "key": ["id"], "include": ["table"]}


TOPIC = {"topic": "t", "format": JSON}
LETTERS = {**TOPIC, "on_error": "dead-letter"}
TO_TOPIC, TO_FOLDER = ({**LETTERS, "dead_letter": to} for to in ({"topic": "bad"}, {"path": "b"}))
VIEW = {"query": "SELECT id FROM orders", "schema": "id BIGINT", "dead_letter": {"path": "b"}}
SOCKET = {**POSTGRES, "host": "/run/pg"}
LAKE = {"type": "files", "path": "s3a://someone@lake/raw/"}
FILES = {"path": "in/orders", "format": JSON}
TABLE = {"type": "files", "path": "lake"}
BROKER, DATABASE = "kafka://b1.example:9093", "postgres://db.example:5432"
ITS_OWN, READ = (("file", f"/warehouse/collections/{id_}/g1") for id_ in "qs")


@pytest.mark.parametrize(
    ("query", "type_", "body", "connection", "reads", "writes"),
    [
        ("source.q", "kafka", TO_TOPIC, KAFKA, [(BROKER, "t")], [ITS_OWN, (BROKER, "bad")]),
        ("source.q", "kafka", TO_FOLDER, KAFKA, [(BROKER, "t")], [ITS_OWN, ("file", "/project/b")]),
        ("source.q", "postgres", TABLES, POSTGRES, [(DATABASE, f"shop.{t}") for t in TWO], [ITS_OWN]),
        ("source.q", "files", FILES, LAKE, [("s3://lake", "raw/in/orders")], [ITS_OWN]),
        ("source.q", "local", {"schema": "id BIGINT"}, None, [], [ITS_OWN]),
        ("view.q", "sql", VIEW, None, [READ], [ITS_OWN, ("file", "/project/b")]),
        ("sink.q", "kafka", {"topic": "out"}, KAFKA, [READ], [(BROKER, "out")]),
        ("sink.q", "postgres", {"table": "t"}, POSTGRES, [READ], [(DATABASE, "shop.public.t")]),
        ("sink.q", "postgres", {"table": "a.t"}, SOCKET, [READ], [("postgres://localhost:5432", "shop.a.t")]),
        ("sink.q", "delta", {"path": "t"}, TABLE, [READ], [("file", "/project/lake/t")]),
        ("sink.q", "console", {}, None, [READ], []),
    ],
)
def test_the_lineage_of_a_query(
    query: str, type_: str, body: Any, connection: Any, reads: Seen, writes: Seen
) -> None:
    found = lineage(describing(query, type_, body, connection))
    assert [tuple(one.name) for one in found.inputs] == reads
    assert [tuple(one.name) for one in found.outputs] == writes


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("s3://bucket", ("s3://bucket", "/")),
        ("abfss://c@a.dfs.core.windows.net/x", ("abfss://c@a.dfs.core.windows.net", "x")),
        ("hdfs://someone@name:8020/x", ("hdfs://name:8020", "/x")),
    ],
)
def test_the_lineage_name_of_a_folder(path: str, name: tuple[str, str]) -> None:
    assert at_path(path) == name


# --- events


def event_of(description: Description, kind: Any = "RUNNING", **more: Any) -> dict[str, Any]:
    """Return the event as it is sent. It conforms to the specification."""
    run = "8a0e1c54-27f3-4f1b-9c6e-0d7a2b5c9e10"
    event = RunEvent(kind=kind, at=1_700_000_000.5, run_id=run, description=description, **more)
    sent: dict[str, Any] = json.loads(Serde.to_json(lineage_event(event, lineage(description), "shop")))
    check_event(sent)
    return sent


def fields_of(dataset: dict[str, Any]) -> list[str]:
    return [one["name"] for one in dataset["facets"]["schema"]["fields"]]


def transformations(of: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the columns that are read, and how they are transformed."""
    return [(one["field"], one["transformations"][0]["subtype"]) for one in of]


def test_an_event_of_a_sink_has_its_run_columns_and_rows() -> None:
    select = ["ID", "name AS customer", "upper(name) AS shout", "payload.city AS city", "1 AS one"]
    body = {"table": "public.t", "select": select, "where": "id > 0 AND name IS NOT NULL"}
    through = Address("connection", "pg")
    cause = Cause(cause="change", serial=7, through=through, detail="host a → b", at="2026-11-24T12:00:00Z")
    sent = event_of(describing("sink.q", "postgres", body, POSTGRES), rows=12, cause=cause)
    assert (sent["eventType"], sent["eventTime"]) == ("RUNNING", "2023-11-14T22:13:20.500+00:00")
    assert (sent["job"]["namespace"], sent["job"]["name"]) == ("shop", "sink.q")
    assert sent["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    assert sent["run"]["runId"] == "8a0e1c54-27f3-4f1b-9c6e-0d7a2b5c9e10"
    why = sent["run"]["facets"]["mzplan_startedBecause"]
    assert (why["cause"], why["serial"], why["through"]) == ("change", 7, "connection.pg")
    (read,), (written,) = sent["inputs"], sent["outputs"]
    assert fields_of(read) == ["id", "name", "payload"]
    assert fields_of(written)[1:] == ["customer", "shout", "city", "one"]
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 12
    columns = written["facets"]["columnLineage"]
    assert {name: transformations(of["inputFields"]) for name, of in columns["fields"].items()} == {
        "ID": [("id", "IDENTITY")],
        "customer": [("name", "IDENTITY")],
        "shout": [("name", "TRANSFORMATION")],
        "city": [("payload", "TRANSFORMATION")],
    }
    assert transformations(columns["dataset"]) == [("id", "FILTER"), ("name", "FILTER")]


def test_column_lineage_of_a_sink_that_leaves_columns_out() -> None:
    body = {"table": "t", "select": ["* EXCEPT (name)", "transform(array(id), x -> x + 1) AS more"]}
    (written,) = event_of(describing("sink.q", "postgres", body, POSTGRES))["outputs"]
    assert fields_of(written) == ["id", "payload", "more"]
    fields = written["facets"]["columnLineage"]["fields"]
    read = {name: [one["field"] for one in of["inputFields"]] for name, of in fields.items()}
    assert read == {"id": ["id"], "payload": ["payload"], "more": ["id"]}


def test_an_event_of_a_source_has_the_columns_of_its_collection() -> None:
    sent = event_of(describing("source.q", "kafka", TOPIC, KAFKA), "START")
    assert not sent["inputs"][0].get("facets")
    assert fields_of(sent["outputs"][0]) == ["id"]
    assert "columnLineage" not in sent["outputs"][0]["facets"]


def test_an_event_of_a_view_has_its_sql_and_the_commit() -> None:
    view = describing("view.q", "sql", {"query": "SELECT id FROM orders"})
    revision = GitRevision(commit="c" * 40, clean=True, repository="https://git.example/data/shop")
    facets = event_of(view, revision=revision)["job"]["facets"]
    assert (facets["sql"]["query"], facets["sql"]["dialect"]) == ("SELECT id FROM orders", "spark")
    location = facets["sourceCodeLocation"]
    assert (location["type"], location["version"]) == ("git", "c" * 40)
    assert location["url"] == f"https://git.example/data/shop/tree/{'c' * 40}"
    for unknown in (None, replace(revision, clean=False), replace(revision, repository="")):
        assert "sourceCodeLocation" not in event_of(view, revision=unknown)["job"]["facets"]
    assert "sql" not in event_of(describing("source.q", "kafka", TOPIC, KAFKA))["job"]["facets"]


def test_an_event_has_the_expectations_and_their_new_violations() -> None:
    expect = {"named": {"not_null": "id", "on_violation": "fail"}, "positive": {"check": "id > 0"}}
    source = describing("source.q", "local", {"schema": "id BIGINT", "expect": expect})
    (written,) = event_of(source, violations={"named": 0, "positive": 3})["outputs"]
    found = written["facets"]["dataQualityAssertions"]["assertions"]
    assert [(one["name"], one["success"], one["severity"], one["actual"]) for one in found] == [
        ("named", True, "error", "0"),
        ("positive", False, "warn", "3"),
    ]
    assert [(one["assertion"], one["content"]) for one in found] == [
        ("not_null", "id IS NOT NULL"),
        ("custom_sql", "id > 0"),
    ]
    assert "dataQualityAssertions" not in event_of(source, "START")["outputs"][0]["facets"]


def test_each_violation_is_in_one_event(watched: Watched, world: World) -> None:
    watched.new(make_state(1))
    seen: list[dict[str, int]] = []
    for now, rows in ((301.0, 2), (602.0, 2), (903.0, 5)):
        world.progress(ORDERS, violations={"positive": ViolationCount(rows=rows, last_step=1)})
        world.now = now
        world.settle()
        events = [event for event in watched.events if event.description.address == ORDERS]
        seen += [dict(event.violations) for event in events]
        watched.events.clear()
    assert seen == [{"positive": 2}, {"positive": 0}, {"positive": 3}]


def test_events_name_the_commit_of_the_newest_serial(watched: Watched) -> None:
    revision = GitRevision(commit="c" * 40, clean=True)
    watched.watch.revision = revision
    watched.world.commit(make_state(1))
    watched.world.settle()
    assert {event.revision for event in watched.events} == {revision}


def test_a_failure_has_its_error_and_no_event_has_a_secret() -> None:
    remember("hunter2-hunter2")
    problem = "login failed for hunter2-hunter2 " + "x" * 20_000
    sent = event_of(describing("sink.q", "postgres", {"table": "t"}, POSTGRES), "FAIL", error=problem)
    facet = sent["run"]["facets"]["errorMessage"]
    assert facet["message"].startswith("login failed for *** xxx") and len(facet["message"]) <= 10_000
    text = json.dumps(sent)
    assert "hunter2" not in text and "PG_PASSWORD" not in text and "PG_USER" not in text
