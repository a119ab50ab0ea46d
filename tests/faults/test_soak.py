"""A small soak; the long one is `make soak`, its result in docs/internals/reliability.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.soak import Soak


@pytest.mark.timeout(1500)
def test_each_target_holds_each_row_once_after_six_faults(tmp_path: Path) -> None:
    report = Soak(tmp_path, rows=100_000, faults=6, seed=6, tell=print).run()
    assert report["exactly_once"], report
    assert sum(report["faults"].values()) == 6
