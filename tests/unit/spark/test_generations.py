"""Which former generation of a sink has written to the same target."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mzplan.model.address import Address
from mzplan.schema.description import CollectionRead
from mzplan.spark.generations import has_written_same_keys
from tests.unit.connectors.queries import described, inlined

CLUSTER = inlined("k", {"type": "kafka", "brokers": ["b:9092"]})
REGISTRY = inlined("r", {"type": "schema-registry", "url": "https://r"})
VIEW = CollectionRead(address=Address("view", "v"), id="v", generation=1, type="sql", body={})
FORMER = described(
    "sink.s", "kafka", {"topic": "t", "mode": "upsert", "key": ["id"]}, CLUSTER, reads={"v": VIEW}
)


@pytest.mark.parametrize(("name", "value"), [("topic", "u"), ("key", ["other"]), ("mode", "append")])
def test_another_target_or_key_is_not_compared(name: str, value: object) -> None:
    assert not has_written_same_keys(replace(FORMER, body={**FORMER.body, name: value}), FORMER)


def test_a_changed_format_with_its_registry_keeps_the_target() -> None:
    body = {**FORMER.body, "format": {"type": "avro"}, "schema_registry": "r"}
    now = replace(FORMER, body=body, connections={**FORMER.connections, "schema_registry": REGISTRY})
    assert has_written_same_keys(FORMER, now)
    assert has_written_same_keys(now, FORMER)


def test_another_connection_leads_to_another_target() -> None:
    other = inlined("other", dict(CLUSTER.body))
    assert not has_written_same_keys(FORMER, replace(FORMER, connections={"connection": other}))
