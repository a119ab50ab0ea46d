"""The servers of examples/servers: who may log in, and what an error says."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from examples.servers import KafkaBroker, PostgresServer, ServerError, create_topic, produce_json
from tests.integration.committed import committed


def test_topics_are_created_by_hand_only(kafka: KafkaBroker, topic: Callable[..., str]) -> None:
    with pytest.raises(ServerError, match=r"rows did not reach topic none-such: .*[Uu]nknown topic"):
        produce_json(kafka.bootstrap, "none-such", [{}])
    name = topic(partitions=1)
    with pytest.raises(ServerError, match=f"can't create topic {name}: .*already exists"):
        create_topic(kafka.bootstrap, name)
    produce_json(kafka.bootstrap2, name, [{"text": "ä"}])  # both listeners lead to the same rows
    assert committed(kafka.bootstrap, name) == [(0, None, {"text": "ä"})]


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
