"""`pip install mzplan`, and nothing more: the wheel in an environment of its own, from plan to drift."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.installed import install_wheel

pytestmark = pytest.mark.nightly  # installs an environment of its own
RUNS = re.compile(
    "adbc.*|confluent_kafka|deltalake|numpy|pandas|prometheus_client|psycopg.*|py4j|pyarrow|pyspark"
)
PIPELINE = """\
connections:
  shop_kafka: {type: kafka, brokers: ["a:9092"]}
  bastion:
    type: ssh-tunnel
    host: gate
    user: ops
    host_keys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJJeD2CCNe3j7MDdajOWigJ+7H6r+e/usFpRIGat6Pij]
  shop_pg:
    {type: postgres, host: db, database: shop, user: app, password: "${env:PG_PASSWORD}", ssh_tunnel: bastion}
  registry: {type: schema-registry, url: "http://registry:8081"}
  lake: {type: files, path: "s3://company-lake"}
sources:
  orders:
    connection: shop_kafka
    topic: orders
    format: {type: avro, schema: "id BIGINT, customer STRING, amount DECIMAL(10,2)"}
    schema_registry: registry
  inbox: {connection: lake, path: notes, format: {type: csv, schema: "id BIGINT, note STRING"}}
  adjustments: {type: local, schema: "id BIGINT, amount INT"}
sinks:
  orders_pg:
    {from: orders, connection: shop_pg, table: public.orders, mode: upsert, key: [id],
     select: [id, customer, "amount * 1.2 AS gross"], where: amount > 0}
"""


class Installed:
    """The program of an environment that has only the wheel, and a project to run it on."""

    def __init__(self, folder: Path, project: Path):
        self.program, self.project = folder / "bin" / "mzplan", project
        # Neither this checkout nor what the session has set.
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MZPLAN_ENV")}
        self.environment = {**kept, "PG_PASSWORD": "secret"}

    def run(self, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [self.program, "-C", self.project, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            env=self.environment,
            cwd=self.project.parent,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code != 1 else done.stderr

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json"))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with this checkout's wheel: no extras, all else in the versions of the lock."""
    folder = tmp_path_factory.mktemp("base")
    made = folder / "venv"
    install_wheel(folder, made)
    return made


def test_a_new_project_from_version_to_plan(environment: Path, tmp_path: Path) -> None:
    found = Installed(environment, tmp_path / "files")
    assert found.run("--version").startswith("mzplan ")
    found.run("init", "--from", "files")
    assert "Plan: 4 to create" in found.run("plan")


@pytest.fixture
def installed(environment: Path, tmp_path: Path) -> Installed:
    found = Installed(environment, tmp_path / "shop")
    found.run("init")
    (found.project / "pipeline.yaml").write_text(PIPELINE)
    return found


def place(installed: Installed, type_: str) -> None:
    with (installed.project / "mzplan.yaml").open("a") as settings:
        settings.write(f"instances: {{prod: {{type: {type_}}}}}\n")


def test_nothing_that_runs_is_installed(environment: Path) -> None:
    (packages,) = environment.glob("lib/*/site-packages")
    assert (packages / "mzplan").is_dir()
    assert not [path.name for path in packages.iterdir() if RUNS.fullmatch(path.name.partition("-")[0])]
    files = [path.lstat().st_size for path in environment.rglob("*") if not path.is_dir()]
    assert sum(files) < 60e6


def test_from_plan_to_drift(installed: Installed) -> None:
    place(installed, "dry")
    assert "Valid: 9 resources." in installed.run("validate")
    comment, saved = installed.project / "comment.md", str(installed.project / "saved.mzplan")
    installed.run("plan", "--out", saved, "--markdown", str(comment), "--detailed-exitcode", code=2)
    assert "9 to create" in comment.read_text() and "sink.orders_pg" in comment.read_text()
    assert "Committed serial 1: 9 created." in installed.run("apply", saved)
    assert installed.json("drift", "--detailed-exitcode")["drift"] == []
    assert {q["condition"] for q in installed.json("status")["queries"]} == {"running"}

    statement = "ALTER CONNECTION shop_kafka SET (BROKER 'b:9092')"
    altered = installed.json("alter", statement, "--auto-approve")
    assert altered["serial"] == 2
    assert "b:9092" in (installed.project / "pipeline.yaml").read_text()
    installed.run("plan", "--detailed-exitcode")
    assert installed.run("steps", "source.orders")
    assert "sink.orders_pg" in installed.run("graph", "--impact", "connection.shop_kafka")
    assert "source.orders" in installed.run("state", "list")
    installed.run("pause", "source.orders")
    installed.run("state", "rollback", "1", "--auto-approve")


def test_a_remote_runner_is_applied_for(installed: Installed) -> None:
    """Nobody leads the instance: that is told, and nothing is missing here."""
    place(installed, "cluster")
    assert "Committed serial 1" in installed.run(
        "apply", "--auto-approve", "--no-live", "--wait", "0s", code=8
    )
    assert "missing-query" in installed.run("drift", "--detailed-exitcode", code=3)


def test_a_command_that_needs_an_extra_says_which(installed: Installed) -> None:
    place(installed, "embedded")
    for command in (("up",), ("run", "--instance", "prod"), ("apply", "--auto-approve")):
        assert "Fix: pip install 'mzplan[runner]'\n" in installed.run(*command, code=1)
    assert installed.run("state", "list").strip() == ""
    said = installed.run("validate", "--live", "--send-secrets", code=1)
    extras = set(re.findall(r"Fix: pip install 'mzplan\[(.*)\]'\n", said))
    assert extras == {"collections", "kafka", "postgres", "runner"} and "bug" not in said
