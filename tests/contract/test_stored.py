"""A query's checkpoint and collection on a disk and in an object store: missing, replaced, or copied."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mzplan.connectors.api.connector import AdoptingSource
from mzplan.features.state.adoption_checks import source_problems
from mzplan.model.address import Address
from mzplan.warehouse import foreign_query, storage
from mzplan.warehouse.checkpoints import Checkpoint, collection_path
from mzplan.warehouse.folder import exists, open_folder, write_text
from mzplan.warehouse.storage import remove_storage
from tests.left_by_hand import leave
from tests.support import refusal

A = Address("source", "orders")
SINK = Address("sink", "out")
SOURCE = AdoptingSource(
    type="kafka",
    body={"topic": "orders", "format": {"type": "json", "schema": "id BIGINT, amount DOUBLE"}},
    connection={},
    directory=".",
)


@pytest.fixture(params=["local", "s3"])
def warehouse(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "local":
        return str(tmp_path)
    server = request.getfixturevalue("object_server")
    server.bucket("warehouses")
    keys = {"ACCESS_KEY_ID": "an-id", "SECRET_ACCESS_KEY": "a-key", "REGION": "us-east-1"}
    for name, value in {"ENDPOINT_URL": server.url, **keys}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    return f"s3a://warehouses/{tmp_path.name}"


def remove(place: str) -> None:
    folder, _, name = place.rpartition("/")
    open_folder(folder).delete(name)


def make_table(table: str, id_: str) -> str:
    """Write the first entry of a Delta log, and return its path."""
    entry = f"{table}/_delta_log/{0:020}.json"
    actions = [{"commitInfo": {}}, {"metaData": {"id": id_}}, {"protocol": {}}]
    write_text(entry, "\n".join(map(json.dumps, actions)))
    return entry


def codes(warehouse: str, address: Address = A, place: tuple[str, int] = ("o", 1)) -> list[str]:
    reads = {A: ("o", 1)} if address.reads_collections else {}
    return [d.code for d in storage.missing_storage(warehouse, address, place, reads)]


def test_a_missing_or_replaced_checkpoint_or_collection_is_reported(
    warehouse: str, request: pytest.FixtureRequest
) -> None:
    if warehouse.startswith("s3a:"):
        server = request.getfixturevalue("object_server")
        server.fails_at = len(server.requests)
        assert codes(warehouse) == []  # unreadable isn't missing
    assert codes(warehouse) == ["MZ161", "MZ161"]
    checkpoint, table = Checkpoint.of(warehouse, "o", 1), collection_path(warehouse, "o", 1)
    metadata = f"{checkpoint.spark}/metadata"
    write_text(metadata, "{}")
    entry = make_table(table, "one")
    assert codes(warehouse) == [] and exists(metadata)
    storage.ensure_collection(checkpoint, A, table)  # its id isn't recorded yet
    storage.remember_collection(checkpoint, table)
    storage.remember_collection(checkpoint, table)
    storage.ensure_collection(checkpoint, A, table)
    assert checkpoint.collection() == "one" and codes(warehouse) == []
    assert codes(warehouse, SINK, ("k", 1)) == ["MZ161"]  # its own checkpoint, its source's collection

    make_table(table, "another")  # removed, and created again by the running query
    assert codes(warehouse) == ["MZ161"] and codes(warehouse, SINK, ("o", 1)) == ["MZ161"]
    found = refusal(lambda: storage.ensure_collection(checkpoint, A, table))
    assert "another one was created there" in found.detail

    remove(entry)
    write_text(f"{table}/_delta_log/_last_checkpoint", "{}")
    assert codes(warehouse) == []  # an old table, whose log was cleaned up
    remove(metadata)
    assert codes(warehouse) == ["MZ161"]


def test_a_foreign_query_is_copied_into_and_out_of_a_warehouse(
    warehouse: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")  # for the reader of Delta tables
    folder = leave(tmp_path / "left")
    left = foreign_query.inspect(str(folder / "checkpoint"), str(folder / "table"))
    assert list(source_problems(left, SOURCE)) == []
    foreign_query.copy(left, warehouse, "one")
    checkpoint, table = Checkpoint.of(warehouse, "one", 1), collection_path(warehouse, "one", 1)
    assert storage.missing_storage(warehouse, A, ("one", 1), {}) == ()
    assert checkpoint.position() == left.positions[0]

    there = foreign_query.inspect(checkpoint.spark, table)
    assert (there.query_id, there.mark) == (left.query_id, left.mark)
    assert list(source_problems(there, SOURCE)) == []
    foreign_query.copy(there, warehouse, "two")
    assert Checkpoint.of(warehouse, "two", 1).position() == left.positions[0]
    remove_storage(warehouse, "two", 1)
    assert storage.missing_storage(warehouse, A, ("two", 1), {}) != ()
