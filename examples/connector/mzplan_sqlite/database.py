"""Opening a database, and looking at its tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class SqliteError(RuntimeError):
    """What is wrong, for people."""


def connect(config: Mapping[str, Any]) -> sqlite3.Connection:
    """The database of an endpoint's configuration. Raises SqliteError when it is not there."""
    path = Path(config["directory"]) / config["connection"]["path"]
    if not path.is_file():
        raise SqliteError(f"there is no database {path}; create it, with its tables")
    connection = sqlite3.connect(path, timeout=config["connection"].get("timeout", 10), isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def columns(config: Mapping[str, Any]) -> list[str]:
    return [column["name"] for column in config["columns"]]


def check_table(kind: str, config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Raises SqliteError when the table lacks something. Of a source: which table it is, so that a restart on
    another one is noticed."""
    connection = connect(config)
    try:
        table = config["options"]["table"]
        there = {row[1].lower() for row in connection.execute(f"PRAGMA table_info({quoted(table)})")}
        missing = [name for name in columns(config) if name.lower() not in there]
        if missing:
            what = f"has no column {', '.join(missing)}" if there else "does not exist"
            raise SqliteError(f"table {table} of {config['connection']['path']} {what}")
        return {"table": table} if kind == "source" else None
    finally:
        connection.close()
