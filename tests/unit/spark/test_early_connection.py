"""A Python process of Spark connects before it imports anything, so it is never late."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from mzplan.spark.process.task_python import tasks_like_the_driver

# It imports only once the test has seen the connection.
WORKER = """\
import os, sys
from pathlib import Path
while not Path(sys.argv[0]).exists() or not Path(os.environ["SEEN"]).exists():
    pass
def main(infile, outfile):
    outfile.write(infile.read(4).upper())
    outfile.flush()
"""


@pytest.mark.parametrize("is_unix", [False, True], ids=["port", "path"])
def test_a_process_connects_before_its_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_unix: bool
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    (tmp_path / "slow_worker.py").write_text(WORKER)
    with tasks_like_the_driver(tmp_path):
        python = os.environ["PYSPARK_PYTHON"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "SEEN": str(tmp_path / "seen")}
    if is_unix:
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(tmp_path / "socket"))
        server.listen()
        environment["PYTHON_WORKER_FACTORY_SOCK_PATH"] = str(tmp_path / "socket")
    else:
        server = socket.create_server(("127.0.0.1", 0))
        environment["PYTHON_WORKER_FACTORY_PORT"] = str(server.getsockname()[1])
        environment["PYTHON_WORKER_FACTORY_SECRET"] = "s3cret"
    with server, subprocess.Popen([python, "-m", "slow_worker"], env=environment) as process:
        connection, _ = server.accept()
        with connection:
            if not is_unix:
                assert connection.recv(10, socket.MSG_WAITALL) == b"\0\0\0\6s3cret"
                connection.sendall(b"\0\0\0\2ok")
            assert connection.recv(4, socket.MSG_WAITALL) == process.pid.to_bytes(4, "big")
            (tmp_path / "seen").touch()
            connection.sendall(b"word")
            assert connection.recv(4, socket.MSG_WAITALL) == b"WORD"
        assert process.wait() == 0
