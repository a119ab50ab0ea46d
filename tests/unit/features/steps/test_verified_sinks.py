"""Verified steps of a changed sink: a step may have been written under the old or the new description."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from mzplan.endpoints.interface import Written
from mzplan.features.steps.steps_text import render_verified, verified_to_json
from mzplan.features.steps.verification import VerificationResult, verify
from mzplan.model.address import Address
from mzplan.operations.project import open_project
from mzplan.schema.columns import parse_columns
from mzplan.spark.verification.sink import Downstream
from mzplan.warehouse.content_hash import ContentHash
from mzplan.warehouse.step_record import StepRecord
from tests.stored_steps import StoredSink, StoredSource, named
from tests.unit.features.stored_shop import StoredShop
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
        found = Downstream(query, target, sink.history, "", lambda _: query)
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
