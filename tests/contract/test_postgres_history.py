"""The versions of a history in PostgreSQL (`mode: history`), without Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from mzplan.connectors.frames.merges import EXISTS, TIME, VERSION
from mzplan.connectors.postgres.sink.history import HistoryMove
from mzplan.connectors.postgres.tables import find_table
from tests.contract.postgres_sinks import SinkDatabase

STAGE = (
    "CREATE TABLE stage (_attempt bigint, c0 bigint, c1 text, c2 timestamptz, p0 bigint, p1 integer, "
    "p2 timestamptz)"
)
TABLE = (
    "CREATE TABLE t (id bigint, state char(4), at timestamptz, valid_from timestamptz, valid_to timestamptz, "
    "is_current boolean, PRIMARY KEY (id, valid_from)); CREATE UNIQUE INDEX ON t (id) WHERE is_current"
)
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Change:
    """A change of a key in a version of the collection. `state` is None if the row is deleted."""

    version: int
    id: int
    state: str | None
    at: datetime | None

    @property
    def committed(self) -> datetime:
        return NOON + timedelta(minutes=self.version)


@dataclass
class Model:
    """The versions that a history should have, by a loop over all changes in order."""

    has_times: bool
    versions: dict[int, list[list[Any]]] = field(default_factory=dict)

    def apply(self, change: Change) -> None:
        versions = self.versions.setdefault(change.id, [])
        last = versions[-1] if versions else None
        is_open = last is not None and last[3] is None
        # Without a time of its own, the column isn't part of the row.
        row = [change.state, change.at]
        if is_open and last is not None and last[:2] == row:
            return
        begin = change.at if self.has_times and change.state is not None and change.at else change.committed
        if last is not None:
            begin = max(begin, (last[3] or last[2]) + MICROSECOND)
        if is_open and last is not None:
            last[3] = begin
        if change.state is not None:
            versions.append([*row, begin, None])

    def rows(self) -> list[tuple[Any, ...]]:
        return [
            (id_, state, at, begin, end, end is None)
            for id_, versions in sorted(self.versions.items())
            for state, at, begin, end in versions
        ]


@pytest.fixture
def shop(sinks: Callable[..., SinkDatabase]) -> SinkDatabase:
    shop = sinks("id BIGINT, state STRING, at TIMESTAMP", "public.t")
    shop.run(f"{STAGE}; {TABLE}")
    return shop


def record(shop: SinkDatabase, changes: Sequence[Change], *, times: bool, replaces: bool = False) -> None:
    """Stage the changes as a feed has them, with the rows before an update, and record them as a step."""
    for change in changes:
        there = change.state is not None
        row = (change.id, change.state or "gone", change.at, change.version, int(there), change.committed)
        shop.admin.execute("INSERT INTO stage VALUES (1, %s, %s, %s, %s, %s, %s)", row)
        if there:
            before = (change.id, "old", None, change.version, 0, change.committed)
            shop.admin.execute("INSERT INTO stage VALUES (1, %s, %s, %s, %s, %s, %s)", before)
    shop.run("INSERT INTO stage VALUES (2, 1, 'of a dead attempt', NULL, 99, 1, now())")
    table = find_table(shop.admin, "public.t")
    assert table is not None
    move = HistoryMove(
        stage="stage",
        table=table,
        targets=table.columns[:3],
        keys=table.columns[:1],
        position=((VERSION, "bigint"), (EXISTS, "integer"), (TIME, "timestamp with time zone")),
        exists_field=EXISTS,
        since=table.column("at") if times else None,
        replaces=replaces,
    )
    staged = sum(2 if change.state is not None else 1 for change in changes)
    with shop.admin.transaction():
        assert move.move(shop.admin, {1: staged})


def versions(shop: SinkDatabase) -> list[Any]:
    return shop.rows(
        "SELECT id, trim(state), at, valid_from, valid_to, is_current FROM t ORDER BY id, valid_from"
    )


@pytest.mark.parametrize("times", [False, True], ids=["commit", "column"])
@pytest.mark.parametrize("seed", range(4))
def test_any_changes_in_any_batches(shop: SinkDatabase, seed: int, times: bool) -> None:
    random, model, version = Random(seed), Model(times), 0
    for _ in range(12):
        batch: list[Change] = []
        for _ in range(random.randint(0, 6)):
            version += 1
            for id_ in random.sample(range(4), random.randint(1, 4)):
                at = NOON + timedelta(minutes=random.randint(-30, 60)) if random.random() < 0.7 else None
                batch.append(Change(version, id_, random.choice([None, "a", "b", "c"]), at))
        for change in batch:
            model.apply(change)
        record(shop, random.sample(batch, len(batch)), times=times)
        assert versions(shop) == model.rows()


def test_a_replace_records_the_difference(shop: SinkDatabase) -> None:
    first = [Change(1, id_, "a", None) for id_ in (1, 2, 3)]
    record(shop, first, times=False)
    begun, now = first[0].committed, NOON + timedelta(minutes=5)
    record(shop, [Change(5, 1, "a", None), Change(5, 2, "b", None)], times=False, replaces=True)
    after = [
        (1, "a", None, begun, None, True),
        (2, "a", None, begun, now, False),
        (2, "b", None, now, None, True),
        (3, "a", None, begun, now, False),
    ]
    assert versions(shop) == after
    record(shop, [Change(6, 1, "a", None), Change(6, 2, "b", None)], times=False, replaces=True)
    assert versions(shop) == after
    record(shop, [], times=False, replaces=True)
    assert [row[5] for row in versions(shop)] == [False] * 4
