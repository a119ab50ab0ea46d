"""What an administrator runs on a server before a source or a sink can: from its description alone."""

from __future__ import annotations

from mzplan.connectors.api.connector import Ddl
from mzplan.connectors.api.outputs import outputs_without_spark
from mzplan.connectors.api.queries import resolve
from mzplan.connectors.catalogue import find_connector
from mzplan.schema.description import Description
from mzplan.secrets.references import Secrets


class _Unresolved(Secrets):
    """Leaves each reference as it is written: what is printed must hold no secret, and needs none."""

    def resolve(self, reference: str, *, current: bool = False) -> str:
        return reference


def ddl_of(description: Description, directory: str) -> Ddl | None:
    """The statements for one query; None where its type has none. Raises MzplanError, of the query."""
    connector = find_connector(description.type)
    if connector is None or connector.ddl is None:
        return None
    query = resolve(description, _Unresolved(directory, {}), directory)
    is_sink = description.address.kind == "sink"
    return connector.ddl(query, outputs_without_spark(query) if is_sink else ())
