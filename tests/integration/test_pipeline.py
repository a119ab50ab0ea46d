"""The whole path on real Kafka, PostgreSQL and Spark: YAML → plan → apply → queries → rows, once."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from examples.servers import KafkaBroker, create_topic
from tests.event_collector import Collector, check_event
from tests.integration.orders_shop import OrdersShop
from tests.integration.prometheus import metrics_used, samples
from tests.support import Project, drop_file, eventually, kafka_connection, orders_sink, orders_source


def test_only_the_users_of_a_changed_connection_restart_and_no_row_is_lost_or_doubled(
    shop: OrdersShop, run_events: Collector
) -> None:
    project, kafka = shop.project, shop.kafka
    tables = [f"t{i}" for i in range(3)]
    topics = [shop.topic(f"move{i}") for i in range(3)]
    shop.create_tables(*tables)
    for one in topics:
        shop.produce(one, 0, 50)

    def declare(broker: str) -> None:
        shop.declare(
            "move",
            kafka_connection("mv_a", broker) + kafka_connection("mv_b", kafka.bootstrap)
            + shop.connection("mv_pg"),
            "".join(orders_source(f"mv_s{i}", "mv_a" if i < 2 else "mv_b", topics[i]) for i in range(3)),
            "".join(orders_sink(f"mv_t{i}", f"mv_s{i}", "mv_pg", f"t{i}") for i in range(3)),
        )  # fmt: skip

    declare(kafka.bootstrap)
    created = project.apply()
    assert created["summary"]["create"] == 9
    assert {c["status"] for c in created["changes"]} == {"applied"}
    shop.arrived(50, *tables)

    # Applied twice: nothing restarts.
    before = project.queries()
    assert project.apply()["changes"] == []
    assert project.run_ids() == {a: q["run_id"] for a, q in before.items()}

    declare(kafka.bootstrap2)
    planned = project.json("plan")
    assert {c["address"]: c["action"] for c in planned["changes"]} == {
        "connection.mv_a": "update",
        "source.mv_s0": "restart",
        "source.mv_s1": "restart",
    }
    assert planned["downstream"] == ["sink.mv_t0", "sink.mv_t1"]

    def keep_coming() -> None:
        for start in range(50, 250, 10):
            for one in topics:
                shop.produce(one, start, start + 10)
            time.sleep(0.1)

    coming = threading.Thread(target=keep_coming)
    coming.start()
    moved = project.apply()
    coming.join()
    after = project.queries()
    restarted = {a for a in after if after[a]["run_id"] != before[a]["run_id"]}
    assert restarted == {"source.mv_s0", "source.mv_s1"}
    assert {a: q["id"] for a, q in after.items()} == {a: q["id"] for a, q in before.items()}
    change = next(c for c in moved["changes"] if c["address"] == "source.mv_s0")
    assert change["query"]["run_id_before"] == before["source.mv_s0"]["run_id"]
    assert change["query"]["run_id_after"] == after["source.mv_s0"]["run_id"]
    check_run_events(run_events, before["source.mv_s0"], after["source.mv_s0"], topics[0], shop)
    shop.arrived(250, *tables)
    check_counters(project)
    is_paused_resumed_and_restarted(shop, topics[2])


def is_paused_resumed_and_restarted(shop: OrdersShop, topic: str) -> None:
    """The sink of the third source, by hand."""
    project, sink = shop.project, "sink.mv_t2"
    before = project.queries()
    assert project.json("pause", sink)["changes"][0]["status"] == "applied"
    assert project.queries()[sink]["condition"] == "paused"
    shop.produce(topic, 250, 260)
    assert project.apply()["changes"] == []  # it is paused until it is resumed
    eventually("the rows wait", lambda: project.queries()[sink]["lag"] == 10)
    assert len(shop.ids("t2")) == 250
    project.json("resume", sink)
    shop.arrived(260, "t2")

    resumed = project.queries()
    reached = resumed[sink]["step"] or 0
    project.json("restart", sink)
    now = project.queries()
    assert {address for address in now if now[address]["run_id"] != resumed[address]["run_id"]} == {sink}
    assert now[sink]["id"] == before[sink]["id"]  # Spark's: the same checkpoint
    assert (now[sink]["step"] or 0) >= reached  # known at once, though nothing new arrives


def check_counters(project: Project) -> None:
    """What the runner has counted, over both runs of a source; and how old the rows were that came last."""

    def counted(address: str) -> dict[str, int]:
        return project.queries()[address]["counters"] or {}

    for address, restarts in (("source.mv_s0", 1), ("source.mv_s2", 0), ("sink.mv_t0", 0)):
        eventually("250 rows are counted", lambda a=address: counted(a).get("rows") == 250)  # type: ignore[misc]
        shown = project.queries()[address]
        assert 1 < shown["counters"]["batches"] <= shown["step"] + 1
        assert (shown["counters"]["restarts"], shown["counters"]["retries"]) == (restarts, 0)
        assert shown["batch_seconds"] > 0 and shown["latency_seconds"] >= 0
    of_sink = [one for one in samples(project.metrics_port) if one.labels.get("query") == "sink.mv_t0"]
    shown = {one.name: one.value for one in of_sink}
    assert shown["mzplan_query_rows_total"] == 250.0 and shown["mzplan_query_latency_seconds"] >= 0


def check_run_events(
    found: Collector, before: dict[str, Any], after: dict[str, Any], topic: str, shop: OrdersShop
) -> None:
    """What an OpenLineage server is told when source.mv_s0 restarts elsewhere, and sink.mv_t0 runs on."""
    kafka, postgres = shop.kafka, shop.postgres

    def of(job: str) -> list[dict[str, Any]]:  # RUNNING may come in between
        return [event for event in found.of(job) if event["eventType"] != "RUNNING"]

    eventually("the new run has started", lambda: len(of("source.mv_s0")) >= 3)
    first, ended, second = of("source.mv_s0")[:3]
    (of_sink,) = of("sink.mv_t0")
    for event in (first, ended, second, of_sink):
        check_event(event)
    assert [event["eventType"] for event in (first, ended, second)] == ["START", "COMPLETE", "START"]
    runs = [event["run"]["runId"] for event in (first, ended, second)]
    assert runs == [before["run_id"], before["run_id"], after["run_id"]]
    causes = [event["run"]["facets"]["mzplan_startedBecause"] for event in (first, ended, second)]
    assert [one["cause"] for one in causes] == ["change"] * 3 and causes[2]["through"] == "connection.mv_a"
    assert names(first["inputs"]) == names(ended["inputs"]) == [(f"kafka://{kafka.bootstrap}", topic)]
    assert names(second["inputs"]) == [(f"kafka://{kafka.bootstrap2}", topic)]
    (collection,) = names(first["outputs"])
    assert collection[0] == "file" and (Path(collection[1]) / "_delta_log").is_dir()
    assert ended["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] >= 50
    assert names(of_sink["inputs"]) == [collection]
    table = (f"postgres://127.0.0.1:{postgres.port}", f"{shop.database}.public.t0")
    assert names(of_sink["outputs"]) == [table]
    assert postgres.password not in json.dumps(found.events)


def names(datasets: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one["namespace"], one["name"]) for one in datasets]


def test_a_change_repairs_a_source_whose_broker_is_gone(shop: OrdersShop, own_kafka: KafkaBroker) -> None:
    project = shop.project
    shop.create_tables("repaired")
    create_topic(own_kafka.bootstrap, "repair")
    shop.produce("repair", 0, 30, own_kafka.bootstrap)

    def declare(broker: str) -> None:
        shop.declare(
            "repair",
            kafka_connection("rp_k", broker) + shop.connection("rp_pg"),
            orders_source("rp_s", "rp_k", "repair") + "    expect: {named: {not_null: customer}}\n",
            orders_sink("rp_t", "rp_s", "rp_pg", "repaired"),
        )

    declare(own_kafka.bootstrap)
    project.apply()
    shop.arrived(30, "repaired")

    # The old address goes away; rows come in at the new one; the change repairs it.
    own_kafka.stop()
    own_kafka.start(listeners=[2])
    # What the alerts and the dashboard ask for is there; also what there is only in trouble.
    used = metrics_used() - {"mzplan_query_drift"}
    eventually(
        "all metrics are there", lambda: not used - {one.name for one in samples(project.metrics_port)}
    )
    faults = [one.labels for one in samples(project.metrics_port) if one.name == "mzplan_query_error"]
    (fault,) = [labels for labels in faults if labels["connection"]]
    assert (fault["query"], fault["connection"]) == ("source.rp_s", "connection.rp_k")
    assert fault["code"] == "MZ050"
    shop.produce("repair", 30, 60, own_kafka.bootstrap2)
    declare(own_kafka.bootstrap2)
    (source,) = [c for c in project.apply()["changes"] if c["address"] == "source.rp_s"]
    resumed = source["resumed"]
    assert sum(resumed["position"]["repair"].values()) == 30  # over both partitions
    assert resumed["rows"] <= 30 <= resumed["rows"] + resumed["lag"]  # what waits is measured now and then
    shop.arrived(60, "repaired")


def test_a_replaced_source_takes_its_sinks_along_and_begins_anew(shop: OrdersShop) -> None:
    project = shop.project
    shop.create_tables("appended", "latest")
    shop.execute("ALTER TABLE latest ADD PRIMARY KEY (id)")
    old, new = shop.topic("old"), shop.topic("new")
    shop.produce(old, 0, 20)
    shop.produce(new, 100, 130)

    def declare(one: str, on_replace: str = "") -> None:
        shop.declare(
            "replace",
            kafka_connection("re_k", shop.kafka.bootstrap) + shop.connection("re_pg"),
            orders_source("re_s", "re_k", one),
            orders_sink("re_t", "re_s", "re_pg", "appended", on_replace)
            + orders_sink("re_u", "re_s", "re_pg", "latest", ", mode: upsert, key: [id]"),
        )

    declare(old)
    project.apply()
    shop.arrived(20, "appended", "latest")
    before = project.json("show", "source.re_s")

    declare(new)
    state = project.state_bytes()
    assert project.apply("--allow-replace", code=7)["diagnostics"][0]["code"] == "MZ047"
    declare(new, ", on_replace: truncate")
    assert project.apply(code=7)["diagnostics"][0]["code"] == "MZ040"
    lost = project.apply("--allow-replace", code=7)["diagnostics"][0]  # the other topic has none of it
    assert (lost["code"], lost["summary"]) == ("MZ292", "20 of 20 records of source.re_s can't be read again")
    assert project.state_bytes() == state

    done = project.apply("--allow-replace", "--allow-loss")
    replaced = {c["address"] for c in done["changes"] if c["action"] == "replace"}
    assert replaced == {"source.re_s", "sink.re_t", "sink.re_u"} and len(done["changes"]) == 3
    eventually("the new rows alone", lambda: shop.ids("appended") == list(range(100, 130)))
    eventually("both in the upsert", lambda: len(shop.ids("latest")) == 50)
    after = project.json("show", "source.re_s")
    assert (after["id"], after["generation"]) == (before["id"], before["generation"] + 1)
    # The old generation's storage is listed, and removed once it has been kept long enough (here: 1 s).
    collections = project.folder / "warehouse" / "collections" / after["id"]
    eventually("the old collection is gone", lambda: [p.name for p in collections.iterdir()] == ["g2"])
    assert project.apply()["changes"] == []


@pytest.mark.nightly
def test_a_wrong_value_of_a_secret_leaves_no_trace_and_the_right_one_heals(shop: OrdersShop) -> None:
    project, name = shop.project, shop.database
    inbox = project.folder / "inbox_sv"
    inbox.mkdir()
    shop.execute(
        "DROP ROLE IF EXISTS sv_role; CREATE ROLE sv_role LOGIN PASSWORD 'right'; "
        "CREATE TABLE values_of (id bigint); GRANT INSERT ON values_of TO sv_role; "
        f"GRANT CREATE ON DATABASE {name} TO sv_role",
    )
    right = {"SV_PASSWORD": "right"}

    def declare(more: str = "") -> None:
        shop.declare(
            "values",
            "  sv_here: {type: files, path: .}\n"
            f"  sv_pg: {{type: postgres, host: 127.0.0.1, port: {shop.postgres.port}, database: {name}, "
            "user: sv_role, password: '${env:SV_PASSWORD}'}\n",
            "  sv_s: {connection: sv_here, path: inbox_sv, trigger: {interval: 500ms}, "
            'format: {type: json, schema: "id BIGINT"}}\n',
            orders_sink("sv_t", "sv_s", "sv_pg", "values_of", more),
        )

    def arrives(row: int) -> None:
        drop_file(inbox / f"{row}.json", [{"id": row}])
        shop.arrived(row + 1, "values_of")

    declare()
    project.apply(environment=right)
    arrives(0)
    before = project.run_ids("sv_")

    declare(", where: id >= 0")
    refused = project.apply(code=1, environment={"SV_PASSWORD": "wrong"})
    assert [(d["code"], d["address"]) for d in refused["diagnostics"]] == [("MZ051", "sink.sv_t")]
    arrives(1)
    assert project.run_ids("sv_") == before
    # Its next start, long after that, is with the right one.
    project.json("restart", "sink.sv_t")
    arrives(2)

    # It fails for want of the new value; no file has changed, and the right one heals it.
    shop.execute("ALTER ROLE sv_role PASSWORD 'next'")
    declare()
    (inbox / "3.json").write_text(json.dumps({"id": 3}))
    eventually("it fails", lambda: project.queries()["sink.sv_t"]["condition"] == "failed")
    assert "MZ051" in project.run("status").stdout
    healed = project.apply(environment={"SV_PASSWORD": "next"})
    assert [(c["address"], c["action"]) for c in healed["changes"]] == [("sink.sv_t", "restart")]
    assert project.queries()["sink.sv_t"]["condition"] == "running"
    shop.arrived(4, "values_of")

    # Destroyed: what it has kept in the target goes with its checkpoint, and the schema with the last sink's.
    (project.folder / "values.yaml").unlink()
    project.apply()
    schema = "SELECT 1 FROM pg_namespace WHERE nspname = 'mzplan'"
    eventually("the schema is gone", lambda: shop.rows(schema) == [])
    assert shop.ids("values_of") == [0, 1, 2, 3]
