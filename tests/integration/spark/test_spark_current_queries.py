"""Random queries as current views, without a stream: their steps are interrupted, and run again after the
inputs have changed. Then the views have the rows of their queries in batch."""

from __future__ import annotations

import random
from contextlib import nullcontext, suppress
from typing import Any

import pytest

from mzplan.connectors.api.queries import resolve
from mzplan.connectors.frames.merges import writing_as
from mzplan.host.failpoints import Failpoint
from mzplan.schema.current.trace import trace
from mzplan.schema.description import Description
from mzplan.schema.source_columns import columns_of
from mzplan.spark.collections import Collections
from mzplan.spark.current import run
from mzplan.spark.expectations import StepExpectations
from mzplan.spark.views import batch_session
from tests.current_queries import Table, analysed, empty_tables, keyed_query, random_row
from tests.integration.spark.current_lab import CurrentLab
from tests.integration.spark_lab import Lab

VIEWS = 6
POSITION = "STRUCT<input: STRING>"


class Killed(BaseException):
    """Ends a step as `kill -9` does: nothing handles it."""


class Steps:
    """Runs the steps of a view one by one, as Spark would."""

    def __init__(self, shop: CurrentLab, view: Description):
        lab = shop.lab
        query = resolve(view, lab.secrets, str(lab.folder), lab.context.warehouse)
        collection, checkpoint = str(lab._collection(view)), shop.checkpoint(view)
        Collections().ensure(lab.spark, collection, columns_of(view.type, view.body), POSITION, keyed=True)
        self.view, self._log = view, checkpoint.log
        self._run = run.CurrentRun(
            session=batch_session(lab.spark),
            query=query,
            position=POSITION,
            checkpoint=checkpoint,
            collection=collection,
            paths={name: str(lab._collection(shop.inputs[name])) for name in view.reads},
            fail=self._fail,
            refreshed=lambda how: None,
            rewriting=nullcontext(),
            expectations=StepExpectations(query, checkpoint, collection, lambda found: None),
        )

    def begin(self, monkeypatch: pytest.MonkeyPatch, point: Failpoint) -> None:
        """Plan a step, and begin it; it ends at a failpoint if it gets there."""

        def strike(passed: Failpoint) -> None:
            if passed == point:
                raise Killed

        self._log.plan("0")
        with monkeypatch.context() as patched, suppress(RuntimeError):
            patched.setattr(run, "failpoint", strike)
            self._attempt()

    def finish(self) -> None:
        """Run the unfinished step, or another one."""
        if self._log.unfinished() is None:
            self._log.plan("0")
        self._attempt()
        self._log.finish(self._log.newest())

    def _attempt(self) -> None:
        with writing_as(self._run.session, self._log.query_id() or ""):
            self._run._step(None, self._log.newest())  # type: ignore[arg-type]

    def _fail(self, problem: BaseException) -> None:
        if not isinstance(problem, Killed):
            raise problem


def change(shop: CurrentLab, chance: random.Random) -> None:
    """Change a few rows of two tables; `c` only grows."""
    key, other = (f"pk % 5 = {chance.randrange(5)}" for _ in range(2))
    kept = chance.choice(("id", "n", "s"))
    value = {"id": "id + 1", "n": "NULL", "s": f"'{chance.choice('wxyz')}'"}[kept]
    statements = [
        f"UPDATE {{{chance.choice('ab')}}} SET {kept} = {value} WHERE {key}",
        f"DELETE FROM {{{chance.choice('ab')}}} WHERE {other}",
    ]
    for statement in chance.sample(statements, chance.choice((1, 2))):
        shop.sql(statement)


def fill(shop: CurrentLab, chance: random.Random, table: Table, first: int, count: int) -> None:
    rows = []
    for number in range(first, first + count):
        values = (number, *random_row(chance, table))
        rows.append(", ".join("NULL" if v is None else repr(v) for v in values))
    shop.insert(table.name, *rows)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_steps_that_are_interrupted(lab: Lab, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance, shop = random.Random(seed), CurrentLab(lab)
    lab.spark.catalog.clearCache()
    tables = empty_tables(chance)
    for table in tables:
        shop.table(table.name, f"pk BIGINT, {table.ddl}", "pk")
        fill(shop, chance, table, 0, chance.randint(6, 14))
    views = [Steps(shop, _view(shop, chance, tables)) for _ in range(VIEWS)]
    for view in views:
        view.finish()
        _agrees(shop, view)
    change(shop, chance)
    fill(shop, chance, chance.choice(tables), 20, 2)
    for view in views:
        point = chance.choice([Failpoint.VIEW_RECORDED, Failpoint.VIEW_COMPUTED, Failpoint.VIEW_WRITTEN])
        view.begin(monkeypatch, point)
    change(shop, chance)
    for view in views:
        view.finish()
        view.finish()
        _agrees(shop, view)
    java: Any = lab.spark._jsparkSession
    assert java.sharedState().cacheManager().isEmpty(), "steps release what they have cached"


def _view(shop: CurrentLab, chance: random.Random, tables: list[Table]) -> Description:
    sql, key = keyed_query(chance, tables)
    analysis = analysed(sql, key, tables)
    schema = ", ".join(f"{item.field.name} {item.field.type}" for item in analysis.root.items)
    refresh = "auto" if trace(analysis).why_full else "incremental"
    return shop.view(sql, schema, " ".join(key), " ".join(analysis.inputs), refresh=refresh)


def _agrees(shop: CurrentLab, steps: Steps) -> None:
    found, wanted = shop.rows(steps.view), shop.batch(steps.view)
    assert found == wanted, (steps.view.body, shop.steps(steps.view)[-1])
