"""The wire formats of a Kafka source's Avro and Protobuf, with a registry's schemas or without."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.formats.avro_decoder import AvroRecords
from mzplan.connectors.formats.decoder import WireFormat
from mzplan.connectors.formats.protobuf_decoder import ProtobufRecords
from mzplan.connectors.formats.protobuf_schema import texts_of, texts_of_project
from mzplan.connectors.formats.records import MARK
from mzplan.connectors.formats.registry import ROLE, Subject, latest, server
from mzplan.connectors.formats.registry_http import RegistrySchemas
from mzplan.connectors.network.tunnels import remote_tunnel
from mzplan.endpoints.arrow import arrow_schema
from mzplan.schema.columns import Column

if TYPE_CHECKING:
    from pyarrow import DataType


def wire_formats(
    query: ResolvedQuery, columns: Sequence[Column], keys: Sequence[Column]
) -> tuple[WireFormat, WireFormat | None]:
    """Return how the values of a source's records are written, and how their keys are (None without `keys`).

    Raises MzplanError if the registry doesn't return the topic's schema.
    """
    format_, wanted = query.body["format"], _struct(columns)
    message = str(format_.get("message", ""))
    if ROLE not in query.connections:
        return ProtobufRecords(wanted=wanted, texts=texts_of_project(format_), message=message), None
    newest = latest(query)
    schemas = _schemas(query, newest)
    if format_["type"] == "protobuf":
        texts = texts_of(newest.texts)
        values = ProtobufRecords(
            wanted=wanted, texts=texts, message=message, schemas=schemas, latest_id=newest.id
        )
        return values, None
    of_keys = AvroRecords(wanted=_struct(keys), schemas=schemas) if keys else None
    return AvroRecords(wanted=wanted, schemas=schemas, latest=newest.schemas), of_keys


def _struct(columns: Sequence[Column]) -> DataType:
    import pyarrow as pa

    return pa.struct(list(arrow_schema(columns)))


def _schemas(query: ResolvedQuery, newest: Subject) -> RegistrySchemas:
    registry = query.connections[ROLE]
    registry_server = server(registry, query.directory)
    return RegistrySchemas(
        server=registry_server,
        run=uuid.uuid4().hex,
        type=query.body["format"]["type"].upper(),
        known={newest.id: newest.texts},
        tunnel=remote_tunnel(registry, *registry_server.host_and_port, query.directory),
        name=str(registry.address),
        mark=MARK,
    )
