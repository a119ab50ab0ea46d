"""Avro records of a Kafka stream, decoded by Python tasks (see decoder).

Spark's own from_avro needs the schemas when a query starts, so it couldn't read records whose schema is
registered later.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.formats.avro.decoder import Task
from mzplan.connectors.formats.parsers import DECODED, KEY_DECODED
from mzplan.connectors.formats.records import MARK
from mzplan.connectors.formats.registry import ROLE, latest, server
from mzplan.connectors.formats.registry_http import RegistrySchemas
from mzplan.connectors.frames.types import ddl
from mzplan.connectors.network.tunnels import remote_tunnel
from mzplan.endpoints.arrow import arrow_schema
from mzplan.schema.columns import Column
from mzplan.schema.source_columns import included_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PASSED = ("value", "partition", "offset", "timestamp")


def decode_records(
    rows: DataFrame, query: ResolvedQuery, columns: Sequence[Column], keys: Sequence[Column] = ()
) -> DataFrame:
    """Add the column `DECODED` to a Kafka stream: the record's columns, or the reason why it has none.

    `value` becomes empty, unless it is NULL or needed for dead letters.

    `keys` are the columns of the records' keys. With them, deletes have a column `KEY_DECODED` (see
    decoder.Task). Raises MzplanError if the registry doesn't return the topic's schema.
    """
    from pyspark.sql import types as t

    newest = latest(query)
    passed_rows = rows.select(*_PASSED, *_other_columns(query))
    fields = [f"{DECODED} STRUCT<r: STRUCT<{ddl(columns)}>, e: STRING>"]
    if keys:
        fields.append(f"{KEY_DECODED} STRUCT<r: STRUCT<{ddl(keys)}>, e: STRING>")
    added_fields: Any = t.StructType.fromDDL(", ".join(fields))
    task = Task(
        schemas=_schemas(query, {newest.id: newest.schemas}),
        record_schema=arrow_schema(columns),
        newest=newest.schemas,
        column=DECODED,
        keeps_values=query.body["on_error"] == "dead-letter",
        keys=KEY_DECODED if keys else "",
        key_schema=arrow_schema(keys) if keys else None,
        tombstones=(query.body.get("envelope") or {}).get("type") == "upsert",
    )
    return passed_rows.mapInArrow(
        task.__call__, t.StructType([*passed_rows.schema.fields, *added_fields.fields])
    )


def _schemas(query: ResolvedQuery, known: Mapping[int, Sequence[str]]) -> RegistrySchemas:
    registry = query.connections[ROLE]
    registry_server = server(registry, query.directory)
    return RegistrySchemas(
        server=registry_server,
        run=uuid.uuid4().hex,
        known=known,
        tunnel=remote_tunnel(registry, *registry_server.host_and_port, query.directory),
        name=str(registry.address),
        mark=MARK,
    )


def _other_columns(query: ResolvedQuery) -> list[str]:
    """Return which of a record's key and headers are needed.

    A record without a value deletes by its key, and a malformed record is stored with its key."""
    included = {*included_columns(query.description.type, query.body)}
    if query.keys or query.body["on_error"] == "dead-letter":
        included.add("key")
    return [name for name in ("key", "headers") if name in included]
