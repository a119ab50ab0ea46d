"""Opens a database, and checks its tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class SqliteError(RuntimeError):
    """A problem with a database. The message is for people."""


def connect(config: Mapping[str, Any]) -> sqlite3.Connection:
    """Connect to the database of an endpoint's configuration. Raises SqliteError if it doesn't exist."""
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
    """Raise SqliteError if the table or a column is missing.

    For a source, return the table's identity, so that mzplan notices a restart on another table.
    """
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
