"""``python -m examples.servers``, and what people read when a server can't be had."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from examples.servers import KafkaBroker, PostgresServer, ServerError
from examples.servers.process import began
from examples.servers.server import write_private

ROOT = Path(__file__).parents[2]


class TestErrors:
    @pytest.mark.parametrize(
        ("script", "message"),
        [
            (None, "needs Java 17 or newer, and there is none in JAVA_HOME"),
            ("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2", "Java 17 or newer, and .*java is Java 11"),
            ("echo 'no VM here' >&2; exit 1", "java does not run"),
        ],
    )
    def test_java_is_missing_or_too_old(
        self, script: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake_java(tmp_path, monkeypatch, script)
        with pytest.raises(ServerError, match=f"{message}.*install a JDK 17"):
            KafkaBroker(tmp_path / "k").start()

    def test_a_failed_download_leaves_nothing_that_looks_whole(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fake_java(
            tmp_path,
            monkeypatch,
            """case "$1" in
            -version) echo 'openjdk version "17.0.1"' >&2 ;;
            *) mkdir "${1#*=}/lib"; echo 'module not found: org.apache.kafka#kafka_2.13;3.9.1'; exit 1 ;;
            esac""",
        )
        cache = tmp_path / "cache"
        monkeypatch.setenv("MZPLAN_CACHE", str(cache))
        with pytest.raises(
            ServerError, match=r"could not be downloaded: module not found: .*check the network"
        ):
            KafkaBroker(tmp_path / "k").start()
        assert sorted(path.name for path in cache.iterdir()) == ["kafka-3.9.1.lock", "kafka-3.9.1.log"]


def fake_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None) -> None:
    """Put a program of our own, or none, in Java's place."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    if script is not None:
        program = tmp_path / "jdk" / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)


class TestProgram:
    """``python -m examples.servers``."""

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "examples.servers", *map(str, words)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)

    def test_up_status_down(self, tmp_path: Path) -> None:
        where = ("--dir", tmp_path / "D")
        try:
            first = self.run("up", *where)
            assert first.returncode == 0, first.stderr
            addresses = json.loads((tmp_path / "D" / "servers.json").read_text())
            pids = [addresses[name]["pid"] for name in ("kafka", "postgres")]
            assert self.run("up", *where).returncode == 0
            assert json.loads((tmp_path / "D" / "servers.json").read_text()) == addresses
            assert self.run("status", *where).returncode == 0
            psycopg.connect(addresses["postgres"]["dsn"]).close()
            moved = self.run("up", *where, "--kafka-ports", "20001,20002")
            assert moved.returncode == 1
            assert moved.stderr.startswith("error: Kafka already runs, on ports")
        finally:
            down = self.run("down", *where)
        assert down.returncode == 0
        assert [began(pid) for pid in pids] == [None, None]
        assert self.run("status", *where).returncode == 3
        assert not (tmp_path / "D" / "servers.json").exists()
        assert (tmp_path / "D" / "postgres" / "cluster").exists()
        assert self.run("down", *where, "--delete-data").returncode == 0
        assert not (tmp_path / "D" / "postgres" / "cluster").exists()

    def test_down_never_ends_a_process_that_has_taken_over_a_pid(self, tmp_path: Path) -> None:
        bystander = subprocess.Popen(["sleep", "60"])
        try:
            for name in ("kafka", "postgres"):
                (tmp_path / name).mkdir()
                record = {"pid": bystander.pid, "began": "another boot/12345"}
                write_private(tmp_path / name / f"{name}.pid", json.dumps(record))
            assert self.run("status", "--dir", tmp_path).returncode == 3
            down = self.run("down", "--dir", tmp_path, "--delete-data")
            assert down.returncode == 0, down.stderr
            assert bystander.poll() is None
        finally:
            bystander.kill()
            bystander.wait()

    def test_errors_are_one_line(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            taken = self.run("up", "--dir", tmp_path, "--kafka-ports", f"{port},20001")
        holder = f"error: port {port} for Kafka is not free: in use by process {os.getpid()} "
        assert taken.returncode == 1 and taken.stderr.startswith(holder)
        assert taken.stderr.count("\n") == 1
        nowhere = self.run("down", "--dir", tmp_path / "nowhere")
        assert (nowhere.returncode, nowhere.stderr.count("\n")) == (1, 1)
        assert not (tmp_path / "nowhere").exists()

    def test_servers_end_with_the_process_that_started_them(self, tmp_path: Path) -> None:
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
