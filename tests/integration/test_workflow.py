"""A team's workflow on real Spark, with the state in PostgreSQL: a reviewed plan, a rename, an import."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.servers import PostgresServer
from tests.support import Make, Project, drop_ids, eventually, execute, ids_in, postgres_connection, rows_of


@pytest.fixture
def team(tmp_path: Path, postgres: PostgresServer, database: Make) -> Iterator[tuple[Project, str]]:
    """A project of its own, whose state is in the database that its sink writes to."""
    name = database("team")
    project = Project(tmp_path / "team", "team", {"TEST_PG_PASSWORD": postgres.password})
    settings = project.folder / "mzplan.yaml"
    settings.write_text(
        settings.read_text()
        + f"state: {{backend: postgres, host: 127.0.0.1, port: {postgres.port}, database: {name}, "
        f"user: {postgres.user}, password: '${{env:TEST_PG_PASSWORD}}'}}\n"
    )
    execute(postgres.dsn(name), "CREATE TABLE readings (id bigint)")
    (project.folder / "inbox").mkdir()
    yield project, name
    project.down()


def declare(project: Project, postgres: PostgresServer, name: str, source: str, more: str = "") -> None:
    project.write(
        "pipeline",
        "connections:\n  here: {type: files, path: .}\n"
        + postgres_connection("pg", postgres, name)
        + f"sources:\n  {source}: {{connection: here, path: inbox, trigger: {{interval: 500ms}}{more}, "
        'format: {type: json, schema: "id BIGINT"}}\n'
        f"sinks:\n  out: {{from: {source}, connection: pg, table: public.readings, mode: append, "
        "trigger: {interval: 500ms}}\n",
    )


@pytest.mark.nightly
def test_from_a_reviewed_plan_to_a_rename_and_back(
    team: tuple[Project, str], postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, name = team
    monkeypatch.setenv("TEST_PG_PASSWORD", postgres.password)  # for commands in this process
    dsn, inbox = postgres.dsn(name), project.folder / "inbox"

    def ids() -> list[int]:
        return ids_in(dsn, "readings")

    # A plan is saved, reviewed and applied; the runner finds it in the database.
    declare(project, postgres, name, "readings")
    drop_ids(inbox, *range(10))
    plan, comment = project.folder.parent / "p.plan", project.folder.parent / "p.md"
    project.json("plan", "--out", str(plan), "--markdown", str(comment))
    assert "**4 to create, 1 setting to change.**" in comment.read_text()
    applied = project.json("apply", str(plan))
    assert {c["status"] for c in applied["changes"]} == {"applied"}
    eventually("ten rows", lambda: ids() == list(range(10)))
    assert not (project.folder / "state").exists()
    keys = {row[0] for row in rows_of(dsn, "SELECT key FROM mzplan.blobs")}
    status = {"status/local.json", "status/local.accepted.json"}
    assert {"mzplan.state.json", "leases/local.json", *status} <= keys
    assert postgres.password not in str(rows_of(dsn, "SELECT data FROM mzplan.blobs"))
    assert project.json("drift", "--detailed-exitcode")["drift"] == []

    # A rename: same checkpoint and collection, the sink is not touched, and no row comes twice.
    before = project.queries()
    record = project.json("state", "show", "source.readings")
    declare(project, postgres, name, "sensors", ", lifecycle: {moved_from: readings}")
    moved = project.apply()
    assert moved["summary"]["move"] == 1 and {c["status"] for c in moved["changes"]} == {"applied"}
    after = project.queries()
    assert project.json("state", "show", "source.sensors")["id"] == record["id"]
    assert after["source.sensors"]["id"] == before["source.readings"]["id"]  # Spark's: the same checkpoint
    assert after["sink.out"]["run_id"] == before["sink.out"]["run_id"]
    drop_ids(inbox, *range(10, 20))
    eventually("twenty rows", lambda: ids() == list(range(20)))

    # Forgotten, then imported: it goes on where it stopped.
    assert project.run("state", "rm", "sink.out").returncode == 0
    eventually("the sink is gone", lambda: "sink.out" not in project.queries())
    drop_ids(inbox, *range(20, 30))
    eventually("the source has it", lambda: (project.queries()["source.sensors"]["step"] or 0) >= 2)
    assert ids() == list(range(20))
    adopted = project.json("import", "sink.out", "--auto-approve")
    assert adopted["changes"][0]["status"] == "applied"
    eventually("thirty rows", lambda: ids() == list(range(30)))
    assert project.queries()["sink.out"]["id"] == before["sink.out"]["id"]

    # Another checkout of the project, with another idea of the last serial, is told.
    assert project.json("plan", "--detailed-exitcode")["changes"] == []
    assert project.run("apply", str(plan)).returncode == 5
    assert len(ids()) == 30
