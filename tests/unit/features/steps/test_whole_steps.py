"""Whether a task has all rows of a step."""

from __future__ import annotations

import pyarrow as pa
import pytest

from mzplan.connectors.frames.task_code import CutShortError, until_end
from mzplan.warehouse.content_hash import HASH


def batch(*hashes: int | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"id": pa.array(hashes, pa.int64()), HASH: pa.array(hashes, pa.int64())}
    )


def rows(*batches: pa.RecordBatch) -> list[list[int]]:
    return [one.column(HASH).to_pylist() for one in until_end(batches)]


def test_the_end_mark_is_no_row() -> None:
    assert rows(batch(1, 2), batch(3, None)) == [[1, 2], [3]]
    assert rows(batch(1, 2), batch(None), batch()) == [[1, 2]]
    assert rows(batch(None)) == []


@pytest.mark.parametrize("given", [(), (batch(),), (batch(1, 2),), (batch(1, 2), batch(3))])
def test_without_the_end_mark_rows_are_missing(given: tuple[pa.RecordBatch, ...]) -> None:
    with pytest.raises(CutShortError, match="not all rows"):
        rows(*given)


def test_no_rows_follow_the_end_mark() -> None:
    with pytest.raises(CutShortError, match="after the end"):
        rows(batch(1, None), batch(2, None))
