"""Which Spark and Delta have written a checkpoint: recorded, shown, and refused where nobody can read it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mzplan.host.spark_lines import NEWEST
from mzplan.model.address import Address
from mzplan.model.codec import decode, encode
from mzplan.model.diagnostics import MzplanError
from mzplan.model.state import Instance, Observation, State, Status, Versions
from mzplan.operations import versions as planned
from mzplan.spark.versions import require_readable, take_over
from mzplan.warehouse.checkpoints import Checkpoint

ORDERS = Address("source", "orders")
OLD = Versions(mzplan="0.1.0", spark="4.0.5", delta="4.0.0", kafka="4.0.0")
NEW = Versions(mzplan="0.1.0", spark="4.2.0", delta="4.4.0", kafka="4.2.0")


def test_who_writes_next_is_recorded_before(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    assert take_over(checkpoint, ORDERS, OLD) is None, "a new one, or an older mzplan's"
    assert take_over(checkpoint, ORDERS, OLD) is None
    assert take_over(checkpoint, ORDERS, NEW) == OLD
    assert checkpoint.versions() == NEW
    assert take_over(checkpoint, ORDERS, OLD) == NEW, "and back"
    assert take_over(checkpoint, ORDERS, replace(OLD, mzplan="0.2.0")) is None, "it stores the same"
    stored = json.loads((tmp_path / "versions.json").read_text())
    assert stored == {"format_version": 1, "versions": {**encode(OLD), "mzplan": "0.2.0"}}


def test_a_line_that_nobody_knows_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    later = Versions(mzplan="0.9.0", spark="4.9.0", delta="5.0.0", kafka="4.9.0")
    checkpoint.record_versions(later)
    with pytest.raises(MzplanError) as caught:
        take_over(checkpoint, ORDERS, NEW)
    (told,) = caught.value.diagnostics
    assert told.code == "MZ241" and told.address == ORDERS
    assert "Spark 4.9.0" in told.summary and NEWEST.spark in told.detail
    assert "mzplan 0.9.0" in told.hint and f"--replace {ORDERS}" in told.hint
    assert checkpoint.versions() == later


def test_a_damaged_record_is_said(tmp_path: Path) -> None:
    (tmp_path / "versions.json").write_text('{"versions": {"spark": 4}}')
    with pytest.raises(OSError, match=r"versions.json is damaged"):
        require_readable(Checkpoint(str(tmp_path)), ORDERS)


def status_of(**more: Any) -> Status:
    return Status(instance="local", epoch=1, heartbeat=0.0, serial=1, **more)


def test_the_status_has_them_and_an_older_one_has_none() -> None:
    assert "versions" not in encode(status_of())
    assert decode(Status, encode(status_of(versions=NEW))).versions == NEW


def notices(
    monkeypatch: pytest.MonkeyPatch, status: Status, installed: str, leader: object = None
) -> list[str]:
    monkeypatch.setattr("mzplan.host.spark_lines.installed_spark", lambda: installed)
    leases = SimpleNamespace(leader=lambda name: leader)
    project: Any = SimpleNamespace(store=SimpleNamespace(leases=leases))
    state = State(project="shop", instances={"local": Instance(name="local", type="embedded")})
    return [d.summary for d in planned.version_notices(project, state, {"local": status})]


def test_a_plan_says_what_the_next_runner_is(monkeypatch: pytest.MonkeyPatch) -> None:
    last = status_of(versions=OLD)
    assert notices(monkeypatch, last, "4.0.5") == []
    (told,) = notices(monkeypatch, last, "4.2.0")
    assert "will run Spark 4.2.0" in told and "Spark 4.0.5 and Delta 4.0.0" in told
    assert notices(monkeypatch, last, "4.2.0", leader=object()) == [], "it runs, and is not replaced"
    assert notices(monkeypatch, status_of(), "4.2.0") == [], "an older mzplan has said nothing"


def test_a_plan_says_that_a_runner_has_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Observation(
        address=ORDERS,
        generation=1,
        digest="1:a",
        wanted_digest="1:a",
        wanted_generation=1,
        condition="running",
        written_with=OLD,
    )
    running = status_of(versions=NEW, observations={ORDERS: seen})
    (told,) = notices(monkeypatch, running, "4.2.0", leader=object())
    assert "runs Spark 4.2.0 and Delta 4.4.0" in told and "Spark 4.0.5 and Delta 4.0.0" in told
