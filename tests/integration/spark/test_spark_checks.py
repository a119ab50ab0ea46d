"""Each thing that a live check finds, with its code and its fix, on real servers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from mzplan.connectors.api.probes import Memo
from mzplan.connectors.checks import check_description
from mzplan.connectors.kafka.probe import KafkaProbe
from mzplan.host.spark_lines import line_of
from mzplan.model.diagnostics import Diagnostic
from mzplan.schema.description import Description
from mzplan.spark.executor import SparkExecutor
from mzplan.spark.versions import delta_features
from tests.integration.spark_lab import Lab
from tests.machines import command_line
from tests.support import Make, Stopwatch

SECRET = "pass'wo\\rd \"%40"


def only(lab: Lab, description: Description) -> Diagnostic:
    """The one thing that is found, by a session and without one."""
    (found,) = lab.check(description).diagnostics
    assert found.address == description.address
    assert SECRET not in str(found) and lab.postgres.password not in str(found)
    (without,) = check_description(description, lab.secrets).diagnostics
    assert without.code == found.code
    return found


def test_kafka_that_can_not_be_reached(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    source = lab.kafka_source("orders", brokers="127.0.0.1:1")
    took = Stopwatch()
    found = lab.finds(source, "MZ050", "connection.cluster (127.0.0.1:1)")
    assert took.seconds < 20
    assert "refused" in found.detail
    dead = {"type": "kafka", "brokers": ["127.0.0.1:1"]}
    assert lab.codes(lab.sink(source, "kafka", dead, topic="nowhere")) == ["MZ050"]
    monkeypatch.setattr(Memo, "_forget_old", lambda *_: None)  # however slow this machine is
    asked: list[Any] = []
    monkeypatch.setattr(KafkaProbe, "_reach", lambda *arguments: asked.append(arguments))
    assert lab.codes(lab.kafka_source("others", brokers="127.0.0.1:1")) == ["MZ050"]
    assert asked == [], "the second source of a dead cluster must not wait again"


def test_kafka_without_the_topic(lab: Lab) -> None:
    found = only(lab, lab.kafka_source("no-such-topic"))
    assert found.code == "MZ052"
    assert "--create --topic no-such-topic" in found.hint
    assert only(lab, lab.kafka_source("no-such-topic")).code == "MZ052", "asking must not create it"
    found = only(lab, lab.kafka_sink(lab.kafka_source("orders"), "nowhere", key=["id"]))
    assert found.code == "MZ052" and "a sink doesn't create one" in found.detail


def test_kafka_spoken_to_in_the_wrong_protocol(lab: Lab, topic: Make) -> None:
    source = lab.kafka_source(topic())
    source.connections["connection"].body["security"] = {  # type: ignore[index]
        "protocol": "SASL_PLAINTEXT",
        "sasl": {"mechanism": "PLAIN", "username": "app", "password": "${env:KAFKA_PASSWORD}"},
    }
    assert lab.finds(source, "MZ056").severity == "error"  # the secret has no value yet
    lab.secrets.environment["KAFKA_PASSWORD"] = SECRET
    assert only(lab, source).code in ("MZ050", "MZ051")


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("password", "${env:WRONG}", "MZ051"),
        ("database", "no_such_database", "MZ052"),
        ("port", 1, "MZ050"),
    ],
)
def test_postgres_that_refuses_or_does_not_answer(lab: Lab, name: str, value: Any, code: str) -> None:
    lab.secrets.environment["WRONG"] = SECRET
    body = {**lab.postgres_body("postgres"), name: value}
    found = only(lab, lab.sink(lab.kafka_source("orders"), "postgres", body, table="orders"))
    assert found.code == code, found
    assert name != "port" or "connection.target (127.0.0.1:1, database postgres)" in found.detail


def test_a_table_with_other_columns(lab: Lab, database: Make) -> None:
    shop = database()
    columns = "id date, amount numeric(8,1), needed int NOT NULL, twice bigint GENERATED ALWAYS AS (1) STORED"
    lab.execute(shop, f"CREATE TABLE orders ({columns})")
    source = lab.kafka_source("orders", "id BIGINT, customer STRING, amount DECIMAL(10,2), twice BIGINT")
    sink = lab.postgres_sink(source, shop, "orders")
    found = only(lab, sink)
    assert found.code == "MZ053"
    assert "id is date, which can't store BIGINT" in found.detail
    assert "no column customer (STRING)" in found.detail
    assert "amount is numeric(8,1), which would round DECIMAL(10,2)" in found.detail
    assert "needed is NOT NULL" in found.detail and "twice is generated" in found.detail
    assert "ALTER TABLE public.orders\n" in found.hint and "CREATE TABLE" not in found.hint, found.hint


def test_upsert_without_a_unique_index(lab: Lab, database: Make) -> None:
    shop = database()
    lab.execute(
        shop,
        "CREATE TABLE orders (id bigint, customer text, amount numeric)",
        "CREATE UNIQUE INDEX ON orders (id, customer)",
        "CREATE UNIQUE INDEX ON orders (id) WHERE id > 0",
    )
    sink = lab.postgres_sink(lab.kafka_source("orders"), shop, "orders", mode="upsert", key=["id"])
    found = only(lab, sink)
    assert found.code == "MZ055"
    lab.execute(shop, found.hint)
    assert lab.check(sink).diagnostics == ()


def test_a_folder_that_can_not_be_written_and_a_table_without_the_key(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    source = lab.kafka_source("orders")
    assert only(lab, lab.delta_sink(source, tmp_path / "file", "t")).code == "MZ057"
    write_deltalake(str(tmp_path / "t"), pa.table({"sensor": ["a"]}))
    found = only(lab, lab.delta_sink(source, tmp_path, "t", mode="upsert", key=["id"]))
    assert (found.code, found.severity) == ("MZ053", "error")
    assert "has sensor, but not id" in found.detail
    assert lab.check(lab.delta_sink(source, tmp_path, "t")).diagnostics == ()


def test_checks_work_before_the_session(lab: Lab, topic: Make, database: Make) -> None:
    executor = SparkExecutor(replace(lab.context, project="other"))
    assert not executor.is_open()
    name, shop = topic(), database()
    source = lab.kafka_source(name)
    found = executor.check(source, lab.secrets)
    assert found.ok and found.upstream is not None and found.upstream["topic"] == name
    lab.execute(shop, "CREATE TABLE o (id bigint, twice numeric)")
    sink = lab.postgres_sink(source, shop, "o", select=["id", "amount * 2 AS twice"])
    assert executor.check(sink, lab.secrets).diagnostics == ()


def test_a_secret_is_nowhere(
    lab: Lab, topic: Make, database: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not in errors, plans, logs, checkpoints or the arguments of a process."""
    name, shop = topic(partitions=1), database()
    user = f"secret_{shop}"[:50]
    lab.secrets.environment["HIDDEN"] = SECRET
    lab.execute(
        shop,
        f"CREATE ROLE {user} LOGIN SUPERUSER PASSWORD '{SECRET.replace(chr(39), chr(39) * 2)}'",
        "CREATE TABLE orders (id bigint, customer varchar(3), amount numeric)",
    )
    try:
        source = lab.kafka_source(name)
        source.connections["connection"].body["options"] = {"sasl.jaas.config": "${env:HIDDEN}"}  # type: ignore[index]
        body = lab.postgres_body(shop, user=user, password="${env:HIDDEN}")
        sink = lab.sink(source, "postgres", body, table="orders")
        lab.produce(name, {"id": 1, "customer": "too long"}, {"id": "broken"})
        lab.start(source, sink)
        shown = [str(lab.ended(source))]
        source.body["on_error"] = "skip"  # type: ignore[index]
        lab.start(source)
        shown += [str(lab.fails(sink, "MZ059")), *(str(query) for query in lab.executor.reports())]
        lab.stop(source, sink)
    finally:
        lab.execute(shop, f"DROP OWNED BY {user}", f"DROP ROLE {user}")
    shown += [repr(lab.executor.__dict__), *capfd.readouterr()]
    files = [path for path in (lab.folder / "warehouse").rglob("*") if path.suffix != ".parquet"]
    shown += [path.read_text(errors="replace") for path in files if path.is_file()]
    shown += [command_line(int(folder.name)) for folder in Path("/proc").glob("[0-9]*")]
    assert len(shown) > 10 and not [text for text in shown if SECRET[:8] in text]


def test_a_target_that_needs_another_delta_is_refused_before_anything_stops(lab: Lab, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "lake"), pa.table({"id": pa.array([1], pa.int64())}))
    source = lab.files_source(tmp_path / "in", schema="id BIGINT")
    sink = lab.delta_sink(source, tmp_path, "lake")
    lab.executor.open()
    assert lab.codes(sink) == []
    commit = tmp_path / "lake" / "_delta_log" / f"{1:020}.json"
    features = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["appendOnly", "ofTomorrow"]}
    commit.write_text(json.dumps({"protocol": features}) + "\n")
    assert lab.refused(sink) == lab.finds(sink, "MZ281", "missing in this runner's Delta: ofTomorrow")
    assert not lab.checkpoint(sink).exists()
    # What Delta itself would say, and only once the query runs.
    session = lab.executor._session()
    with pytest.raises(Exception, match="ofTomorrow"):
        session.sql(f"DELETE FROM delta.`{tmp_path}/lake`")
    assert delta_features(session) == line_of(session.version).features
