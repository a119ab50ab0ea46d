"""Tasks of sources and sinks can be pickled and run in another process, as on an executor."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mzplan.connectors.formats.avro_decoder import AvroRecords
from mzplan.connectors.formats.avro_encoder import Encoder
from mzplan.connectors.formats.decoder import Task
from mzplan.connectors.formats.registry_http import RegistrySchemas, RegistryServer
from mzplan.connectors.kafka import output as kafka_output
from mzplan.connectors.kafka.step_record import KafkaStepRecord
from mzplan.connectors.kafka.transaction import KafkaTransaction
from mzplan.connectors.network.aws import Token
from mzplan.connectors.postgres.sink import output as postgres_output
from mzplan.connectors.postgres.sink import tasks as postgres_tasks
from mzplan.connectors.postgres.sink.output import Ledger
from mzplan.endpoints.arrow import arrow_schema
from mzplan.endpoints.interface import Written
from mzplan.schema.columns import parse_columns
from tests.executors import run_elsewhere


def kafka_with_a_token() -> Callable[..., object]:
    """The task signs in with a token that the driver has created."""
    sign_in = Token(settings={"region": "eu-west-1", "access_key_id": "a", "secret_access_key": "b"})
    client = {"bootstrap.servers": "127.0.0.1:1", "socket.timeout.ms": 500, "log_level": 0}
    client |= {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "oauth_cb": sign_in}
    writer = KafkaStepRecord(generation=1, epoch=1, query="q", step=-1)
    return kafka_output.task(KafkaTransaction(client, "mzplan.x", "t", 1000), writer, 0, 2, "warn")


def target() -> postgres_output.Target:
    given: dict[str, Any] = {"table": ("public", "t"), "columns": ("id",), "secret": "127.0.0.1"}
    return postgres_output.Target(conninfo="host=127.0.0.1 port=1 password=hidden", **given)


def straight() -> Callable[..., object]:
    ledger = Ledger(schema="mzplan", sink="x", generation=1, epoch=1, query_id="q")
    return postgres_tasks.straight_task(postgres_output.PostgresOutput(target(), ledger, compare="warn"), 0)


def staging() -> Callable[..., object]:
    return postgres_tasks.staging_task(target(), 3, Written(rows=1), 3, "warn")


SCHEMA = json.dumps({"type": "record", "name": "r", "fields": [{"name": "id", "type": "int"}]})


def decoding() -> Callable[..., object]:
    server, known = RegistryServer(url="http://127.0.0.1:1", seconds=1), {1: {"": SCHEMA}}
    schemas = RegistrySchemas(
        server=server, run="x", type="AVRO", known=known, tunnel=None, name="r", mark="mzplan"
    )
    wanted = pa.struct(list(arrow_schema(parse_columns("id TINYINT"))))
    return Task(values=AvroRecords(wanted=wanted, schemas=schemas, latest=[SCHEMA]), column="d").__call__


def encoding() -> Callable[..., object]:
    return Encoder(schemas=[SCHEMA], id=1, mark="mzplan[MZ059]").__call__


def values(*given: object, type_: pa.DataType) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(given, type_)], names=["value"])


def wire(*data: int) -> bytes:
    return struct.pack(">bI", 0, 1) + bytes(data)


GIVEN = {
    # 5, and 500, which is too large for a TINYINT.
    decoding: values(wire(10), wire(0xE8, 0x07), type_=pa.binary()),
    encoding: values({"id": None}, type_=pa.struct({"id": pa.int32()})),
}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (kafka_with_a_token, "_TRANSPORT"),
        # The password's placeholder here is masked.
        (straight, 'connection to server at "***", port 1 failed: Connection refused'),
        (staging, "0 rows were pushed, but 1 are written"),
        (decoding, "{'id': 5}, 'e': None}}, {'value': b'', 'd': {'r': None, 'e': 'id is not a TINYINT'}"),
        (encoding, "mzplan[MZ059]: a row can't be written with schema 1: r.id is int in the schema, but"),
    ],
)
def test_tasks_run_in_another_process(
    make: Callable[[], Callable[..., object]], said: str, tmp_path: Path
) -> None:
    limits = {f"mzplan.connectors.kafka.transaction.{limit}": 0.5 for limit in ("_ANSWER_S", "_SETTLES_S")}
    printed = run_elsewhere(make(), [GIVEN[make]] if make in GIVEN else (), tmp_path, limits)
    assert said in (printed if make is kafka_with_a_token else " ".join(printed.split()))
