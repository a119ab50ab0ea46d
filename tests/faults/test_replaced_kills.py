"""The runner is killed around the step in which a sink writes the difference between two generations.

Also while a source and its view are replaced side by side.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mzplan.host.failpoints import Failpoint
from mzplan.warehouse.checkpoints import Checkpoint
from tests.faults.doomed import ASKED, SECONDS, Doomed, verify
from tests.integration.spark_lab import read_delta
from tests.support import Make, Project, eventually, execute, rows_of

if TYPE_CHECKING:
    from examples.servers import PostgresServer

EVERY = {"interval": "300ms"}
ROWS = 60


class ReplacedShop(Doomed):
    """Totals of groups, whose number is in the view's query, in a table of one kind."""

    def __init__(self, project: Project, dsn: str, pg: dict[str, Any], kind: str, **view: Any):
        super().__init__(project)
        self.on_replace: dict[str, str] = {"on_replace": "difference"}
        self.dsn, self.kind, self.groups, self.view = dsn, kind, 0, view
        table = {"connection": "pg", "table": "totals"} if kind == "postgres" else {}
        self.target = table or {"connection": "disk", "type": "delta", "path": "totals"}
        self.connections = {"pg": pg} if table else {"disk": {"type": "files", "path": "lake"}}
        execute(dsn, "CREATE TABLE totals (customer text PRIMARY KEY, total bigint)")

    def declare(self, groups: int) -> None:
        self.groups = groups
        query = (
            f"SELECT concat('c', id % {groups}) AS customer, sum(amount) AS total FROM orders "
            f"GROUP BY concat('c', id % {groups})"
        )
        view = {"query": query, "output": "update", "key": ["customer"], "partitions": 1, **self.view}
        schema = "customer STRING, total BIGINT"
        source = {"type": "local", "schema": "id BIGINT, amount BIGINT", "trigger": EVERY}
        sink = {"from": "totals", "mode": "upsert", "key": ["customer"], **self.on_replace}
        shop: dict[str, Any] = {
            "connections": self.connections,
            "sources": {"orders": source},
            "views": {"totals": {**view, "schema": schema, "trigger": EVERY}},
            "sinks": {"out": {**sink, **self.target, "trigger": EVERY}},
        }
        self.project.write("shop", json.dumps(shop))

    def apply(self, groups: int) -> None:
        self.declare(groups)
        done = self.project.run("apply", *ASKED, "--allow-replace")
        assert done.returncode == 8, done.stdout + done.stderr

    def wanted(self) -> dict[str, int]:
        totals: Counter[str] = Counter()
        for id_ in range(ROWS):
            totals[f"c{id_ % self.groups}"] += id_
        return dict(totals)

    def found(self) -> dict[str, int]:
        if self.kind == "postgres":
            return dict(rows_of(self.dsn, "SELECT customer, total FROM totals"))
        rows = read_delta(self.project.folder / "lake" / "totals")
        return {row["customer"]: row["total"] for row in rows}

    def agrees(self) -> None:
        """Wait until the target is right, and nothing is left to do."""
        eventually("the target is right", lambda: self.found() == self.wanted(), SECONDS)
        self.is_idle()

    def is_idle(self) -> None:
        checkpoints = self.project.folder / "warehouse" / "checkpoints"

        def unfinished() -> list[int]:
            # Nobody finishes a step of a former generation.
            newest = (
                max(query.glob("g*"), key=lambda path: int(path.name[1:])) for query in checkpoints.iterdir()
            )
            logs = (Checkpoint(str(path)).log for path in newest)
            return [step for log in logs if (step := log.unfinished()) is not None]

        eventually("the queries run", self.is_running, SECONDS)
        eventually("all steps are done", lambda: not unfinished(), SECONDS)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["postgres", "delta"])
def test_killed_around_the_difference(
    tmp_path: Path, postgres: PostgresServer, database: Make, kind: str
) -> None:
    name = database()
    project = Project(tmp_path / "p", "replaced", {"TEST_PG_PASSWORD": postgres.password})
    pg = {"type": "postgres", "host": "127.0.0.1", "port": postgres.port, "database": name}
    pg |= {"user": postgres.user, "password": "${env:TEST_PG_PASSWORD}"}
    shop = ReplacedShop(project, postgres.dsn(name), pg, kind)
    try:
        shop.declare(9)
        runner = shop.runner()
        assert project.run("apply", *ASKED).returncode == 8
        eventually("it runs", shop.is_running, SECONDS)
        project.append("orders", [{"id": i, "amount": i} for i in range(ROWS)])
        shop.agrees()
        former = shop.wanted()
        shop.stop(runner)
        doomed = shop.runner(Failpoint.SINK_BEFORE_STEP)
        eventually("it runs", shop.is_running, SECONDS)
        shop.apply(7)
        shop.is_killed(doomed)
        assert shop.found() == former
        shop.dies_at(Failpoint.SINK_WRITTEN)
        assert shop.found() == shop.wanted()
        runner = shop.runner()
        shop.is_idle()
        assert shop.found() == shop.wanted()
        # Two replaces in a row, the second of which is a revert.
        for groups in (3, 7):
            shop.apply(groups)
        eventually("the new generation runs", lambda: generation_of(project) == 4, SECONDS)
        shop.agrees()
        shop.stop(runner)
        assert project.json("verify", "sink.out", "--content")["equal"]
    finally:
        shop.close()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("on_replace", [{"on_replace": "difference"}, {}], ids=["target", "generations"])
def test_killed_while_both_generations_run(
    tmp_path: Path, postgres: PostgresServer, database: Make, on_replace: dict[str, str]
) -> None:
    """The target has the rows of one generation or of the other, and follows its inputs meanwhile.

    The difference is that to the target, or that between the generations."""
    name = database()
    project = Project(tmp_path / "p", "beside", {"TEST_PG_PASSWORD": postgres.password})
    lifecycle = {"replace": "side-by-side"}
    shop = ReplacedShop(
        project, postgres.dsn(name), {}, "delta", lifecycle=lifecycle, max_files_per_trigger=1
    )
    shop.on_replace = on_replace
    try:
        shop.declare(9)
        runner = shop.runner()
        assert project.run("apply", *ASKED).returncode == 8
        eventually("it runs", shop.is_running, SECONDS)
        for number in range(6):
            project.append("orders", [{"id": i, "amount": i} for i in range(number, ROWS, 6)])
        shop.agrees()
        former = shop.wanted()
        shop.stop(runner)
        doomed = shop.runner(Failpoint.RUNNER_BEFORE_ACCEPT)  # of the generation beside
        eventually("it runs", shop.is_running, SECONDS)
        shop.apply(7)
        shop.is_killed(doomed)
        for point in (Failpoint.RUNNER_STOPPED_OLD, Failpoint.SINK_BEFORE_STEP):
            assert shop.found() == former
            shop.dies_at(point)
        assert shop.found() == former
        shop.dies_at(Failpoint.SINK_WRITTEN)
        assert shop.found() == shop.wanted()
        runner = shop.runner()
        shop.agrees()
        assert not any("@" in address for address in project.queries())
        shop.stop(runner)
        assert project.json("verify", "sink.out", "--content")["equal"]
        verify(project, "view.totals")
    finally:
        shop.close()


class ReplacedSource(ReplacedShop):
    """Totals of the rows in a folder, whose path is in the source, in a Delta table."""

    def declare(self, groups: int) -> None:
        self.groups = groups
        folder = self.project.folder / "lake" / f"in_{groups}"
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(6):
            rows = [json.dumps({"customer": f"c{i % groups}", "amount": i}) for i in range(number, ROWS, 6)]
            (folder / f"{number}.json").write_text("\n".join(rows))
        source = {"connection": "disk", "path": folder.name, "max_files_per_trigger": 1, "trigger": EVERY}
        source |= {"format": {"type": "json", "schema": "customer STRING, amount BIGINT"}, **self.view}
        query = "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer"
        view = {"query": query, "output": "update", "key": ["customer"], "partitions": 1, "trigger": EVERY}
        sink = {"from": "totals", "mode": "upsert", "key": ["customer"], **self.target, "trigger": EVERY}
        shop = {
            "connections": self.connections,
            "sources": {"orders": source},
            "views": {"totals": view},
            "sinks": {"out": sink},
        }
        self.project.write("shop", json.dumps(shop))


@pytest.mark.timeout(1200)
def test_killed_while_a_source_is_replaced_side_by_side(
    tmp_path: Path, postgres: PostgresServer, database: Make
) -> None:
    """The target has the totals of one folder or of the other, never of both."""
    project = Project(tmp_path / "p", "sources", {})
    lifecycle = {"replace": "side-by-side"}
    shop = ReplacedSource(project, postgres.dsn(database()), {}, "delta", lifecycle=lifecycle)
    try:
        shop.declare(9)
        runner = shop.runner()
        assert project.run("apply", *ASKED).returncode == 8
        eventually("it runs", shop.is_running, SECONDS)
        shop.agrees()
        former = shop.wanted()
        shop.stop(runner)
        doomed = shop.runner(Failpoint.RUNNER_BEFORE_ACCEPT)  # of the generations beside
        eventually("it runs", shop.is_running, SECONDS)
        shop.apply(7)
        shop.is_killed(doomed)
        for point in (Failpoint.RUNNER_STOPPED_OLD, Failpoint.SINK_BEFORE_STEP):
            assert shop.found() == former
            shop.dies_at(point)
        assert shop.found() == former
        shop.dies_at(Failpoint.SINK_WRITTEN)
        assert shop.found() == shop.wanted()
        runner = shop.runner()
        shop.agrees()
        assert not any("@" in address for address in project.queries())
        shop.stop(runner)
        assert project.json("verify", "sink.out", "--content")["equal"]
        verify(project, "view.totals")
    finally:
        shop.close()


def generation_of(project: Project) -> int:
    return int(project.queries()["sink.out"]["generation"])
