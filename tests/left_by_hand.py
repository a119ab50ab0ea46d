"""Writes the checkpoint and the Delta table of a Structured Streaming query, without Spark."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

QUERY = "0f8fad5b-d9cb-469f-a165-70867728950e"


def leave(
    folder: Path,
    offsets: tuple[str, ...] = ('{"orders":{"0":2}}', '{"orders":{"0":4}}'),
    *,
    done: int = 1,
    has: int = 1,
    writer: str = QUERY,
    columns: dict[str, list[Any]] | None = None,
) -> Path:
    """Write a query's checkpoint and table into a folder.

    `offsets`: the offsets of each planned micro-batch.
    `done`: the last micro-batch in the commit log.
    `has`: the last micro-batch in the table, which `writer` wrote.
    """
    import pyarrow
    from deltalake import CommitProperties, Transaction, write_deltalake

    checkpoint = folder / "checkpoint"
    for log in ("offsets", "commits", "sources/0"):
        (checkpoint / log).mkdir(parents=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": QUERY}))
    settings = '{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}'
    for number, entry in enumerate(offsets):
        (checkpoint / "offsets" / str(number)).write_text(f"v1\n{settings}\n{entry}")
        if number <= done:
            (checkpoint / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    rows = columns or {"id": [1, 2, 3, 4], "amount": [0.5, 1.5, 2.5, 3.5]}
    properties = CommitProperties(app_transactions=[Transaction(writer, has)])
    write_deltalake(str(folder / "table"), pyarrow.table(rows), commit_properties=properties)
    return folder


def position_in(table: Path, version: int, **other: Any) -> str:
    """Return Delta's offset before a version of a table, with `other` values."""
    from deltalake import DeltaTable

    position = {"sourceVersion": 1, "reservoirId": str(DeltaTable(str(table)).metadata().id)}
    position |= {"reservoirVersion": version, "index": -1, "isStartingVersion": False, **other}
    return json.dumps(position, separators=(",", ":"))


def main(folder: Path, *readers: Path) -> None:
    """Leave a query, and queries that have read its table."""
    leave(folder)
    for reader in readers:
        leave(reader, (position_in(folder / "table", 1),), done=0, has=0)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
