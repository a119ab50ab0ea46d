"""The runner is killed around the steps of views that keep dead letters: each row is kept or written once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from mzplan.host.failpoints import Failpoint
from tests.faults.doomed import ASKED, SECONDS, Doomed, verify
from tests.support import Project, eventually

EVERY = {"interval": "300ms"}
# A view of rows, a view that appends, and a view that merges groups.
VIEWS: dict[str, dict[str, Any]] = {
    "plain": {"query": "SELECT id, n FROM orders"},
    "twice": {"query": "SELECT id, n FROM orders UNION ALL SELECT id + 1000, n FROM orders"},
    "groups": {
        "query": "SELECT id, sum(n) AS n FROM orders GROUP BY id",
        "output": "update",
        "key": ["id"],
        "schema": "id BIGINT, n BIGINT",
    },
}


class LetterShop(Doomed):
    """Orders, of which each third violates an expectation of each view."""

    def __init__(self, project: Project):
        super().__init__(project)
        self.sent = 0
        keeping = {
            "expect": {"fits": {"check": "n > 0", "on_violation": "dead-letter"}},
            "dead_letter": {"path": "dead"},
            "trigger": EVERY,
        }
        shop: dict[str, Any] = {
            "sources": {"orders": {"type": "local", "schema": "id BIGINT, n BIGINT", "trigger": EVERY}},
            "views": {name: {**view, **keeping} for name, view in VIEWS.items()},
        }
        self.project.write("shop", json.dumps(shop))

    def send(self) -> None:
        """Append nine orders in one step."""
        ids = range(self.sent, self.sent + 9)
        self.project.append("orders", [{"id": id_, "n": 0 if id_ % 3 == 0 else 1} for id_ in ids])
        self.sent += 9

    def wanted(self, view: str, *, kept: bool) -> Counter[int]:
        ids = [id_ for id_ in range(self.sent) if (id_ % 3 == 0) == kept]
        return Counter([*ids, *(id_ + 1000 for id_ in ids)] if view == "twice" else ids)

    def letters(self, view: str) -> Counter[int]:
        table = str(self.project.folder / "dead")
        rows = DeltaTable(table).to_pyarrow_table().to_pylist() if DeltaTable.is_deltatable(table) else []
        return Counter(json.loads(row["row"])["id"] for row in rows if row["source"] == f"view.{view}")

    def rows(self, view: str) -> Counter[int]:
        done = self.project.run("snapshot", f"view.{view}", "--format", "json")
        lines = done.stdout.splitlines() if done.returncode == 0 else []
        return Counter(json.loads(line)["id"] for line in lines)

    def agrees(self) -> None:
        """Wait until each order is a row or a dead letter of each view, once."""
        for view in VIEWS:
            for name, found, wanted in (
                ("letters", self.letters, self.wanted(view, kept=True)),
                ("rows", self.rows, self.wanted(view, kept=False)),
            ):

                def is_right(found: Any = found, wanted: Any = wanted, view: str = view) -> bool:
                    now = found(view)
                    assert now <= wanted, f"too often in {view}: {now - wanted}"
                    return bool(now == wanted)

                eventually(f"{view} has its {name}", is_right, SECONDS)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_killed_between_letters_and_rows(tmp_path: Path) -> None:
    shop = LetterShop(Project(tmp_path / "p", "letters"))
    try:
        runner = shop.runner()
        assert shop.project.run("apply", *ASKED).returncode == 8
        eventually("it runs", shop.is_running, SECONDS)
        shop.send()
        shop.agrees()
        for point in (Failpoint.LETTERS_STORED, Failpoint.SOURCE_BEFORE_MERGE, Failpoint.SOURCE_MERGED):
            shop.stop(runner)
            dying = shop.runner(point)
            shop.send()
            shop.is_killed(dying)
            # The step that runs again is killed, too.
            shop.is_killed(shop.runner(point))
            runner = shop.runner()
            shop.agrees()
        shop.stop(runner)
        verify(shop.project, *(f"view.{view}" for view in VIEWS))
        counted = {q["address"]: q.get("violations") for q in shop.project.queries().values()}
        thirds = shop.sent // 3
        assert [counted[f"view.{view}"]["fits"]["rows"] for view in VIEWS] == [thirds, 2 * thirds, thirds]
    finally:
        shop.close()
