"""Values of `${env:…}` references that commands hand to a runner of this machine. The runner uses them only
once they are validated and committed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from mzplan.controller.executor import CheckResult
from mzplan.controller.memory import InMemoryExecutor
from mzplan.model.diagnostics import MzplanError, error
from mzplan.runner.secret_values import ReceivedSecretValues
from mzplan.runner.wake import WakeListener, runtime_folder
from mzplan.schema.description import Description, references_of
from mzplan.secrets.references import Secrets
from tests.support import eventually
from tests.unit.cli_runner import leading
from tests.unit.cli_runs import Ran, mzplan
from tests.unit.config_files import PROJECT
from tests.unit.secrets.test_rotation import queries
from tests.unit.secrets.test_secrets_watch import runs

PIPELINE = """\
connections:
  k: {type: kafka, brokers: ["a:9092"]}
  pg: {type: postgres, host: db, database: shop, user: app, password: "${env:HANDED_PG}"}
sources:
  orders: {connection: k, topic: orders, format: {type: json, schema: "id BIGINT"}}
sinks:
  out: {from: orders, connection: pg, table: t}
"""


class Server(InMemoryExecutor):
    """Queries that sign in to a server with a password."""

    password = "right"

    def check(self, description: Description, secrets: Secrets) -> CheckResult:
        try:
            self._sign_in(description, secrets)
        except MzplanError as problem:
            return CheckResult(diagnostics=problem.diagnostics)
        return CheckResult()

    def start(self, description: Description, secrets: Secrets, epoch: int) -> None:
        self._sign_in(description, secrets)
        super().start(description, secrets, epoch)

    def _sign_in(self, description: Description, secrets: Secrets) -> None:
        for reference in references_of(description):
            if secrets.resolve(reference) != self.password:
                raise error("MZ051", "refused", address=description.address)


class World:
    def __init__(self, folder: Path, server: Server, secrets: Secrets):
        self.folder, self.server, self.secrets = folder, server, secrets

    def apply(self, *options: str) -> Ran:
        return mzplan(self.folder, "apply", "--auto-approve", "--json", "--wait", "2m", *options)


@contextmanager
def started(folder: Path, environment: dict[str, str]) -> Iterator[World]:
    """Run the embedded instance's runner in this process, with an environment of its own."""
    server, secrets, values = Server("shop"), Secrets(str(folder), environment), ReceivedSecretValues()
    assert runtime_folder(folder) is not None
    with leading(folder, server, secrets=secrets, secret_values=values) as runner:
        path, wake = folder / ".mzplan" / "local.sock", runner.controller.wake_event
        with closing(WakeListener(path, values.receive, wake)) as listener:
            listener.start()
            yield World(folder, server, secrets)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mzplan.yaml").write_text(PROJECT)
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    return tmp_path


@pytest.fixture
def world(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("HANDED_PG", "right")
    with started(folder, {"HANDED_PG": "right"}) as made:
        assert made.apply().code == 0
        yield made


def test_commands_hand_over_only_validated_values(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before = runs(world.server)
    monkeypatch.setenv("HANDED_PG", "wrong")
    refused = world.apply()
    assert refused.code != 0 and [d["code"] for d in refused.json()["diagnostics"]] == ["MZ051"]
    assert world.secrets.environment == {"HANDED_PG": "right"} and runs(world.server) == before
    # A query that fails resumes with its former value.
    report = next(r for a, r in world.server.running().items() if a.kind == "sink")
    world.server.fail_query(report.name, "the server was restarted")
    run = before["sink.out"]
    eventually("it resumes", lambda: runs(world.server).get("sink.out", run) != run, 120)
    commands = "resume sink.out, restart source.orders, pause source.orders, resume source.orders"
    for command in commands.split(", "):
        assert mzplan(world.folder, *command.split(), "--wait", "5s").code == 0
        assert world.secrets.environment == {"HANDED_PG": "right"}
    assert mzplan(world.folder, "restart", "sink.out", "--wait", "5s").code == 1
    world.server.password = "second"
    monkeypatch.setenv("HANDED_PG", "second")
    assert mzplan(world.folder, "restart", "sink.out", "--wait", "20s").code == 0
    assert world.secrets.environment == {"HANDED_PG": "second"}
    # A new value is validated, and used after the commit.
    before = runs(world.server)
    world.server.password = "third"
    monkeypatch.setenv("HANDED_PG", "third")
    applied = world.apply()
    assert applied.code == 0, applied
    assert [c["address"] for c in applied.json()["changes"]] == ["sink.out"]
    assert world.secrets.environment == {"HANDED_PG": "third"}
    assert {a for a, run in runs(world.server).items() if before[a] != run} == {"sink.out"}


def test_an_apply_without_changes_provides_a_missing_value(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HANDED_PG", raising=False)
    with started(folder, {}) as world:
        failed = world.apply("--no-live")
        assert failed.code == 8 and "MZ056" in failed.out
        for value, code in (("wrong", 8), ("right", 0)):
            monkeypatch.setenv("HANDED_PG", value)
            applied = world.apply()
            assert applied.json()["changes"] == [] and applied.code == code, applied
        assert queries(folder)["sink.out"]["condition"] == "running"
        assert mzplan(folder, "plan", "--json").json()["changes"] == []


def test_validation_names_the_source_of_the_values(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    validate = ("validate", "--live")
    assert "on instance local, with HANDED_PG from here" in mzplan(world.folder, *validate).err
    monkeypatch.delenv("HANDED_PG")
    checked = mzplan(world.folder, *validate)
    assert "on instance local, with the runner's values of the secrets" in checked.err
    monkeypatch.setenv("HANDED_PG", "wrong")
    assert mzplan(world.folder, *validate, "--json").error()["code"] == "MZ051"
    assert world.secrets.environment == {"HANDED_PG": "right"}
