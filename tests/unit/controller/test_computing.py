"""A collection that computes is refused, and so is one of which that can't be seen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError
from mzplan.warehouse import collection_log
from mzplan.warehouse.collection_log import CollectionLog, require_uncomputed

ORDERS = Address.parse("source.orders")
EVIL = {"metaData": {"configuration": {"delta.constraints.evil": "f()"}, "schemaString": '{"fields": []}'}}


def table(folder: Path, *commits: str) -> Path:
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    for version, commit in enumerate(commits):
        (log / f"{version:020}.json").write_text(commit)
    return log


def refusal(folder: Path) -> str:
    with pytest.raises(MzplanError) as caught:
        require_uncomputed(CollectionLog(str(folder)), ORDERS)
    (told,) = caught.value.diagnostics
    assert told.address == ORDERS and str(folder) in told.detail
    return told.code


def test_a_log_that_can_t_be_read_is_refused(tmp_path: Path) -> None:
    require_uncomputed(CollectionLog(str(tmp_path / "none")), ORDERS)
    plain = json.dumps({"commitInfo": {}})
    for number, text in enumerate(("[" * 100_000, "7", '{"txn": {"appId": "q", "version": 1e999}}')):
        table(tmp_path / str(number), plain, text, json.dumps(EVIL))
        assert refusal(tmp_path / str(number)) == "MZ063"
    log = table(tmp_path / "checkpoint", plain)
    (log / f"{0:020}.checkpoint.parquet").write_bytes(b"PAR1")
    assert refusal(tmp_path / "checkpoint") == "MZ063"


def test_each_commit_is_looked_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = [json.dumps({"commitInfo": {}})] * 1100
    table(tmp_path, *commits, json.dumps(EVIL))
    assert refusal(tmp_path) == "MZ282"
    monkeypatch.setattr(collection_log, "_LOOKED_THROUGH", 1000)
    assert refusal(tmp_path) == "MZ063"
