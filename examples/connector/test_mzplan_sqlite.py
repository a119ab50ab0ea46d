"""Runs mzplan's contract suites on this connector. Start it with `python -m pytest` in this folder."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from mzplan_sqlite import connector

from mzplan.endpoints.testing import (
    InputSubject,
    OutputSubject,
    config_columns,
    input_contract,
    output_contract,
)


def _config(folder: Path) -> dict[str, Any]:
    with sqlite3.connect(folder / "shop.db") as database:
        database.execute("CREATE TABLE orders (key INTEGER PRIMARY KEY AUTOINCREMENT, id INTEGER, name TEXT)")
    return {
        "address": "source.orders",
        "directory": str(folder),
        "storage": str(folder / "steps"),
        "connection": {"path": "shop.db"},
        "options": {"table": "orders"},
        "columns": config_columns(),
    }


def _input(folder: Path) -> InputSubject:
    config = _config(folder)

    def feed(rows: list[dict[str, Any]]) -> None:
        with sqlite3.connect(folder / "shop.db") as database:
            database.executemany("INSERT INTO orders (id, name) VALUES (:id, :name)", rows)

    return InputSubject(factory=connector.input_factory(), config=config, feed=feed)


def _output(folder: Path) -> OutputSubject:
    config = _config(folder)

    def contents() -> list[dict[str, Any]]:
        with sqlite3.connect(folder / "shop.db") as database:
            found = database.execute("SELECT id, name FROM orders ORDER BY key")
            return [{"id": id_, "name": name} for id_, name in found]

    return OutputSubject(factory=connector.output_factory(), config=config, contents=contents)


TestSqliteInput = input_contract(_input)
TestSqliteOutput = output_contract(_output)
