"""SQLite tables as sources and sinks of mzplan: a complete connector, as an example of one.

`connector` is what the entry point names. Nothing here imports pyarrow or sqlite3 before it is used: mzplan
asks for the schemas in every command of a project that has such a source or sink.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .sink import SqliteOutputFactory
    from .source import SqliteInputFactory

_SCHEMAS = ("connection.sqlite", "source.sqlite", "sink.sqlite")


class Connector:
    """The plug-in: its type, its schemas, its two factories, and how to look before anything starts."""

    type = "sqlite"

    def schemas(self) -> dict[str, dict[str, Any]]:
        folder = Path(__file__).parent
        return {name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in _SCHEMAS}

    def input_factory(self) -> SqliteInputFactory:
        from .source import SqliteInputFactory

        return SqliteInputFactory()

    def output_factory(self) -> SqliteOutputFactory:
        from .sink import SqliteOutputFactory

        return SqliteOutputFactory()

    def probe(self, kind: str, config: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Whether the table is there and has the columns. Of a source: the identity of its upstream."""
        from .database import check_table

        return check_table(kind, config)


connector = Connector()
