"""When the small files of a delta sink's target are merged, and with which credentials."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from mzplan.connectors.api.queries import ResolvedConnection, ResolvedQuery
from mzplan.connectors.delta import sink as delta_sink
from mzplan.connectors.delta.sink import DeltaSink
from mzplan.model.address import Address


def a_query(path: str, **connections: ResolvedConnection) -> Any:
    lake = ResolvedConnection(
        address=Address("connection", "lake"), type="files", body={"path": path}, connections=connections
    )
    body = {"path": "out", "mode": "append", "compaction": {"min_files": 10}}
    return ResolvedQuery(
        description=MagicMock(address=Address("sink", "out")),
        body=body,
        connection=lake,
        columns=(),
        directory=path,
        connections={"connection": lake},
    )


def not_rewritten(path: str) -> AbstractContextManager[None]:
    return nullcontext()


def test_a_table_that_has_fewer_files_by_now_is_merged_once_there_are_more_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = iter([1000, 1005, 1010, 20, 29, 30, 0, 9, 10])
    merged = iter([(5, 5), (5, 5), (20, 10), (10, 1)])
    monkeypatch.setattr(delta_sink, "count_files", lambda spark, table: next(there))
    monkeypatch.setattr(delta_sink, "merge_small_files", lambda spark, table: next(merged))
    sink, query, spark = DeltaSink(), a_query(str(tmp_path)), MagicMock()
    done = [sink.compact(query, spark, not_rewritten) is not None for _ in range(9)]
    # 1000 large ones stay; somebody's own OPTIMIZE leaves 20 of them; a truncate leaves none.
    assert done == [True, False, True, False, False, True, False, False, True]


def test_the_credentials_of_a_running_sink_stay_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_sink, "count_files", lambda spark, table: 10)
    monkeypatch.setattr(delta_sink, "merge_small_files", lambda spark, table: (10, 1))
    hadoop, java = MagicMock(), MagicMock()
    hadoop.getPropsWithPrefix.return_value = {"access.key": "AKIA1", "secret.key": "of the start"}
    context = SimpleNamespace(_jsc=SimpleNamespace(hadoopConfiguration=lambda: hadoop))
    spark: Any = SimpleNamespace(_jvm=java, sparkContext=context)
    body = {"type": "aws", "access_key_id": "AKIA1", "secret_access_key": "of now"}
    cloud = ResolvedConnection(address=Address("connection", "cloud"), type="aws", body=body)
    query = a_query("s3://lake/data", aws=cloud)
    assert DeltaSink().compact(query, spark, not_rewritten) is not None
    assert not hadoop.set.called and not hadoop.unset.called
    assert not java.org.apache.hadoop.fs.Path.called  # by which its client is closed
