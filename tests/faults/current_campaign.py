"""Random queries as current views of a runner, over tables that change at random.

A seed decides the tables, the queries and all changes.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mzplan.model.address import Address
from mzplan.model.state import ResourceState, State
from mzplan.schema.current.trace import trace
from mzplan.store.backends.local import LocalBackend
from mzplan.store.store import Store
from mzplan.warehouse.checkpoints import Checkpoint, collection_path
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.current_steps import CurrentSteps
from mzplan.warehouse.rows.snapshot import name_of
from tests.current_queries import Row, Table, analysed, empty_tables, keyed_query, random_row, random_value
from tests.faults.doomed import SECONDS, Doomed
from tests.integration.spark_lab import read_delta
from tests.support import Project, eventually

KEYED = ("a", "b")  # by `pk`, which no query reads. Rows of `c` never change.
EVERY = {"interval": "500ms"}


def state_of(folder: Path) -> State:
    return Store(LocalBackend(folder / "state"), "current").read_state()


class Campaign(Doomed):
    """A project of three sources, a view over them, and views over all four.

    `queries`: the queries that each view has had, by name.
    """

    def __init__(self, folder: Path, seed: int, count: int):
        super().__init__(Project(folder, "current"))
        self.chance = chance = random.Random(seed)
        self.tables = {table.name: table for table in empty_tables(chance)}
        self.rows: dict[str, dict[int, Row]] = {name: {} for name in self.tables}
        read = [*self.tables.values(), self._joined()]
        self.views: dict[str, dict[str, Any]] = {"d": self._view_d()}
        for number in range(count):
            sql, key = keyed_query(chance, read)
            is_untraced = bool(trace(analysed(sql, key, read)).why_full)
            # With so few rows, `auto` mostly computes all of them.
            refresh = "auto" if is_untraced or chance.random() < 0.2 else "incremental"
            self.views[f"v{number}"] = {"query": sql, "key": [*key], "refresh": refresh}
        self.queries = {name: [view["query"]] for name, view in self.views.items()}

    def _joined(self) -> Table:
        return Table("d", {"id": "BIGINT", "n": self.tables["b"].columns["n"], "s": "STRING"})

    def _view_d(self) -> dict[str, Any]:
        query = (
            "SELECT l.pk, l.id, r.n, upper(l.s) AS s FROM a AS l "
            "LEFT JOIN (SELECT id, max(n) AS n FROM b GROUP BY id) AS r ON r.id = l.n"
        )
        return {"query": query, "key": ["pk"], "refresh": "incremental"}

    def edit(self) -> None:
        """Let half of the views leave out rows whose key is NULL."""
        for name, view in [*self.views.items()][1::2]:
            if not view["query"].startswith("WITH"):
                view["query"] = f"SELECT * FROM ({view['query']}) q WHERE {view['key'][0]} IS NOT NULL"
                self.queries[name].append(view["query"])
        self.declare()

    def declare(self) -> None:
        """Write the files of the project."""
        sources = {
            name: {
                "type": "local",
                "schema": f"pk BIGINT, {table.ddl}" if name in KEYED else table.ddl,
                **({"key": ["pk"]} if name in KEYED else {}),
                "trigger": EVERY,
            }
            for name, table in self.tables.items()
        }
        views = {name: {**view, "output": "current", "trigger": EVERY} for name, view in self.views.items()}
        self.project.write("views", json.dumps({"sources": sources, "views": views}))

    def kill(self, runner: subprocess.Popen[bytes]) -> None:
        runner.kill()
        self.is_killed(runner)

    def fill(self) -> None:
        """Append the first rows of each table."""
        for name, table in self.tables.items():
            count = self.chance.randint(6, 14)
            self.rows[name] = {key: random_row(self.chance, table) for key in range(count)}
            self.project.append(name, [dict(self._fields(name, key)) for key in range(count)])

    def change(self) -> None:
        """Insert, update and delete a few rows of some tables."""
        for name in self.chance.sample(list(self.tables), self.chance.choice((1, 2, 3))):
            touched = {self._change(name) for _ in range(self.chance.randint(1, 4))}
            rows = [dict(self._fields(name, key)) for key in sorted(touched & self.rows[name].keys())]
            if rows:
                self.project.append(name, rows)
            if gone := sorted(touched - self.rows[name].keys()):
                self.project.append(name, [{"pk": key} for key in gone], "--delete")

    def _change(self, name: str) -> int:
        """Change a row, and return its key."""
        chance, table, rows = self.chance, self.tables[name], self.rows[name]
        action = chance.choice(("insert", "update", "update", "delete")) if name in KEYED else "insert"
        if action == "insert" or not rows:
            # Maybe a key that was deleted.
            key = chance.randrange(40) if name in KEYED else len(rows)
            rows[key] = random_row(chance, table)
            return key
        key = chance.choice(sorted(rows))
        row = rows.pop(key)
        if action == "update":
            place = chance.randrange(len(row))
            value = random_value(chance, list(table.columns.values())[place])
            rows[key] = (*row[:place], value, *row[place + 1 :])
        return key

    def _fields(self, name: str, key: int) -> Iterator[tuple[str, object]]:
        if name in KEYED:
            yield "pk", key
        yield from zip(self.tables[name].columns, self.rows[name][key], strict=True)

    # ── what the runner has done

    def settles(self) -> None:
        """Wait until the sources have all rows, and the views have read them."""
        state, behind = state_of(self.project.folder), [""]

        def is_done() -> bool:
            behind[0] = self._behind(state)
            return not behind[0]

        try:
            eventually("all views have followed", is_done, SECONDS)
        except AssertionError as problem:
            status = self.project.queries().get(behind[0])
            raise AssertionError(f"{problem}: {behind[0]}: {status}\n{self.log()}") from None

    def _behind(self, state: State) -> str:
        """Return the address of a query that has rows to read; "" if there is none."""
        for name in self.tables:
            address = Address("source", name)
            found = read_delta(Path(self._collection(state.resources[address])))
            wanted = Counter(tuple(self._fields(name, key)) for key in self.rows[name])
            if Counter(tuple((k, v) for k, v in row.items() if k != "_position") for row in found) != wanted:
                return str(address)
        newest = {name_of(one.place): self._newest(one) for one in state.resources.values()}
        for name in self.views:
            address = Address("view", name)
            checkpoint = Checkpoint.of(str(self._warehouse), *state.resources[address].place)
            last = CurrentSteps(checkpoint.folder).before(checkpoint.log.newest() + 1)
            if (
                last is None
                or checkpoint.log.unfinished() is not None
                or any(version < newest[place] for place, version in last.versions.items())
            ):
                return str(address)
        return ""

    @property
    def _warehouse(self) -> Path:
        return self.project.folder / "warehouse"

    def _collection(self, resource: ResourceState) -> str:
        return collection_path(str(self._warehouse), *resource.place)

    def _newest(self, resource: ResourceState) -> int:
        """Return the newest version of a collection with other rows than the version before it."""
        log = CollectionLog(self._collection(resource))
        commits = map(log.commit, reversed(log.versions()))
        return next((c.version for c in commits if c is not None and c.step is not None and c.has_changes), 0)
