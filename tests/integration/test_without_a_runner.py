"""Nothing is committed that was not validated, also where no runner is alive: the command that starts one
hands it what it has, and a refusal leaves everything as it was."""

from __future__ import annotations

import os
import re
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


@pytest.fixture
def shop(tmp_path: Path, postgres: PostgresServer, database: Callable[..., str]) -> Iterator[Project]:
    """A project with a runner of its own, which is not started yet."""
    name = database("validated")
    execute(postgres.dsn(name), "CREATE TABLE rows (id bigint)")
    project = Project(tmp_path / "shop", "shop", {"TEST_PG_PASSWORD": postgres.password})
    project.write(
        "pipeline",
        "connections:\n" + postgres_connection("pg", postgres, name) + "sources:\n  made: {type: local, "
        "schema: id BIGINT, trigger: {interval: 500ms}}\nsinks:\n"
        "  out: {from: made, connection: pg, table: public.rows, mode: append, trigger: {interval: 500ms}}\n",
    )
    yield project
    project.down()


def is_down(project: Project) -> bool:
    return not any(one["alive"] for one in project.json("status")["instances"])


def test_what_is_refused_leaves_everything_as_it_was(
    shop: Project, postgres: PostgresServer, database: Callable[..., str]
) -> None:
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
    state, text = shop.state_bytes(), (shop.folder / "pipeline.yaml").read_bytes()
    refused("alter", "ALTER CONNECTION pg SET PORT = 1", code="MZ050")
    refused("apply", code="MZ051", environment=WRONG)
    assert is_down(shop) and shop.state_bytes() == state
    assert (shop.folder / "pipeline.yaml").read_bytes() == text


@pytest.mark.nightly
def test_a_runner_that_is_killed_after_the_commit(shop: Project) -> None:
    def killed(interval: str, serial: int) -> tuple[int, str]:
        """An apply of one change, whose runner is killed as soon as that is committed."""
        text = (shop.folder / "pipeline.yaml").read_text()
        (shop.folder / "pipeline.yaml").write_text(re.sub(r"mode: append, trigger: .*", interval, text))
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
    code, said = killed("mode: append, trigger: {interval: 600ms}}", 1)
    assert code == 0 and said.count("Starting the runner") == 2, said

    # It was there before: one sentence says what to do, about the one query that was changed.
    code, said = killed("mode: append, trigger: {interval: 700ms}}", 2)
    assert code == 8 and "a runner applies it once you start one (mzplan up):" in said, said
    end = said[said.index("Committed serial 2") :]
    assert "The runner of instance local has ended. Fix: restart it: mzplan up." in end, said
    assert "sink.out" in end and "source.made" not in end, said

    # The command itself is killed while the runner that it has started validates, with the shell's values.
    (shop.folder / "pipeline.yaml").write_text(
        (shop.folder / "pipeline.yaml").read_text().replace("interval: 700ms", "interval: 800ms")
    )
    proposed = {**WRONG, "MZPLAN_FAILPOINT": Failpoint.APPLY_PROPOSED.value}
    assert shop.run("apply", "--auto-approve", environment=proposed).returncode == -signal.SIGKILL
    eventually("its runner ends as well", lambda: is_down(shop))
    assert shop.json("status")["serial"] == 2


@pytest.mark.nightly
def test_values_that_nobody_has_validated_are_not_used(shop: Project, postgres: PostgresServer) -> None:
    pipeline = shop.folder / "pipeline.yaml"

    def edit(before: str, after: str) -> None:
        pipeline.write_text(pipeline.read_text().replace(before, after))

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
    dsn = re.search(r"database: (\S+)", pipeline.read_text())
    assert dsn is not None
    target = postgres.dsn(dsn[1].strip("\"'},"))
    execute(target, "ALTER TABLE rows RENAME TO away")
    shop.append("made", [{"id": 1}])
    eventually("the sink fails", lambda: shop.queries()["sink.out"]["condition"] == "failed")
    execute(target, "ALTER TABLE away RENAME TO rows")
    applied = shop.run("apply", "--auto-approve")
    assert applied.returncode == 0, applied.stdout + applied.stderr

    # What only paused queries use is not handed over, and validated when they are resumed.
    shop.run("pause", "sink.out", "--auto-approve")
    assert shop.run("apply", "--auto-approve", environment=WRONG).returncode == 0
    refused("resume", "sink.out")
    assert shop.run("resume", "sink.out", "--auto-approve").returncode == 0

    # A runner that is started for one query runs the others as well, with the same values.
    shop.down()
    edit("schema: id BIGINT, trigger: {interval: 500ms}", "schema: id BIGINT, trigger: {interval: 400ms}")
    refused("apply", "--target", "source.made")
    assert is_down(shop)


@pytest.mark.nightly
@pytest.mark.parametrize("alive", [True, False])
def test_every_command_that_starts_a_query_validates_it_first(
    shop: Project, postgres: PostgresServer, alive: bool
) -> None:
    pipeline = shop.folder / "pipeline.yaml"
    found = re.search(r"database: (\w+)", pipeline.read_text())
    assert found is not None
    target = postgres.dsn(found[1])
    sink = "{from: made, connection: pg, table: public.rows, mode: append, trigger: {interval: 500ms}}"
    with pipeline.open("a") as text:
        text.writelines(f"  {name}: {sink}\n" for name in ("paused", "forgotten"))
    other = postgres_connection("other", postgres, found[1]).replace("127.0.0.1", "localhost")
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
        execute(target, "ALTER TABLE rows RENAME TO away")
        refused("MZ052", {})
    else:  # each command starts a runner, and stops it again
        refused("MZ051", WRONG)
    assert is_down(shop) is not alive
