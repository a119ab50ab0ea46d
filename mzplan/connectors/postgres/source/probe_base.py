"""What the checks of a PostgreSQL source have in common: whom they ask, for what, and how they tell of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mzplan.connectors.api.protocols import ResolvedQuery
from mzplan.connectors.postgres.client import route
from mzplan.connectors.postgres.source.slots import Names
from mzplan.connectors.postgres.tables import Connection
from mzplan.connectors.postgres.types import shown
from mzplan.model.diagnostics import Diagnostic
from mzplan.schema.source_columns import included_columns


class ServerCheck:
    """A check of one source over one connection."""

    def __init__(self, connection: Connection, query: ResolvedQuery):
        self._connection = connection
        self._query = query
        self._names = Names.of(query)
        self._where = route(query.link)
        included = included_columns(query.description.type, query.body)
        own = included["table"].name if "table" in included else None
        self._columns = [column for column in query.columns if column.name != own]
        self._key = [name for name in query.body["key"] if name != own]
        self._role = shown(query.link.body["user"])

    def _row(self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> Any:
        found = self._connection.execute(statement.encode(), values).fetchone()
        assert found is not None
        return found

    def _told(self, code: str, summary: str, detail: str, hint: str) -> Diagnostic:
        return Diagnostic(code=code, summary=summary, detail=detail, hint=hint, address=self._query.address)
