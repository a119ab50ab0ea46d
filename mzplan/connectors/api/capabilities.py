"""What only some sources can do: a source that has the methods of one of these has the capability, and
`isinstance` asks for it.

What must be known of a type without its server's client library is in its package's `CONNECTOR` instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from mzplan.connectors.api.protocols import ResolvedQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@runtime_checkable
class SendsLetters(Protocol):
    """Its malformed records can be sent to another place of its server (`on_error: dead-letter`)."""

    def send_letters(self, records: DataFrame, query: ResolvedQuery) -> None:
        """Write records, each once: columns `key` and `value` (BINARY), and `headers`, an array of structs
        `key` STRING, `value` BINARY."""
