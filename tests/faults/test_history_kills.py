"""The runner is killed around the steps in which sinks write versions (`mode: history`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mzplan.host.failpoints import Failpoint
from tests.faults.doomed import ASKED, SECONDS, Doomed
from tests.integration.spark_lab import read_delta
from tests.support import Make, Project, eventually, rows_of

if TYPE_CHECKING:
    from examples.servers import PostgresServer

EVERY = {"interval": "300ms"}
KEYS = 20


class HistoryShop(Doomed):
    """A keyed collection, whose history is in a table of one kind."""

    def __init__(self, project: Project, dsn: str, pg: dict[str, Any], kind: str):
        super().__init__(project)
        self.dsn, self.kind, self.rounds = dsn, kind, 0
        table = {"connection": "pg", "table": "t", "create": True} if kind == "postgres" else {}
        target: Mapping[str, Any] = table or {"connection": "disk", "type": "delta", "path": "t"}
        source = {"type": "local", "schema": "id BIGINT, name STRING", "key": ["id"], "trigger": EVERY}
        sink = {"from": "customers", "mode": "history", "key": ["id"], **target, "trigger": EVERY}
        shop: dict[str, Any] = {
            "connections": {"pg": pg} if table else {"disk": {"type": "files", "path": "lake"}},
            "sources": {"customers": source},
            "sinks": {"out": sink},
        }
        project.write("shop", json.dumps(shop))

    def change(self) -> None:
        """Give each row another name, in one step of the collection."""
        self.rounds += 1
        self.project.append("customers", [{"id": i, "name": f"n{self.rounds}"} for i in range(KEYS)])

    def versions(self) -> list[tuple[Any, ...]]:
        """Return the versions in the target, by id and time."""
        names = ("id", "name", "valid_from", "valid_to", "is_current")
        if self.kind == "delta":
            rows = read_delta(self.project.folder / "lake" / "t")
            return sorted(tuple(row[name] for name in names) for row in rows)
        return sorted(rows_of(self.dsn, f"SELECT {', '.join(names)} FROM t"))

    def is_right(self, rounds: int) -> None:
        """Check that each row has one version for each change, and that no time is missing."""
        versions = self.versions()
        wanted = [(i, f"n{n + 1}") for i in range(KEYS) for n in range(rounds)]
        assert [row[:2] for row in versions] == wanted
        following = [*versions[1:], versions[0]]
        for row, after in zip(versions, following, strict=True):
            is_last = row[1] == f"n{rounds}"
            assert (row[3], row[4]) == ((None, True) if is_last else (after[2], False))

    def has_changes(self, rounds: int) -> None:
        eventually(f"{rounds} versions", lambda: len(self.versions()) >= rounds * KEYS, SECONDS)


@pytest.mark.parametrize("kind", ["postgres", "delta"])
def test_each_version_is_written_once(
    tmp_path: Path, postgres: PostgresServer, database: Make, kind: str
) -> None:
    name = database()
    project = Project(tmp_path / "p", "history", {"TEST_PG_PASSWORD": postgres.password})
    pg = {"type": "postgres", "host": "127.0.0.1", "port": postgres.port, "database": name}
    pg |= {"user": postgres.user, "password": "${env:TEST_PG_PASSWORD}"}
    shop = HistoryShop(project, postgres.dsn(name), pg, kind)
    try:
        runner = shop.runner()
        assert project.run("apply", *ASKED).returncode == 8
        eventually("it runs", shop.is_running, SECONDS)
        shop.change()
        shop.has_changes(1)
        shop.stop(runner)
        doomed = shop.runner(Failpoint.SINK_BEFORE_STEP)
        eventually("it runs", shop.is_running, SECONDS)
        shop.change()
        shop.is_killed(doomed)
        shop.is_right(1)
        shop.dies_at(Failpoint.SINK_WRITTEN)
        shop.is_right(2)
        runner = shop.runner()
        eventually("it runs", shop.is_running, SECONDS)
        shop.change()
        shop.has_changes(3)
        shop.is_right(3)
        shop.stop(runner)
        assert project.json("verify", "sink.out", "--content")["equal"]
    finally:
        shop.close()
