"""The first step of a sink below a replaced view: only the difference, compared with `on_replace: truncate`.

1 % of the rows of the view's new generation differ: half of them have another value, a quarter has a new key,
and a quarter of the keys is gone. The sinks have `mode: upsert`, and have written the former generation. The
rows and bytes come from their targets: PostgreSQL's statistics and log, and the commits of the Delta table.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.engine import Engine, describe_sink
from benchmarks.figures import Rounds, Table, alternate, ratio
from benchmarks.stage import Stage, wait_until
from examples.servers import PostgresServer
from mzplan.model.address import Address
from mzplan.schema.description import Description
from mzplan.schema.source_columns import columns_of
from mzplan.spark.collections import Collections
from mzplan.warehouse.collection_log import CollectionLog

DATABASE = "generations"
FILES = 4
SCHEMA = "id BIGINT, customer STRING, amount DOUBLE, note STRING"
TABLE = "id bigint PRIMARY KEY, customer text, amount double precision, note text"
COLUMNS = (
    "id",
    "concat('customer ', id % 5000) AS customer",
    "(id % 100000) / 100D + IF(id % 200 = 7, {changed}, 0) AS amount",
    "'left at the door, as always' AS note",
    "CAST(NULL AS STRUCT<at: BIGINT>) AS _position",
)
WAYS: Mapping[str, Mapping[str, str]] = {"difference": {}, "truncate": {"on_replace": "truncate"}}
Written = Callable[[], tuple[int, int]]
"""Returns the rows and bytes that a target has got so far, which grow with each write."""


@dataclass(frozen=True, slots=True)
class Size:
    """The number of the view's rows."""

    rows: int
    rounds: Rounds


FULL = Size(rows=1_000_000, rounds=Rounds(1, 3))
SMALL = Size(rows=1_000, rounds=Rounds(0, 1))


def measure(stage: Stage) -> Table:
    size = SMALL if stage.small else FULL
    view = _View(stage.engine, size.rows)
    targets: dict[str, Callable[..., _Follower]] = {
        "PostgreSQL": _postgres(stage),
        "Delta": partial(_delta, stage),
    }
    followers = {
        f"{target}, {name}": make(view, **body)
        for target, make in targets.items()
        for name, body in WAYS.items()
    }
    taken = alternate({name: follower.step for name, follower in followers.items()}, size.rounds)
    return Table(
        ("sink", "seconds", "rows written", "MB written", "× faster", "× fewer rows"),
        [_row(name, taken, followers) for name in followers],
    )


def _row(name: str, taken: Mapping[str, list[float]], followers: Mapping[str, _Follower]) -> tuple[str, ...]:
    other = f"{name.partition(',')[0]}, truncate"
    rows, size = followers[name].written
    return (
        name,
        f"{statistics.median(taken[name]):.1f}",
        f"{rows:,}",
        f"{size / 1e6:.1f}",
        f"{ratio(taken[other], taken[name]):.2f}",
        f"{followers[other].written[0] / rows:.0f}",
    )


class _View:
    """A keyed view whose odd generations have other rows than the even ones."""

    def __init__(self, engine: Engine, rows: int):
        self.engine, self.rows = engine, rows
        self._made = 0

    def generation(self, number: int) -> Description:
        """Return a generation of the view. Writes its collection, as its query would write it."""
        view = Description(
            address=Address("view", "v"),
            id="v-generations",
            generation=number,
            digest=f"1:{number}",
            type="sql",
            body={"query": "SELECT * FROM s", "schema": SCHEMA, "output": "update", "key": ["id"]},
        )
        if number > self._made:
            self._fill(view, number % 2)
            self._made = number
        return view

    def _fill(self, view: Description, changed: int) -> None:
        path, spark = self.engine.collection(view), self.engine.spark
        position = "STRUCT<at: BIGINT>"
        Collections().ensure(spark, path, columns_of(view.type, view.body), position, keyed=True)
        begin = changed * self.rows // 400
        rows = spark.range(begin, begin + self.rows, 1, FILES)
        selected = rows.selectExpr(*(column.format(changed=changed) for column in COLUMNS))
        selected.write.format("delta").mode("append").save(path)


class _Follower:
    """A sink that follows each generation of the view. `written`: with its last step."""

    def __init__(self, view: _View, sink: Callable[[Description], Description], count: Written):
        self.written = (0, 0)
        self._view, self._count = view, count
        self._sink = sink(view.generation(1))
        view.engine.ours(self._sink)

    def step(self) -> float:
        """Follow the next generation of the view. Return the seconds, with the sink's start."""
        number = self._sink.generation + 1
        self._view.generation(number)
        reads = {name: replace(read, generation=number) for name, read in self._sink.reads.items()}
        self._sink = replace(self._sink, generation=number, digest=f"1:{number}", reads=reads)
        rows, size = self._count()
        seconds = self._view.engine.ours(self._sink)
        after = self._count()
        self.written = after[0] - rows, after[1] - size
        return seconds


def _postgres(stage: Stage) -> Callable[..., _Follower]:
    server = stage.postgres
    server.create_database(DATABASE)

    def follow(view: _View, **body: Any) -> _Follower:
        table = f"t_{body.get('on_replace', 'difference')}"
        with psycopg.connect(server.dsn(DATABASE), autocommit=True) as connection:
            connection.execute(f"CREATE TABLE public.{table} ({TABLE})".encode())
        to = {
            "type": "postgres",
            "host": "127.0.0.1",
            "port": server.port,
            "database": DATABASE,
            "user": server.user,
            "password": server.password,
        }
        given = {"table": f"public.{table}", "mode": "upsert", "key": ["id"], **body}
        return _Follower(
            view,
            lambda first: describe_sink(first, "postgres", to, **given),
            partial(_in_postgres, server, table),
        )

    return follow


def _in_postgres(server: PostgresServer, table: str) -> tuple[int, int]:
    """Return the rows that a table has got, and the bytes in the server's log."""
    query = (
        "SELECT n_tup_ins + n_tup_upd + n_tup_del, pg_current_wal_lsn() - '0/0' "
        f"FROM pg_stat_user_tables WHERE relname = '{table}'"
    )
    seen: list[tuple[int, int]] = []

    def is_steady() -> bool:
        """Servers count the rows of a session a moment after its end."""
        with psycopg.connect(server.dsn(DATABASE)) as connection:
            found = connection.execute(query.encode()).fetchone()
        assert found is not None
        seen.append((int(found[0]), int(found[1])))
        return len(seen) > 2 and seen[-1][0] == seen[-3][0]

    wait_until(f"the statistics of {table} are steady", is_steady, look=0.7)
    return seen[-1]


def _delta(stage: Stage, view: _View, **body: Any) -> _Follower:
    folder = stage.folder / "generations"
    path = body.get("on_replace", "difference")
    given = {"path": path, "mode": "upsert", "key": ["id"], **body}
    to = {"type": "files", "path": str(folder)}
    return _Follower(
        view, lambda first: describe_sink(first, "delta", to, **given), partial(_in_delta, folder / path)
    )


def _in_delta(table: Path) -> tuple[int, int]:
    """Return the rows that a Delta table's commits have changed, and the bytes that they have written."""
    rows = size = 0
    for version in CollectionLog(str(table)).versions():
        text = (table / "_delta_log" / f"{version:020}.json").read_text()
        for action in map(json.loads, text.splitlines()):
            metrics = action.get("commitInfo", {}).get("operationMetrics", {})
            changed = [f"numTargetRows{change}" for change in ("Inserted", "Updated", "Deleted")]
            rows += sum(int(metrics.get(name, 0)) for name in changed)
            file = action.get("add") or action.get("cdc")
            size += file["size"] if file is not None else 0
    return rows, size
