"""A view that is replaced after steps of its inputs have expired: the plan says what it is computed from, and
no row is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from mzplan.warehouse.checkpoints import collection_path
from tests.support import Project, eventually

STEPS = 6
ROWS = 10  # in each step


def declare(project: Project, total: str) -> None:
    project.write(
        "shop",
        "sources:\n"
        "  orders: {type: local, schema: 'id BIGINT, customer STRING', trigger: {interval: 200ms}}\n"
        "views:\n"
        f"  totals: {{query: 'SELECT customer, {total} AS n FROM orders GROUP BY customer', output: update,\n"
        "    key: [customer], schema: 'customer STRING, n BIGINT', partitions: 1,\n"
        "    trigger: {interval: 200ms}}\n",
    )


def append(project: Project, step: int) -> None:
    ids = range(step * ROWS, (step + 1) * ROWS)
    project.append("orders", ({"id": id_, "customer": f"c{id_ % 3}"} for id_ in ids))
    count = str((step + 1) * ROWS)
    eventually(
        f"{count} rows", lambda: project.run("snapshot", "source.orders", "--count").stdout.strip() == count
    )


def totals(project: Project) -> dict[str, int]:
    done = project.run("snapshot", "view.totals", "--format", "json")
    rows = map(json.loads, done.stdout.splitlines()) if done.returncode == 0 else ()
    return {row["customer"]: row["n"] for row in rows}


def give_up(project: Project, step: int) -> None:
    """Expire the steps below `step`, and remove all that only they need, as a runner does in time."""
    id_ = json.loads(project.state_bytes())["resources"]["source.orders"]["id"]
    assert project.run("expire", "source.orders", "--before", str(step)).returncode == 0
    project.run("down")
    collection = collection_path(str(project.folder / "warehouse"), id_, 1)
    table = DeltaTable(collection)
    assert table.optimize.compact()["numFilesRemoved"] >= STEPS
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    table.create_checkpoint()
    project.json("up")


@pytest.mark.nightly
def test_the_rows_of_expired_steps_are_computed_again(tmp_path: Path) -> None:
    project = Project(tmp_path / "p", "replaced")
    declare(project, "count(*)")
    try:
        project.apply()
        for step in range(STEPS):
            append(project, step)
        counted = {"c0": 20, "c1": 20, "c2": 20}
        eventually("all are counted", lambda: totals(project) == counted)
        eventually("nothing waits", lambda: project.queries()["view.totals"]["lag"] == 0)
        give_up(project, 4)
        assert project.run("snapshot", "source.orders", "--as-of", "3").returncode != 0

        declare(project, "CAST(sum(id) AS BIGINT)")
        extent = {"address": "source.orders", "rows": 60, "since": 4}

        def planned() -> bool:
            (change,) = project.json("plan")["changes"]
            (found,) = change.get("inputs") or [{}]
            return change["action"] == "replace" and extent.items() <= found.items()

        eventually("the runner has seen what has expired", planned)
        told = project.run("plan").stdout
        assert "reads all of source.orders: 60 rows in steps 0 to " in told and "; steps before 4 (" in told
        project.apply("--allow-replace")
        append(project, STEPS)
        ids = range((STEPS + 1) * ROWS)
        summed = {f"c{i}": sum(id_ for id_ in ids if id_ % 3 == i) for i in range(3)}
        eventually("each row is in the new sums once", lambda: totals(project) == summed)
    finally:
        project.down()
