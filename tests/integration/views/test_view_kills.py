"""A view whose runner is killed under load, and whose query is changed in between: each row once, by one of
the queries that were committed while it could be computed."""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.faults.doomed import Doomed
from tests.support import Project, eventually

SECONDS = 240.0
KILLS = 4


class Computed(Doomed):
    """Rows that are appended, through two views, into a Delta table to which rows are only added."""

    def __init__(self, folder: Path):
        super().__init__(Project(folder, "computed"))
        self.lake = folder / "lake"
        self.appended = 0

    def declare(self, version: int) -> None:
        every = "trigger: {interval: 200ms}"
        self.project.write(
            "computed",
            f"connections:\n  disk: {{type: files, path: {self.lake}}}\n"
            f"sources:\n  numbers: {{type: local, schema: 'n BIGINT', {every}}}\n"
            f"views:\n  even: {{query: 'SELECT n, CAST({version} AS INT) AS version FROM numbers "
            f"WHERE n % 2 = 0', {every}}}\n"
            f"  squares: {{query: 'SELECT n, CAST(n * n AS BIGINT) AS square, version FROM even', {every}}}\n"
            f"sinks:\n  out: {{type: delta, from: squares, connection: disk, path: out, {every}}}\n",
        )

    def append(self, count: int) -> None:
        path = self.project.folder / "rows.jsonl"
        last = self.appended + count
        path.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(self.appended, last)))
        self.project.json("append", "source.numbers", "--file", str(path))
        self.appended = last

    def rows(self) -> list[tuple[int, int, int]]:
        if not DeltaTable.is_deltatable(str(self.lake / "out")):
            return []
        table = DeltaTable(str(self.lake / "out")).to_pyarrow_table()
        return list(zip(*(table[name].to_pylist() for name in ("n", "square", "version")), strict=True))

    def begins(self, before: int) -> None:
        """Wait until there are more rows than before."""
        eventually("it computes", lambda: len(self.rows()) > before, SECONDS)

    def arrives(self) -> list[tuple[int, int, int]]:
        """Wait until each row is there; none may be there twice."""

        def all_there() -> bool:
            numbers = Counter(n for n, _, _ in self.rows())
            assert numbers.total() == len(numbers), f"twice: {numbers.most_common(3)}"
            return len(numbers) * 2 == self.appended

        eventually(f"{self.appended // 2} rows", all_there, SECONDS)
        return sorted(self.rows())


@pytest.fixture
def computed(tmp_path: Path) -> Iterator[Computed]:
    computed = Computed(tmp_path / "p")
    yield computed
    computed.close()


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_killed_while_views_compute(computed: Computed) -> None:
    chance = random.Random(7)
    computed.declare(0)
    computed.project.apply()
    computed.append(1000)
    computed.arrives()
    computed.project.down()
    for kill in range(KILLS):
        doomed = computed.runner()
        computed.append(2000)
        computed.begins(len(computed.rows()))
        computed.append(2000)
        assert doomed.poll() is None, (computed.project.folder / "runner.log").read_text()[-4000:]
        time.sleep(chance.uniform(0.0, 1.5))
        doomed.kill()
        assert doomed.wait(SECONDS) == -signal.SIGKILL
        # The query is another one before the next start: what was under way is finished as it began.
        computed.declare(kill + 1)
        computed.project.apply()
        computed.append(10)
        computed.arrives()
        computed.project.down()
    rows = computed.arrives()
    assert [row[:2] for row in rows] == [(n, n * n) for n in range(0, computed.appended, 2)]
    versions = [version for _, _, version in rows]
    assert versions == sorted(versions) and set(versions) == set(range(KILLS + 1))
    computed.project.apply()
    for view in ("view.even", "view.squares"):
        verified = computed.project.json("verify", view)
        assert verified["difference"] is None and verified["verified"] > 0
