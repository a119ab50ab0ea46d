"""SQLite tables as sources and sinks of mzplan: an example of a complete connector.

The entry point names `connector`. This module imports pyarrow and sqlite3 only when they are needed, because
mzplan reads the schemas in every command of a project with such a source or sink.
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
    """The plug-in: its type, its schemas, its two factories, and its check before queries start."""

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
        """Check that the table exists and has the columns. Return the identity of a source's upstream."""
        from .database import check_table

        return check_table(kind, config)


connector = Connector()
