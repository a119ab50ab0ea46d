"""Reads the checkpoints of a Delta table's log."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from mzplan.warehouse.folder import decoding, file_system, open_folder
from mzplan.warehouse.log_entries import action_of

# The columns to read for each kind of action.
_COLUMNS = {
    "txn": ["txn.appId", "txn.version"],
    "protocol": ["protocol.minReaderVersion", "protocol.readerFeatures", "protocol.writerFeatures"],
    "metaData": ["metaData.id", "metaData.schemaString", "metaData.partitionColumns"],
}
_CHECKPOINT = re.compile(
    r"([0-9]{20})\.checkpoint(?:\.[0-9]{10}\.([0-9]{10})\.parquet|\.parquet"
    r"|\.[0-9a-f-]{36}\.(?:json|parquet))"
)


def checkpoints_of(names: Iterable[str]) -> dict[int, list[str]]:
    """Return the files of each complete checkpoint among the names in a log, by version."""
    files: dict[int, list[str]] = {}
    parts: dict[tuple[int, int], set[str]] = {}
    for match in filter(None, map(_CHECKPOINT.fullmatch, names)):
        version, number = int(match[1]), match[2]
        if number is not None:
            parts.setdefault((version, int(number)), set()).add(match[0])
        else:
            files.setdefault(version, []).append(match[0])
    for (version, number), names_of_parts in parts.items():
        if len(names_of_parts) == number:  # Delta ignores incomplete ones
            files.setdefault(version, []).extend(sorted(names_of_parts))
    return files


def actions_in(log: str, name: str, action: str) -> list[dict[str, Any]]:
    """Return the actions of one kind in a file of a Delta checkpoint. Raises OSError."""
    if name.endswith(".parquet"):
        return _in_parquet(f"{log}/{name}", action)
    with decoding(f"{log}/{name}"):
        entries = map(action_of, (open_folder(log).read(name) or b"").splitlines())
        return [entry[action] for entry in entries if action in entry]


def _in_parquet(place: str, action: str) -> list[dict[str, Any]]:
    import pyarrow as pa
    from pyarrow import parquet

    system, path = file_system(place)
    try:
        with parquet.ParquetFile(path, filesystem=system) as file:
            rows: list[dict[str, Any]] = file.read(_COLUMNS[action]).column(action).drop_null().to_pylist()
            return rows
    except (pa.ArrowException, KeyError, ValueError) as problem:
        raise OSError(f"{place} is damaged: {problem}") from None
