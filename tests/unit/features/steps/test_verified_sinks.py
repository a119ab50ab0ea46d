"""Verified steps of a changed sink: a step may have been written under the old or the new description.
`mzplan verify --from-upstream` for a view that aggregates: its output and its exit codes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from mzplan.endpoints.interface import Written
from mzplan.features.steps.steps_text import render_verified, verified_to_json
from mzplan.features.steps.verification import VerificationResult, verify
from mzplan.model.address import Address
from mzplan.model.tasks import ERASURE, TaskOutcome
from mzplan.operations.project import open_project
from mzplan.schema.columns import parse_columns
from mzplan.spark.verification.recomputed_view import RecomputationResult, RecomputedView
from mzplan.spark.verification.sink_content import Downstream
from mzplan.warehouse.checkpoints import Checkpoint, TaskRecord
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.erased_steps import ERASED_AT
from mzplan.warehouse.rows.content_hash import ContentHash
from mzplan.warehouse.step_record import StepRecord
from tests.stored_steps import StoredShop, StoredSink, StoredSource, named
from tests.tasks import task
from tests.unit.cli_runs import Ran, apply, state
from tests.unit.reporters import SilentReporter


@dataclass
class Changed:
    """The target of a sink with three steps that was changed at step 1."""

    wrote: ContentHash
    before = ContentHash(rows=3, digest=35)
    after = ContentHash(rows=5, digest=12345)

    def recorded(self, step: int) -> Written | None:
        found = {0: self.before, 1: self.wrote, 2: self.after}[step]
        return Written(rows=found.rows, digest=str(found))

    def content_hash(self, record: StepRecord) -> ContentHash:
        return self.after if record.step == 2 else self.before

    def changed_hash(self, record: StepRecord) -> ContentHash | None:
        return self.after if record.step == 1 else None

    def foreign_changes(self, first: int, *, shared: bool) -> None:
        return None


@pytest.fixture
def shop(tmp_path: Path) -> StoredShop:
    """A sink with three steps."""
    shop = StoredShop(tmp_path)
    shop.steps(3)
    sink = shop.sink("out")
    for version in (2, 3, 4):
        sink.run(version)
    return shop


def verified(shop: StoredShop, target: Changed) -> VerificationResult:
    project, no_spark = open_project(str(shop.folder)), Mock(side_effect=AssertionError)
    address, reporter = Address("sink", "out"), SilentReporter()
    return verify(project, address, None, None, lambda *_: target, no_spark, reporter)


@pytest.mark.parametrize("wrote", [Changed.before, Changed.after])
def test_a_step_under_the_old_or_the_new_description_is_as_recorded(
    shop: StoredShop, wrote: ContentHash
) -> None:
    found = verified(shop, Changed(wrote))
    assert (found.equal_steps, found.difference) == ((0, 1, 2), None)
    assert "Not checked: rows that others have added, changed or deleted" in render_verified(found)
    assert "`mzplan verify sink.out --content` compares them" in render_verified(found)


def test_a_sink_that_computes_nothing_needs_no_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = StoredSource(tmp_path)
    source.run(named(0, 3))
    sink = StoredSink(source)
    sink.run(2)
    (record,) = sink.history.read().records
    monkeypatch.setattr(Downstream, "_session", lambda _: pytest.fail("Spark was started"))
    query: Any = SimpleNamespace(columns=parse_columns("id BIGINT, name STRING"), keys=(), checkpoint=None)
    for keys in ((), ("id",)):
        target: Any = SimpleNamespace(keys=keys, partitions=())
        found = Downstream(query, target, sink.history, "", lambda _: query, pytest.fail)
        for body in ({}, {"select": ["name AS who", "ID"]}, {"select": ["*"]}):
            query.body = body
            assert found.content_hash(record).rows == 3
            query.body = {**body, "where": "id > 1"}
            with pytest.raises(pytest.fail.Exception, match="Spark was started"):
                found.content_hash(record)


def test_a_step_under_neither_description_is_a_difference_with_its_cause(shop: StoredShop) -> None:
    found = verified(shop, Changed(ContentHash(rows=2, digest=13)))
    assert found.equal_steps == (0,) and found.difference is not None
    assert (found.difference.step, found.difference.code) == (1, "MZ088")
    assert "[MZ088] The sink was changed at this step" in render_verified(found)
    assert "`mzplan verify sink.out --content` compares them" in render_verified(found)
    assert verified_to_json(found)["difference"]["code"] == "MZ088"
    target = Changed(Changed.before)  # without a change, a difference has no cause
    target.after = ContentHash(rows=5, digest=7)
    target.recorded = lambda step: Written(rows=1, digest=None)  # type: ignore[method-assign]
    found = verified(shop, target)
    assert found.difference is not None and (found.difference.step, found.difference.code) == (0, None)


# --- a view that aggregates, computed again

VIEW = """\
views:
  totals: {query: "SELECT name, count(*) AS n FROM orders GROUP BY name", output: update, key: [name]}
"""
ROW = '- {"name":"a","n":2}'
Compare = Callable[[StepRecord], RecomputationResult]
Recompute = Callable[..., Ran]


@pytest.fixture
def recompute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recompute:
    """Run the command on three steps, with `compare` instead of Spark."""
    shop = StoredShop(tmp_path)
    (shop.folder / "view.yaml").write_text(VIEW)
    apply(shop.folder)
    shop.source = StoredSource(shop.source.warehouse, state(shop.folder)["resources"]["view.totals"]["id"])
    shop.steps(3)

    def run(compare: Compare, *arguments: str, code: int = 0) -> Ran:
        opened = SimpleNamespace(compare=compare, close=lambda: None)
        monkeypatch.setattr(RecomputedView, "open", lambda *_: opened)
        return shop.run("verify", "view.totals", "--from-upstream", *arguments, code=code)

    return run


def result(**more: Any) -> Compare:
    return lambda record: RecomputationResult(
        step=record.step, **{"expected_rows": 2, "collection_rows": 2, **more}
    )


def test_the_last_of_the_wanted_steps_is_compared(recompute: Recompute) -> None:
    line = "view.totals as of step {}, recomputed from all rows that it has read: 2 rows as computed.\n"
    assert recompute(result()).out == line.format(2)
    found = recompute(result(not_compared=("n",)), "--steps", "0..1").out
    assert found.startswith(line.format(1)) and "Not compared: n (" in found


def test_a_row_that_differs_is_an_error_unless_it_may_be_late(recompute: Recompute) -> None:
    wrong = result(missing=1, more=1, examples=(ROW,))
    out = recompute(wrong, code=1).out
    assert f"  {ROW}\n" in out and "2 rows computed, 2 in its collection; 1 missing, 1 extra.\n" in out
    differences = {"missing": 1, "more": 1, "late": 0, "excused": None, "examples": [ROW], "not_compared": []}
    found = {"as_of": 2, "equal": False, "rows": {"query": 2, "collection": 2}, **differences}
    assert recompute(wrong, "--json", code=1).json()["recomputed"] == found
    late = recompute(result(missing=1, late=1, explanation="The view has dropped late rows."))
    assert "mzplan can't tell whether this is correct. The view has dropped late rows.\n" in late.out
    gone = recompute(Mock(side_effect=GoneError("Its files are gone.")), code=1)
    assert "error[MZ091]: view.totals can't be recomputed as of step 2" in gone.err


def test_a_view_that_still_counts_erased_rows_says_so(recompute: Recompute, tmp_path: Path) -> None:
    """Unless it has begun after the erasure."""
    wrong, id_ = result(missing=1, more=1), state(tmp_path)["resources"]["source.orders"]["id"]
    tasks = Checkpoint.of(str(tmp_path / "warehouse"), id_, 1).tasks
    erasure = TaskRecord(
        task=task(ERASURE, 2, "erase of rows"), outcome=TaskOutcome(serial=2), step=1, done=True
    )
    tasks.record(replace(erasure, details={ERASED_AT: 1.0}))
    recompute(wrong, code=1)
    tasks.record(replace(erasure, details={ERASED_AT: 4e9}))
    out = recompute(wrong).out
    assert (
        "Rows were erased from source.orders at 2096-10-02T07:06:40Z, and the view still counts them." in out
    )
    assert "mzplan apply --replace view.totals --allow-replace" in out
