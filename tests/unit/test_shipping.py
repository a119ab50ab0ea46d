"""What the sinks' tasks need on an executor: no mzplan."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mzplan.connectors import kafka_output, postgres_output
from mzplan.connectors.kafka_record import StepRecord
from mzplan.connectors.kafka_transaction import Transaction
from mzplan.connectors.postgres_ledger import Ledger
from mzplan.endpoints.replay import Written

PROGRAM = """\
import pickle, sys
class NoMzplan:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("mzplan", "pandas"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoMzplan())
task = pickle.load(open(sys.argv[1], "rb"))
try:
    print(list(task(())))
except RuntimeError as problem:
    print(problem)
"""


def kafka() -> Callable[..., object]:
    client = {"bootstrap.servers": "127.0.0.1:1", "socket.timeout.ms": 500, "log_level": 0}
    writer = StepRecord(generation=1, epoch=1, query="q", step=-1)
    return kafka_output.task(Transaction(client, "mzplan.x", "t", 1000), writer, 0, 2, "warn")


def target() -> postgres_output.Target:
    conninfo = "host=127.0.0.1 port=1 password=hidden"
    return postgres_output.Target(
        conninfo=conninfo, table=("public", "t"), columns=("id",), secret="127.0.0.1"
    )


def straight() -> Callable[..., object]:
    ledger = Ledger(schema="mzplan", sink="x", generation=1, epoch=1, query_id="q")
    return postgres_output.straight_task(postgres_output.PostgresOutput(target(), ledger, compare="warn"), 0)


def staging() -> Callable[..., object]:
    return postgres_output.staging_task(target(), 3, Written(rows=1), 3, "warn")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (kafka, "_TRANSPORT"),
        # What stands for the password here is blotted out.
        (straight, 'connection to server at "***", port 1 failed: Connection refused'),
        (staging, "0 rows were pushed where 1 are written"),
    ],
)
def test_tasks_run_where_there_is_no_mzplan(
    make: Callable[[], Callable[..., object]], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark import cloudpickle

    monkeypatch.setattr("mzplan.connectors.kafka_transaction._ANSWER_S", 1.0)
    (tmp_path / "task").write_bytes(cloudpickle.dumps(make()))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "task")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=60)
    assert done.returncode == 0, done.stderr
    if make is kafka:
        assert said in done.stdout
    else:
        assert said in " ".join(done.stdout.split())
