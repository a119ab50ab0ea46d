"""The servers of examples/servers: who may log in, what an error says, and that their data survives."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from examples.servers import KafkaBroker, PostgresServer, ServerError, create_topic, produce_json
from examples.servers.topics import admin


def read_json(bootstrap: str, topic: str) -> list[dict[str, object]]:
    """Return all rows of a topic with one partition."""
    client = {"bootstrap.servers": bootstrap, "group.id": "reader", "log_level": 0}
    consumer = Consumer({**client, "enable.auto.commit": False, "enable.partition.eof": False})
    rows = []
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)
        consumer.assign([TopicPartition(topic, 0, 0)])
        for _ in range(end):
            message = consumer.poll(10)
            assert message is not None and message.error() is None
            rows.append(json.loads(message.value() or b"null"))
    finally:
        consumer.close()
    return rows


def test_topics_are_created_by_hand_only(kafka: KafkaBroker, topic: Callable[..., str]) -> None:
    with pytest.raises(ServerError, match=r"rows did not reach topic none-such: .*[Uu]nknown topic"):
        produce_json(kafka.bootstrap, "none-such", [{}])
    name = topic(partitions=1)
    with pytest.raises(ServerError, match=f"can't create topic {name}: .*already exists"):
        create_topic(kafka.bootstrap, name)
    produce_json(kafka.bootstrap2, name, [{"text": "ä"}])  # both listeners lead to the same rows
    assert read_json(kafka.bootstrap, name) == [{"text": "ä"}]


@pytest.mark.nightly
def test_a_killed_broker_keeps_its_data_also_on_other_ports(own_kafka: KafkaBroker) -> None:
    create_topic(own_kafka.bootstrap, "orders", partitions=1)
    produce_json(own_kafka.bootstrap, "orders", [{"id": 1}])
    identity, old = own_kafka.cluster_id, own_kafka.bootstrap
    own_kafka.kill()
    assert own_kafka.pid is None
    own_kafka.start(listeners=[2])
    assert read_json(own_kafka.bootstrap2, "orders") == [{"id": 1}]
    with pytest.raises(ServerError, match="already runs, on ports"):
        own_kafka.start(ports=[20_001, 20_002])
    own_kafka.stop()
    own_kafka.start(ports=KafkaBroker(own_kafka.workdir.with_name("elsewhere")).ports)
    assert old != own_kafka.bootstrap and own_kafka.cluster_id == identity
    assert read_json(own_kafka.bootstrap, "orders") == [{"id": 1}]
    with pytest.raises(KafkaException):
        admin(old).list_topics(timeout=2)


def test_a_wrong_property_is_reported_with_the_log(tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path, properties={"listeners": "nonsense"})
    with pytest.raises(ServerError, match="Kafka could not set up its data folder") as caught:
        broker.start()
    assert "nonsense" in caught.value.detail and broker.pid is None


def test_only_the_password_lets_in_and_the_server_never_runs_as_root(postgres: PostgresServer) -> None:
    dsn = postgres.dsn().replace(postgres.password, "wrong")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(dsn)
    assert Path(f"/proc/{postgres.pid}").stat().st_uid != 0


@pytest.mark.nightly
def test_a_killed_postgres_keeps_its_data_until_it_is_removed(own_postgres: PostgresServer) -> None:
    with psycopg.connect(own_postgres.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE t AS SELECT 1 AS id")
        own_postgres.kill()
    assert own_postgres.pid is None
    own_postgres.start()
    with psycopg.connect(own_postgres.dsn()) as connection:
        assert connection.execute("SELECT id FROM t").fetchall() == [(1,)]
    data = (own_postgres.workdir / "cluster").resolve()
    own_postgres.remove_data()
    assert not data.exists() and own_postgres.log.exists()


def test_programs_out_of_the_users_reach_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For root, the server runs as another user, who may not read root's own folders."""
    if os.geteuid() != 0:
        return
    for module in ("pgbinaries", "postgres"):
        monkeypatch.setattr(f"examples.servers.{module}.reachable", lambda path: False)
    server = PostgresServer(tmp_path)
    try:
        server.start()
        executable = Path(f"/proc/{server.pid}/exe").readlink()
        assert executable.is_relative_to((tmp_path / "cluster").resolve() / "programs")
    finally:
        server.remove_data()
