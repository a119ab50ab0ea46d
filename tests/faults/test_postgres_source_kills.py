"""A PostgreSQL source whose runner is killed in its snapshot, its changes and a migration: every row, and
every delete, is downstream exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import TYPE_CHECKING, Any

import pytest

from mzplan.host.failpoints import Failpoint
from tests.faults.doomed import ASKED, SECONDS, Doomed, steps_of, verify
from tests.support import Make, Project, eventually, execute, postgres_connection, rows_of

if TYPE_CHECKING:
    from examples.servers import PostgresServer

TABLES = ("a", "b", "c")
ROWS = 300
# What the sink does to its table, and how often.
_LOG = """
CREATE TABLE latest (shard text, id bigint, v bigint, PRIMARY KEY (shard, id));
CREATE TABLE log (what text, shard text, id bigint, v bigint);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  IF TG_OP = 'DELETE' THEN INSERT INTO log VALUES ('delete', OLD.shard, OLD.id, OLD.v);
  ELSE INSERT INTO log VALUES ('write', NEW.shard, NEW.id, NEW.v); END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER noted AFTER INSERT OR UPDATE OR DELETE ON latest
  FOR EACH ROW EXECUTE FUNCTION note();
"""


class Tables(Doomed):
    """Three tables in one collection, each a step of the snapshot, copied into another database."""

    def __init__(self, folder: Path, postgres: PostgresServer, upstream: str, target: str):
        super().__init__(Project(folder, "pgkills", {"TEST_PG_PASSWORD": postgres.password}))
        self.upstream, self.target = postgres.dsn(upstream), postgres.dsn(target)
        self.round = 0
        execute(self.target, _LOG)
        for table in TABLES:
            execute(self.upstream, f"CREATE TABLE {table} (id bigint PRIMARY KEY, v int)")
        self.connections = postgres_connection("up", postgres, upstream)
        self.connections += postgres_connection("to", postgres, target)
        self.declare("INT")
        self.change()

    def declare(self, type_: str) -> None:
        """With this type of column v."""
        listed = ", ".join(f"public.{table}" for table in TABLES)
        self.project.write(
            "kills",
            f"connections:\n{self.connections}"
            f"sources:\n  s:\n    connection: up\n    tables: [{listed}]\n"
            f'    schema: "id BIGINT, v {type_}"\n    key: [id, shard]\n    include: {{table: shard}}\n'
            "    snapshot: {parallelism: 1}\n    trigger: {interval: 500ms}\n"
            "    lifecycle: {replace: from-collection}\n"
            "sinks:\n  t: {from: s, connection: to, table: latest, mode: upsert, key: [shard, id], "
            "select: [shard, id, cast(v AS BIGINT) AS v], trigger: {interval: 500ms}}\n",
        )

    def ask_for_migration(self) -> CompletedProcess[str]:
        self.declare("BIGINT")
        return self.project.run("apply", "--allow-replace", *ASKED)

    def change(self) -> None:
        """Every row gets a value that none had before; some go for good, some go and come back."""
        self.round += 1
        first = self.round * ROWS
        new = f"generate_series({first}, {first + ROWS - 1})"
        for table in TABLES:
            for statement in (
                f"UPDATE {table} SET v = {first * 1000} + id",
                f"INSERT INTO {table} SELECT g, {first * 1000} + g FROM {new} g",
                f"DELETE FROM {table} WHERE id % 10 = {self.round}",
                f"WITH gone AS (DELETE FROM {table} WHERE id % 10 = 9 RETURNING id) "
                f"UPDATE {table} SET v = v + 7 WHERE id IN (SELECT id - 1 FROM gone)",
                f"INSERT INTO {table} SELECT g, {first * 1000 + 7} + g FROM {new} g WHERE g % 10 = 9",
            ):
                execute(self.upstream, statement)

    def rows(self) -> set[tuple[Any, ...]]:
        return {
            (f"public.{table}", *row)
            for table in TABLES
            for row in rows_of(self.upstream, f"SELECT id, v FROM {table}")
        }

    def slots(self) -> list[tuple[Any, ...]]:
        mine = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
        return rows_of(self.upstream, mine)

    def arrives(self) -> None:
        def all_there() -> bool:
            return set(rows_of(self.target, "SELECT shard, id, v FROM latest")) == self.rows()

        eventually("the target is as the tables are", all_there, SECONDS)

    def steps(self) -> int:
        return len(list(self.project.folder.glob("warehouse/checkpoints/*/g1/steps/0*.json")))

    def is_alive(self) -> bool:
        return bool(self.project.json("status")["instances"][0]["alive"])


@pytest.fixture
def tables(tmp_path: Path, postgres: PostgresServer, database: Make) -> Iterator[Tables]:
    tables = Tables(tmp_path / "p", postgres, database("upstream"), database("target"))
    yield tables
    tables.close()


@pytest.mark.timeout(2400)
def test_killed_in_the_snapshot_the_changes_and_a_migration(tables: Tables) -> None:
    # The first runner dies with the first step of the snapshot read, and nothing of it merged.
    tables.project.run(
        "apply", "--auto-approve", environment={"MZPLAN_FAILPOINT": Failpoint.SOURCE_BEFORE_MERGE.value}
    )
    eventually("a step is durable", lambda: tables.steps() == 1, SECONDS)
    eventually("and it is dead", lambda: not tables.is_alive(), SECONDS)
    tables.change()
    tables.dies_at(Failpoint.SOURCE_MERGED)
    assert tables.steps() == 1
    tables.change()
    # Another one is killed wherever it is, in the middle of the snapshot or soon after.
    runner = tables.runner()
    eventually("it is in the middle of the snapshot", lambda: tables.steps() >= 2, SECONDS)
    runner.kill()
    runner.wait(30)
    tables.change()
    tables.project.run("up")
    tables.arrives()
    tables.project.down()
    tables.change()
    tables.dies_at(Failpoint.SOURCE_MERGED)
    tables.change()
    tables.project.run("up")
    tables.arrives()
    tables.project.down()
    steps_of(tables.project, "source.s")
    verify(tables.project, "source.s", "sink.t")
    # The slot stays when the generation that made it goes, and is dropped with the last one.
    rows, slots = len(tables.rows()), tables.slots()
    tables.killed_in("migration", tables.ask_for_migration, tables.change)
    tables.change()
    tables.project.run("up")
    tables.arrives()
    eventually("nothing is left to do", tables.has_nothing_to_do, SECONDS)
    # Not by the event that the generation is given up: a runner killed in the same second has lost it.
    removed = "generation 1; its storage was removed"
    eventually("its storage is removed", lambda: removed in tables.project.run("events").stdout, SECONDS)
    tables.change()
    tables.arrives()
    assert tables.slots() == slots != []
    written = Counter(rows_of(tables.target, "SELECT what, shard, id, v FROM log"))
    twice = {change: count for change, count in written.items() if count > 1}
    assert not twice
    first = steps_of(tables.project, "source.s")[0]
    assert (first["migrated"], first["rows"]) == (1, rows)
    tables.project.write("kills", "")
    tables.project.apply()
    eventually("the slot is dropped", lambda: tables.slots() == [], SECONDS)
