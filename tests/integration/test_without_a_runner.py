"""Nothing is committed that was not validated, also where no runner is alive: the command that starts one
hands it what it has, and a refusal leaves everything as it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mzplan.host.failpoints import Failpoint
from tests.support import Project, eventually, execute, postgres_connection

if TYPE_CHECKING:
    from examples.servers import PostgresServer

WRONG = {"TEST_PG_PASSWORD": "wrong"}
SINK = "{from: made, connection: pg, table: public.rows, mode: append, trigger: {interval: 500ms}}"


class Shop(Project):
    """A local source and a sink, with a runner that is not started yet."""

    def __init__(self, folder: Path, postgres: PostgresServer, database: str):
        super().__init__(folder, "shop", {"TEST_PG_PASSWORD": postgres.password})
        self.dsn, self.database = postgres.dsn(database), database
        self.pipeline = folder / "pipeline.yaml"
        execute(self.dsn, "CREATE TABLE rows (id bigint)")
        self.write(
            "pipeline",
            "connections:\n" + postgres_connection("pg", postgres, database)
            + "sources:\n  made: {type: local, schema: id BIGINT, trigger: {interval: 500ms}}\nsinks:\n"
            f"  out: {SINK}\n",
        )  # fmt: skip

    def edit(self, before: str, after: str) -> None:
        text = self.pipeline.read_text()
        assert before in text
        self.pipeline.write_text(text.replace(before, after))


@pytest.fixture
def shop(tmp_path: Path, postgres: PostgresServer, database: Callable[..., str]) -> Iterator[Shop]:
    shop = Shop(tmp_path / "shop", postgres, database("validated"))
    yield shop
    shop.down()


def is_down(shop: Shop) -> bool:
    return not any(one["alive"] for one in shop.json("status")["instances"])


def test_a_refused_change_leaves_everything_as_it_was(shop: Shop) -> None:
    def refused(*arguments: str, code: str, **more: object) -> None:
        found = shop.json(*arguments, "--auto-approve", code=1, **more)["diagnostics"]
        assert [one["code"] for one in found] == [code]

    # The first apply of a laptop: it starts the runner, which validates.
    refused("apply", code="MZ051", environment=WRONG)
    assert not (shop.folder / "state" / "mzplan.state.json").exists() and is_down(shop)
    applied = shop.run("apply", "--auto-approve")
    assert applied.returncode == 0 and "was not validated" not in applied.stdout + applied.stderr
    run_ids = shop.run_ids()

    # With a runner that is alive: it goes on with the values of the last good commit.
    refused("apply", code="MZ051", environment=WRONG)
    assert shop.run_ids() == run_ids
    assert {q["condition"] for q in shop.queries().values()} == {"running"}

    # With one that is down: it is down again, and files and state are as they were.
    shop.down()
    state, text = shop.state_bytes(), shop.pipeline.read_bytes()
    refused("alter", "ALTER CONNECTION pg SET PORT = 1", code="MZ050")
    refused("apply", code="MZ051", environment=WRONG)
    assert is_down(shop) and shop.state_bytes() == state
    assert shop.pipeline.read_bytes() == text


@pytest.mark.nightly
def test_a_change_converges_when_its_runner_is_killed_after_the_commit(shop: Shop) -> None:
    sink = "append, trigger: {interval: %s}"

    def killed(before: str, after: str, serial: int) -> tuple[int, str]:
        """An apply of one change, whose runner is killed as soon as that is committed."""
        shop.edit(sink % before, sink % after)
        command = [sys.executable, "-m", "mzplan", "-C", str(shop.folder), "apply", "--auto-approve"]
        applying = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **shop.environment},
        )
        state = shop.folder / "state" / "mzplan.state.json"
        eventually("it is committed", lambda: state.exists() and f'"serial": {serial},' in state.read_text())
        os.kill(shop.lease()["pid"], signal.SIGKILL)
        return applying.wait(120), applying.stdout.read() if applying.stdout else ""

    # The command has started it: it is started once more, and the change converges.
    code, said = killed("500ms", "600ms", 1)
    assert code == 0 and said.count("Starting the runner") == 2, said

    # It was there before: one sentence says what to do, about the one query that was changed.
    code, said = killed("600ms", "700ms", 2)
    assert code == 8 and "a runner applies it once you start one (mzplan up):" in said, said
    end = said[said.index("Committed serial 2") :]
    assert "The runner of instance local has ended. Fix: restart it: mzplan up." in end, said
    assert "sink.out" in end and "source.made" not in end, said

    # The command itself is killed while the runner that it has started validates, with the shell's values.
    shop.edit(sink % "700ms", sink % "800ms")
    proposed = {**WRONG, "MZPLAN_FAILPOINT": Failpoint.APPLY_PROPOSED.value}
    assert shop.run("apply", "--auto-approve", environment=proposed).returncode == -signal.SIGKILL
    eventually("its runner ends as well", lambda: is_down(shop))
    assert shop.json("status")["serial"] == 2


@pytest.mark.nightly
def test_values_that_nobody_has_validated_are_not_used(shop: Shop) -> None:
    def refused(*arguments: str) -> None:
        found = shop.json(*arguments, "--auto-approve", code=1, environment=WRONG)["diagnostics"]
        assert [one["code"] for one in found] == ["MZ051"]

    # A command that is interrupted while the runner starts takes it along.
    command = [sys.executable, "-m", "mzplan", "-C", str(shop.folder), "apply", "--auto-approve"]
    applying = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, **shop.environment, **WRONG}
    )
    assert applying.stderr is not None
    assert any("Starting the runner" in line for line in applying.stderr)
    applying.send_signal(signal.SIGINT)
    applying.stderr.close()
    assert applying.wait(60) != 0
    eventually("no runner is alive", lambda: is_down(shop))

    # What is mended outside the files is tried at once, and judged by that.
    shop.apply()
    execute(shop.dsn, "ALTER TABLE rows RENAME TO away")
    shop.append("made", [{"id": 1}])
    eventually("the sink fails", lambda: shop.queries()["sink.out"]["condition"] == "failed")
    execute(shop.dsn, "ALTER TABLE away RENAME TO rows")
    applied = shop.run("apply", "--auto-approve")
    assert applied.returncode == 0, applied.stdout + applied.stderr

    # What only paused queries use is not handed over, and validated when they are resumed.
    shop.run("pause", "sink.out", "--auto-approve")
    assert shop.run("apply", "--auto-approve", environment=WRONG).returncode == 0
    refused("resume", "sink.out")
    assert shop.run("resume", "sink.out", "--auto-approve").returncode == 0

    # A runner that is started for one query runs the others as well, with the same values.
    shop.down()
    shop.edit(
        "schema: id BIGINT, trigger: {interval: 500ms}", "schema: id BIGINT, trigger: {interval: 400ms}"
    )
    refused("apply", "--target", "source.made")
    assert is_down(shop)


@pytest.mark.nightly
@pytest.mark.parametrize("alive", [True, False])
def test_every_command_that_starts_a_query_validates_it_first(
    shop: Shop, postgres: PostgresServer, alive: bool
) -> None:
    with shop.pipeline.open("a") as text:
        text.writelines(f"  {name}: {SINK}\n" for name in ("paused", "forgotten"))
    other = postgres_connection("other", postgres, shop.database).replace("127.0.0.1", "localhost")
    shop.write("other", f"connections:\n{other}")
    shop.apply()
    commands = [
        ("apply",),  # it creates the forgotten sink
        ("alter", "ALTER SINK out SET CONNECTION other"),
        ("resume", "sink.paused"),
        ("restart", "sink.out"),
        ("replay", "sink.out", "--missing"),
        ("import", "sink.forgotten"),
        ("state", "rollback", "1"),
        ("state", "push", str(shop.folder / "pulled.json"), "--force"),
    ]
    assert shop.run("state", "pull", "--out", commands[-1][2]).returncode == 0
    assert shop.run("pause", "sink.paused").returncode == 0
    assert shop.run("state", "rm", "sink.forgotten").returncode == 0

    if not alive:
        shop.down()
    state = shop.state_bytes()

    def refused(code: str, environment: dict[str, str]) -> None:
        for command in commands:
            approved = () if "push" in command else ("--auto-approve",)
            ran = shop.json(*command, *approved, code=1, environment=environment)
            assert {one["code"] for one in ran["diagnostics"]} == {code}, command
            assert shop.state_bytes() == state, command

    if alive:
        refused("MZ051", WRONG)
        execute(shop.dsn, "ALTER TABLE rows RENAME TO away")
        refused("MZ052", {})
    else:  # each command starts a runner, and stops it again
        refused("MZ051", WRONG)
    assert is_down(shop) is not alive
