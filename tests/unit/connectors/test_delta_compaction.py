"""When the small files of a delta sink's target are merged."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from mzplan.connectors.delta import sink as delta_sink
from mzplan.model.address import Address
from tests.unit.connectors.queries import on_table


def test_small_files_are_merged_when_enough_have_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 1000 large files stay. Somebody's own OPTIMIZE then leaves 20 of them, and a truncate none.
    counts = iter([1000, 1005, 1010, 20, 29, 30, 0, 9, 10])
    merged = iter([(5, 5), (5, 5), (20, 10), (10, 1)])
    monkeypatch.setattr(delta_sink, "count_files", lambda spark, table: next(counts))
    monkeypatch.setattr(delta_sink, "merge_small_files", lambda spark, table: next(merged))
    body = {"mode": "append", "compaction": {"min_files": 10}}
    sink, query = delta_sink.DeltaSink(), on_table(tmp_path / "out", Address("sink", "out"), body, "id INT")
    done = [sink.compact(query, MagicMock(), lambda path: nullcontext()) is not None for _ in range(9)]
    assert done == [True, False, True, False, False, True, False, False, True]
