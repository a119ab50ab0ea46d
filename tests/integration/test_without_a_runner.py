"""Nothing is committed that was not validated, also where no runner is alive: the command that starts one
hands it what it has, and a refusal leaves everything as it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from examples.servers import PostgresServer
from mzplan.host.failpoints import Failpoint
from tests.support import Make, Project, eventually, execute, exit_code, postgres_connection

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

    def applying(self, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """`mzplan apply` in a process of its own, with both outputs in one pipe."""
        return subprocess.Popen(
            [sys.executable, "-m", "mzplan", "-C", str(self.folder), "apply", "--auto-approve"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **self.environment, **(environment or {})},
        )

    def refused(self, code: str, environment: Mapping[str, str], *command: str) -> None:
        """Run a command; it must fail with this error and leave the state as it was."""
        state = self.state_bytes() if self.has_state() else None
        approved = () if "push" in command else ("--auto-approve",)
        found = self.json(*command, *approved, code=1, environment=environment)["diagnostics"]
        assert {one["code"] for one in found} == {code}, command
        assert (self.state_bytes() if self.has_state() else None) == state, command

    def has_state(self) -> bool:
        return (self.folder / "state" / "mzplan.state.json").exists()

    def is_down(self) -> bool:
        return not any(one["alive"] for one in self.json("status")["instances"])

    def edit(self, before: str, after: str) -> None:
        text = self.pipeline.read_text()
        assert before in text
        self.pipeline.write_text(text.replace(before, after))


@pytest.fixture
def shop(tmp_path: Path, postgres: PostgresServer, database: Make) -> Iterator[Shop]:
    shop = Shop(tmp_path / "shop", postgres, database("validated"))
    yield shop
    shop.down()


def test_a_refused_change_leaves_everything_as_it_was(shop: Shop) -> None:
    # The first apply of a laptop: it starts the runner, which validates.
    shop.refused("MZ051", WRONG, "apply")
    assert not shop.has_state() and shop.is_down()
    applied = shop.run("apply", "--auto-approve")
    assert applied.returncode == 0 and "was not validated" not in applied.stdout + applied.stderr
    run_ids = shop.run_ids()

    # With a runner that is alive: it goes on with the values of the last good commit.
    shop.refused("MZ051", WRONG, "apply")
    assert shop.run_ids() == run_ids
    assert {q["condition"] for q in shop.queries().values()} == {"running"}

    # With one that is down: it is down again, and files and state are as they were.
    shop.down()
    text = shop.pipeline.read_bytes()
    shop.refused("MZ050", {}, "alter", "ALTER CONNECTION pg SET PORT = 1")
    shop.refused("MZ051", WRONG, "apply")
    assert shop.is_down() and shop.pipeline.read_bytes() == text


@pytest.mark.nightly
def test_a_change_converges_when_its_runner_is_killed_after_the_commit(shop: Shop) -> None:
    sink = "append, trigger: {interval: %s}"

    def killed(before: str, after: str, serial: int) -> tuple[int, str]:
        """An apply of one change, whose runner is killed as soon as it has read the commit."""
        shop.edit(sink % before, sink % after)
        applying, committed = shop.applying(), f'"serial": {serial},'.encode()
        eventually("it is committed", lambda: shop.has_state() and committed in shop.state_bytes())
        # Before, the command itself might find no runner, and start one.
        status = shop.folder / "state" / "status" / "local.json"
        eventually("the runner has read it", lambda: json.loads(status.read_text())["serial"] == serial)
        os.kill(shop.lease()["pid"], signal.SIGKILL)
        return exit_code(applying, 120.0), applying.stdout.read() if applying.stdout else ""

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
    eventually("its runner ends as well", shop.is_down)
    assert shop.json("status")["serial"] == 2


@pytest.mark.nightly
def test_values_that_nobody_has_validated_are_not_used(shop: Shop) -> None:
    # A command that is interrupted while the runner starts takes it along.
    applying = shop.applying(WRONG)
    assert applying.stdout is not None
    assert any("Starting the runner" in line for line in applying.stdout)
    applying.send_signal(signal.SIGINT)
    applying.communicate(timeout=60)
    assert applying.returncode != 0
    eventually("no runner is alive", shop.is_down)

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
    shop.refused("MZ051", WRONG, "resume", "sink.out")
    assert shop.run("resume", "sink.out", "--auto-approve").returncode == 0

    # A runner that is started for one query runs the others as well, with the same values.
    shop.down()
    shop.edit("BIGINT, trigger: {interval: 500ms}", "BIGINT, trigger: {interval: 400ms}")
    shop.refused("MZ051", WRONG, "apply", "--target", "source.made")
    assert shop.is_down()


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

    if not alive:  # each command starts a runner, and stops it again
        shop.down()
    for command in commands:
        shop.refused("MZ051", WRONG, *command)
    if alive:
        execute(shop.dsn, "ALTER TABLE rows RENAME TO away")
        for command in commands:
            shop.refused("MZ052", {}, *command)
    assert shop.is_down() is not alive
