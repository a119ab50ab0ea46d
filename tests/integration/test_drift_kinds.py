"""Every kind of drift, made on real Spark, Kafka and PostgreSQL, and found by `mzplan drift` from another
checkout: what a scheduled job sees, which has the store and nothing else. All share one runner, here.
(test_alter shows that a query which rejects its change is outdated.)"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from examples.servers import KafkaBroker, PostgresServer, create_topic, delete_topic, produce_json
from mzplan.model.resources import Retries
from mzplan.store.backends.local import STATE_KEY
from tests.integration.crew import Crew
from tests.integration.orders_shop import ids_in_delta
from tests.integration.spark_lab import Lab
from tests.support import drop_ids, eventually, execute, kafka_connection, orders, orders_source, rows_of
from tests.unit.cli_runs import apply, mzplan

READINGS = "{interval: 500ms}, format: {type: json, schema: 'id BIGINT'}"


@pytest.fixture(scope="module")
def crew(
    lab: Lab, kafka: KafkaBroker, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Crew]:
    kafka.start()
    postgres.start()
    crew = Crew(tmp_path_factory.mktemp("drifting"), "drifting", lab)
    topics = ("flow", "again", "bad")
    for name in topics:
        create_topic(kafka.bootstrap, f"drift-{name}", 1)
        produce_json(kafka.bootstrap, f"drift-{name}", orders(0, 5))
    postgres.create_database("drifting")
    execute(postgres.dsn("drifting"), "CREATE ROLE drifting LOGIN SUPERUSER PASSWORD 'first-word'")
    for table in ("flow", "stuck"):
        columns = "(id bigint, customer text, amount numeric(10,2))"
        execute(postgres.dsn("drifting"), f"CREATE TABLE {table} {columns}")
    for checkout in (crew.folder, crew.elsewhere):
        (checkout / "word").write_text("first-word\n")
    inboxes = ("halted", "lost", "swept", "again_files")
    for inbox in inboxes:
        (crew.folder / inbox).mkdir()
        drop_ids(crew.folder / inbox, 1, 2, 3)
    sink = "connection: pg, trigger: {interval: 500ms}"
    crew.declare(
        "pipeline",
        "connections:\n  here: {type: files, path: .}\n"
        + kafka_connection("k", kafka.bootstrap)
        + f"  pg: {{type: postgres, host: 127.0.0.1, port: {postgres.port}, database: drifting, "
        "user: drifting, password: '${file:word}'}\nsources:\n"
        + "".join(orders_source(name, "k", f"drift-{name}") for name in topics)
        + "".join(f"  {name}: {{connection: here, path: {name}, trigger: {READINGS}}}\n" for name in inboxes)
        + f"sinks:\n  flow_pg: {{from: flow, table: flow, {sink}}}\n"
        f"  stuck_pg: {{from: flow, table: stuck, {sink}}}\n",
    )
    applied = apply(crew.folder, "--wait", "180s").json()
    assert {c["status"] for c in applied["changes"]} == {"applied"}
    yield crew
    crew.close()
    postgres.drop_database("drifting")
    execute(postgres.dsn("postgres"), "DROP ROLE drifting")
    for name in topics:
        delete_topic(kafka.bootstrap, f"drift-{name}")


@pytest.mark.nightly
def test_a_healthy_project_gives_no_false_alarm_under_load(
    crew: Crew, kafka: KafkaBroker, postgres: PostgresServer
) -> None:
    """50 jobs, while rows flow, cores are busy, and changes are applied."""
    enough, sent = threading.Event(), [5]

    def produce() -> None:
        while not enough.is_set():
            produce_json(kafka.bootstrap, "drift-flow", orders(sent[0], sent[0] + 500))
            sent[0] += 500

    def burn() -> None:
        while not enough.is_set():
            sum(range(100_000))

    threads = [threading.Thread(target=target) for target in (produce, burn)]
    for thread in threads:
        thread.start()
    changing: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(50):
            assert crew.drift() == set(), f"run {number}"
            time.sleep(0.1)
            if number in (10, 30):  # a commit, and its runner takes it in: that is no drift
                assert not any(command.wait(120) for command in changing)
                command = [sys.executable, "-m", "mzplan", "-C", str(crew.folder), "restart", "source.halted"]
                changing.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
    finally:
        enough.set()
        for thread in threads:
            thread.join(120)
        assert not any(command.wait(120) for command in changing)
    dsn = postgres.dsn("drifting")
    eventually(
        "every row once",
        lambda: rows_of(dsn, "SELECT count(*), count(DISTINCT id) FROM flow")[0] == (sent[0],) * 2,
    )


def test_a_query_stopped_by_hand_is_missing_until_it_heals(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert crew.controller.queries is not None
    monkeypatch.setattr(crew.controller.queries, "backoff", Retries(first=12.0))  # to be looked at meanwhile
    before = crew.observation("source.halted").run_id
    crew.stop_by_hand("source.halted")

    def is_missed() -> bool:
        kinds, detail = crew.drift(), crew.detail("source.halted")
        return ("source.halted", "missing-query") in kinds and "MZ162" in detail

    eventually("it is missed", is_missed)
    crew.is_clean()  # it is healed
    assert crew.observation("source.halted").run_id != before


def test_a_failed_query_is_drift(crew: Crew, kafka: KafkaBroker) -> None:
    crew.is_clean()
    produce_json(kafka.bootstrap, "drift-bad", [{"id": "no number"}])
    crew.finds("source.bad", "failed-query", "partition 0", "offset 5")
    path = crew.folder / "pipeline.yaml"
    skipping = path.read_text().replace("topic: drift-bad\n", "topic: drift-bad\n    on_error: skip\n")
    crew.declare("pipeline", skipping)
    apply(crew.folder, "--wait", "180s")
    crew.is_clean()


def test_a_foreign_query_is_drift(crew: Crew) -> None:
    rows = crew.spark.readStream.format("rate").load()
    query = rows.writeStream.format("noop").queryName("by_hand").start()
    try:
        crew.finds("instance.local", "foreign-query", "by_hand")
    finally:
        query.stop()
    crew.is_clean()


def test_a_stalled_query_is_drift(
    crew: Crew, kafka: KafkaBroker, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Input waits, and its target does not take it: another session holds the table."""
    monkeypatch.setattr("mzplan.controller.observations.QUIET", 11.0)
    monkeypatch.setattr("mzplan.plan.drift.STALLED", 13.0)  # what is idle says so every ten seconds
    with psycopg.connect(postgres.dsn("drifting")) as holder:
        holder.execute("LOCK TABLE stuck IN ACCESS EXCLUSIVE MODE")
        produce_json(kafka.bootstrap, "drift-flow", orders(1_000_000, 1_000_010))
        crew.finds("sink.stuck_pg", "stalled-query")
        holder.rollback()
    monkeypatch.undo()
    dsn = postgres.dsn("drifting")
    arrived = "SELECT count(*) FROM stuck WHERE id >= 1000000"
    eventually("its rows, when the table is free", lambda: rows_of(dsn, arrived) == [(10,)])
    crew.is_clean()


def test_a_rotated_secret_is_drift(crew: Crew, postgres: PostgresServer) -> None:
    (crew.elsewhere / "word").write_text("second-word\n")
    assert crew.drift() == {("sink.flow_pg", "secret-rotated"), ("sink.stuck_pg", "secret-rotated")}
    report = (crew.elsewhere / "drift.md").read_text()
    assert "${file:word}" in report and "-word" not in report
    (crew.elsewhere / "word").write_text("first-word\n")
    crew.is_clean()


def is_replaced(crew: Crew, address: str, *more: str) -> None:
    """The query begins anew, and then there is no drift."""
    apply(crew.folder, "--replace", address, "--allow-replace", *more, "--wait", "180s")
    crew.is_clean()


def test_a_recreated_topic_is_drift(crew: Crew, kafka: KafkaBroker) -> None:
    delete_topic(kafka.bootstrap, "drift-again")
    create_topic(kafka.bootstrap, "drift-again", 1)
    produce_json(kafka.bootstrap, "drift-again", orders(0, 9))
    crew.finds("source.again", "upstream-changed")
    is_replaced(crew, "source.again", "--allow-loss")


def test_a_recreated_folder_is_drift(crew: Crew) -> None:
    """With files of the same names, which Spark takes for those that it has read."""
    inbox = crew.folder / "again_files"
    shutil.rmtree(inbox)
    inbox.mkdir()
    time.sleep(2)  # seconds are all that an object store tells of a file's time
    drop_ids(inbox, 1, 4, 5)
    crew.finds("source.again_files", "upstream-changed", "MZ043")
    is_replaced(crew, "source.again_files", "--allow-loss")
    collection = crew.storage("collections", "source.again_files") / "g2"
    eventually("every row once", lambda: ids_in_delta(collection) == [1, 4, 5])


@pytest.mark.nightly
def test_a_restored_database_is_drift(crew: Crew, postgres: PostgresServer) -> None:
    """Its tables are from before the last step, under a sink that runs and has nothing to write."""
    dsn = postgres.dsn("drifting")
    behind = "UPDATE mzplan.writers SET step = step %s 1 WHERE address = 'sink.flow_pg'"
    execute(dsn, behind % "-")
    crew.finds("sink.flow_pg", "upstream-changed", "MZ069")
    execute(dsn, behind % "+")
    crew.is_clean()


@pytest.mark.parametrize(
    ("what", "address", "kind", "code"),
    [
        ("checkpoints", "source.lost", "checkpoint-missing", "MZ161"),
        ("collections", "source.swept", "collection-missing", "MZ161"),
    ],
)
def test_missing_storage_is_drift_and_nothing_begins_again(
    crew: Crew, what: str, address: str, kind: str, code: str
) -> None:
    """Its runner tells, wherever the warehouse is; and starts nothing that would begin again."""
    crew.is_clean()
    shutil.rmtree(crew.storage(what, address))
    if kind == "collection-missing":  # Spark makes the table anew, and would go on with it
        drop_ids(crew.folder / "swept", 4)
        written = crew.storage("collections", address) / "g1" / "_delta_log"
        eventually("another table in its place", (written / f"{0:020}.json").exists)
    crew.finds(address, kind)
    crew.stop_by_hand(address)

    def is_refused() -> bool:
        seen = crew.observation(address)
        return (seen.condition, seen.error_code) == ("failed", code)

    eventually("the runner has tried to heal it", is_refused)
    assert (address, kind) in crew.drift() and code in crew.detail(address)
    (query,) = mzplan(crew.folder, "status", address, "--json").json()["queries"]
    assert query["condition"] == "failed"
    assert not any(f":{address}:" in (q.name or "") for q in crew.spark.streams.active)
    is_replaced(crew, address)
    collection = crew.storage("collections", address) / "g2"
    rows = [1, 2, 3, 4] if kind == "collection-missing" else [1, 2, 3]
    eventually("every row once", lambda: ids_in_delta(collection) == rows)


def test_a_state_edited_by_hand_changes_no_query(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told, nothing acts on it, and the runner goes on with what it has taken in: it heals."""
    path = crew.state / STATE_KEY
    whole = path.read_text()
    before = crew.observation("source.halted").run_id
    path.write_text(whole.replace('"topic":"drift-flow"', '"topic":"drift-bad"'))
    assert crew.drift() >= {("source.flow", "unmanaged-change")}
    assert mzplan(crew.folder, "apply", "--auto-approve").code == 1
    crew.stop_by_hand("source.halted")

    def healed() -> bool:
        seen = crew.observation("source.halted")
        return seen.condition == "running" and seen.run_id != before

    eventually("it is healed", healed)
    path.write_text(whole)
    crew.is_clean()


def test_rows_of_another_writer_are_drift_until_they_are_accepted(crew: Crew) -> None:
    crew.is_clean()
    collection = str(crew.storage("collections", "source.halted") / "g1")
    write_deltalake(
        collection, pa.table(DeltaTable(collection).to_pyarrow_table()).slice(0, 1), mode="append"
    )
    crew.finds("source.halted", "unmanaged-change")
    found = mzplan(crew.folder, "verify", "source.halted", "--json")
    assert found.code == 1 and [change["added"] for change in found.json()["foreign"]["changes"]] == [1]
    drop_ids(crew.folder / "halted", 4)  # the runner records a step after the change

    def last_step() -> int:
        return int(mzplan(crew.folder, "steps", "source.halted", "--json").json()["upper"])

    before = last_step()
    eventually("another step", lambda: last_step() > before)
    assert ("source.halted", "unmanaged-change") in crew.drift()
    assert mzplan(crew.folder, "expire", "source.halted", "--before", str(last_step() - 1)).code == 0
    crew.is_clean()
