"""The servers of examples/servers: who may log in, what an error says, and ``python -m examples.servers``."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from examples.servers import KafkaBroker, PostgresServer, ServerError, create_topic, produce_json
from examples.servers.process import began
from examples.servers.server import write_private
from tests.integration.committed import committed

ROOT = Path(__file__).parents[2]


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


def fake_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None) -> None:
    """Put a program of our own, or none, in Java's place."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    if script is not None:
        program = tmp_path / "jdk" / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "needs Java 17 or newer, and there is none in JAVA_HOME"),
        ("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2", "Java 17 or newer, and .*java is Java 11"),
        ("echo 'no VM here' >&2; exit 1", "java does not run"),
    ],
)
def test_java_is_missing_or_too_old(
    script: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path, monkeypatch, script)
    with pytest.raises(ServerError, match=f"{message}.*install a JDK 17"):
        KafkaBroker(tmp_path / "k").start()


def test_a_failed_download_leaves_nothing_that_looks_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """case "$1" in
    -version) echo 'openjdk version "17.0.1"' >&2 ;;
    *) mkdir "${1#*=}/lib"; echo 'module not found: org.apache.kafka#kafka_2.13;3.9.1'; exit 1 ;;
    esac"""
    fake_java(tmp_path, monkeypatch, script)
    cache = tmp_path / "cache"
    monkeypatch.setenv("MZPLAN_CACHE", str(cache))
    with pytest.raises(ServerError, match=r"could not be downloaded: module not found: .*check the network"):
        KafkaBroker(tmp_path / "k").start()
    assert sorted(path.name for path in cache.iterdir()) == ["kafka-3.9.1.lock", "kafka-3.9.1.log"]


# --- the program


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.servers", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_up_status_down(tmp_path: Path) -> None:
    where = ("--dir", tmp_path / "D")
    try:
        first = run("up", *where)
        assert first.returncode == 0, first.stderr
        addresses = json.loads((tmp_path / "D" / "servers.json").read_text())
        pids = [addresses[name]["pid"] for name in ("kafka", "postgres")]
        assert run("up", *where).returncode == 0
        assert json.loads((tmp_path / "D" / "servers.json").read_text()) == addresses
        assert run("status", *where).returncode == 0
        psycopg.connect(addresses["postgres"]["dsn"]).close()
        moved = run("up", *where, "--kafka-ports", "20001,20002")
        assert moved.returncode == 1
        assert moved.stderr.startswith("error: Kafka already runs, on ports")
    finally:
        down = run("down", *where)
    assert down.returncode == 0
    assert [began(pid) for pid in pids] == [None, None]
    assert run("status", *where).returncode == 3
    assert not (tmp_path / "D" / "servers.json").exists()
    assert (tmp_path / "D" / "postgres" / "cluster").exists()
    assert run("down", *where, "--delete-data").returncode == 0
    assert not (tmp_path / "D" / "postgres" / "cluster").exists()


def test_down_never_ends_a_process_that_has_taken_over_a_pid(tmp_path: Path) -> None:
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        for name in ("kafka", "postgres"):
            (tmp_path / name).mkdir()
            record = {"pid": bystander.pid, "began": "another boot/12345"}
            write_private(tmp_path / name / f"{name}.pid", json.dumps(record))
        assert run("status", "--dir", tmp_path).returncode == 3
        down = run("down", "--dir", tmp_path, "--delete-data")
        assert down.returncode == 0, down.stderr
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_errors_are_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        taken = run("up", "--dir", tmp_path, "--kafka-ports", f"{port},20001")
    holder = f"error: port {port} for Kafka is not free: in use by process {os.getpid()} "
    assert taken.returncode == 1 and taken.stderr.startswith(holder)
    assert taken.stderr.count("\n") == 1
    nowhere = run("down", "--dir", tmp_path / "nowhere")
    assert (nowhere.returncode, nowhere.stderr.count("\n")) == (1, 1)
    assert not (tmp_path / "nowhere").exists()


def test_servers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    """Even if that is killed: a test session leaves no server behind."""
    code = (
        "import sys, time, pathlib; from examples.servers import PostgresServer\n"
        "server = PostgresServer(pathlib.Path(sys.argv[1])); server.start()\n"
        "print(server.pid, flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        server = PostgresServer(tmp_path)
        try:
            assert server.pid == pid
            starter.send_signal(signal.SIGKILL)
            starter.wait()
            assert server._process.wait(timeout_s=60)
        finally:
            server.remove_data()
