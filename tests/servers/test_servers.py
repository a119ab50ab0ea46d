"""The servers of examples/servers: what other tests rely on when they start, kill and move them."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from examples.servers import (
    KafkaBroker,
    PostgresServer,
    ServerError,
    create_topic,
    delete_topic,
    produce_json,
)
from examples.servers.topics import admin


def read_json(bootstrap: str, topic: str, partitions: int = 2) -> list[dict[str, object]]:
    """All rows of a topic, partition by partition."""
    client = {"bootstrap.servers": bootstrap, "group.id": "reader", "log_level": 0}
    consumer = Consumer({**client, "enable.auto.commit": False, "enable.partition.eof": False})
    rows = []
    try:
        for number in range(partitions):
            _, end = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10)
            consumer.assign([TopicPartition(topic, number, 0)])
            for _ in range(end):
                message = consumer.poll(10)
                assert message is not None and message.error() is None
                rows.append(json.loads(message.value() or b"null"))
    finally:
        consumer.close()
    return rows


def cluster_id(bootstrap: str, seconds: float = 20) -> str | None:
    return admin(bootstrap).list_topics(timeout=seconds).cluster_id


class TestKafka:
    def test_both_listeners_lead_to_the_same_rows(
        self, kafka: KafkaBroker, topic: Callable[..., str]
    ) -> None:
        name = topic()
        rows = [{"id": number, "text": "ä"} for number in range(100)]
        assert produce_json(kafka.bootstrap, name, rows[:50], key="id") == 50
        assert produce_json(kafka.bootstrap2, name, rows[50:], key="id") == 50
        for bootstrap in (kafka.bootstrap, kafka.bootstrap2):
            assert sorted(read_json(bootstrap, name), key=lambda row: str(row["id"]).zfill(3)) == rows

    def test_start_of_a_running_broker_does_nothing(self, kafka: KafkaBroker) -> None:
        before = kafka.pid
        kafka.start()
        assert kafka.pid == before is not None

    def test_topics_are_created_by_hand_only(self, kafka: KafkaBroker, topic: Callable[..., str]) -> None:
        with pytest.raises(ServerError, match=r"rows did not reach topic none-such: .*[Uu]nknown topic"):
            produce_json(kafka.bootstrap, "none-such", [{}])
        name = topic(partitions=3, config={"cleanup.policy": "compact"})
        with pytest.raises(ServerError, match=f"can't create topic {name}: .*already exists"):
            create_topic(kafka.bootstrap, name)
        with pytest.raises(ServerError, match="can't delete topic none-such"):
            delete_topic(kafka.bootstrap, "none-such")

    @pytest.mark.nightly
    def test_sigkill_loses_nothing_acknowledged(self, own_kafka: KafkaBroker) -> None:
        create_topic(own_kafka.bootstrap, "orders", partitions=1)
        produce_json(own_kafka.bootstrap, "orders", [{"id": 1}])
        identity, before = own_kafka.cluster_id, own_kafka.pid
        own_kafka.kill()
        assert own_kafka.pid is None
        own_kafka.start()
        assert own_kafka.pid != before
        assert read_json(own_kafka.bootstrap, "orders", 1) == [{"id": 1}]
        assert cluster_id(own_kafka.bootstrap2) == own_kafka.cluster_id == identity

    @pytest.mark.nightly
    def test_the_broker_moves(self, own_kafka: KafkaBroker) -> None:
        create_topic(own_kafka.bootstrap, "orders", partitions=1)
        produce_json(own_kafka.bootstrap, "orders", [{"id": 1}])
        old = own_kafka.bootstrap

        own_kafka.stop()
        own_kafka.start(listeners=[2])
        assert read_json(own_kafka.bootstrap2, "orders", 1) == [{"id": 1}]
        with pytest.raises(KafkaException):
            cluster_id(old, 2)

        with pytest.raises(ServerError, match="already runs, on ports"):
            own_kafka.start(ports=[20_001, 20_002])
        own_kafka.stop()
        elsewhere = KafkaBroker(own_kafka.workdir.with_name("elsewhere")).ports
        own_kafka.start(ports=elsewhere)
        assert own_kafka.ports == elsewhere
        assert old != own_kafka.bootstrap
        assert read_json(own_kafka.bootstrap, "orders", 1) == [{"id": 1}]
        with pytest.raises(KafkaException):
            cluster_id(old, 2)

    def test_a_wrong_property_is_reported_with_the_log(self, tmp_path: Path) -> None:
        broker = KafkaBroker(tmp_path, properties={"listeners": "nonsense"})
        with pytest.raises(ServerError, match="Kafka could not set up its data folder") as caught:
            broker.start()
        assert "nonsense" in caught.value.detail
        broker.properties = {}
        broker.start()
        broker.stop()
        broker.properties = {"num.io.threads": "-1"}
        with pytest.raises(ServerError, match="kafka did not start: its process ended") as caught:
            broker.start()
        assert "num.io.threads" in caught.value.detail
        assert broker.pid is None


class TestPostgres:
    def test_settings(self, postgres: PostgresServer, database: Callable[..., str]) -> None:
        with psycopg.connect(postgres.dsn(database())) as connection:
            shown = {
                name: connection.execute(f"SHOW {name}").fetchone()
                for name in ("wal_level", "fsync", "listen_addresses", "server_encoding")
            }
        assert shown == {
            "wal_level": ("logical",),
            "fsync": ("on",),
            "listen_addresses": ("127.0.0.1",),
            "server_encoding": ("UTF8",),
        }

    def test_only_the_password_lets_in(self, postgres: PostgresServer) -> None:
        dsn = postgres.dsn().replace(postgres.password, "wrong")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(dsn)

    def test_it_never_runs_as_root(self, postgres: PostgresServer) -> None:
        owner = Path(f"/proc/{postgres.pid}").stat().st_uid
        assert owner != 0, pwd.getpwuid(owner)

    def test_a_database_in_use_is_dropped_with_its_slot(self, postgres: PostgresServer) -> None:
        dsn = postgres.create_database("busy")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_create_logical_replication_slot('busy_slot', 'pgoutput')")
            with pytest.raises(ServerError, match='database "busy" already exists'):
                postgres.create_database("busy")
            postgres.drop_database("busy")
        with psycopg.connect(postgres.dsn()) as connection:
            slots = connection.execute("SELECT slot_name FROM pg_replication_slots").fetchall()
            assert ("busy_slot",) not in slots

    @pytest.mark.nightly
    def test_sigkill_loses_nothing_committed(self, own_postgres: PostgresServer) -> None:
        with psycopg.connect(own_postgres.dsn(), autocommit=True) as connection:
            connection.execute("CREATE TABLE t AS SELECT 1 AS id")
            own_postgres.kill()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
        assert own_postgres.pid is None
        own_postgres.start()
        with psycopg.connect(own_postgres.dsn()) as connection:
            assert connection.execute("SELECT id FROM t").fetchall() == [(1,)]
        own_postgres.restart()
        with psycopg.connect(own_postgres.dsn()) as connection:
            assert connection.execute("SELECT id FROM t").fetchall() == [(1,)]

    def test_its_data_is_gone_when_removed(self, own_postgres: PostgresServer) -> None:
        data = (own_postgres.workdir / "cluster").resolve()
        assert data.is_dir()
        own_postgres.remove_data()
        assert not data.exists()
        assert own_postgres.log.exists()

    def test_programs_out_of_the_users_reach_are_copied(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if os.geteuid() != 0:
            return  # then the server runs as ourselves, and what we can reach, it can
        monkeypatch.setattr("examples.servers.pgbinaries.reachable", lambda path: False)
        monkeypatch.setattr("examples.servers.postgres.reachable", lambda path: False)
        server = PostgresServer(tmp_path)
        try:
            server.start()
            executable = Path(f"/proc/{server.pid}/exe").readlink()
            assert executable.is_relative_to((tmp_path / "cluster").resolve() / "programs")
        finally:
            server.remove_data()
