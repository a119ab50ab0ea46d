"""A copy of another environment's collection, without Spark: what it finds there, and when it's too late."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mzplan.connectors.api.queries import ResolvedQuery, resolve
from mzplan.connectors.delta.collection_copy import CollectionCopy
from mzplan.secrets.references import Secrets
from tests.stored_steps import StoredSource
from tests.unit.connectors.queries import described

ROWS = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]


@pytest.fixture
def prod(tmp_path: Path) -> StoredSource:
    source = StoredSource(tmp_path / "prod")
    source.run(ROWS)
    source.run(ROWS)
    return source


def copy(folder: Path, generation: int = 1, **body: Any) -> ResolvedQuery:
    collection = {"warehouse": "./prod", "id": "orders-id", "generation": generation}
    given = {"from_environment": "prod", "source": "orders", "schema": "id BIGINT, name STRING", **body}
    query = described("source.orders", "environment", {**given, "collection": collection})
    return resolve(query, Secrets(str(folder)), str(folder), str(folder / "dev"))


def found(query: ResolvedQuery) -> list[str]:
    return [f"{d.summary}. {d.detail}" for d in CollectionCopy().probe(query).diagnostics]


def test_a_collection_must_be_there(tmp_path: Path, prod: StoredSource) -> None:
    assert found(copy(tmp_path)) == []
    (missing,) = found(copy(tmp_path, generation=2))
    assert missing.startswith("Environment prod has no rows for source.orders yet")


def test_only_a_committed_step_can_be_read(tmp_path: Path, prod: StoredSource) -> None:
    assert found(copy(tmp_path, as_of=1)) == []
    (missing,) = found(copy(tmp_path, as_of=2))
    assert missing == ("Environment prod can't be read as of step 2. orders has the steps 0 to 1 there.")
    prod.history.index.expire(1)
    (missing,) = found(copy(tmp_path, as_of=0))
    assert missing.endswith("orders has the steps 1 to 1 there.")


def test_another_generation_loses_nothing(tmp_path: Path, prod: StoredSource) -> None:
    source, query = CollectionCopy(), copy(tmp_path)
    upstream = source.probe(query).upstream
    assert upstream is not None
    assert source.compare(query, upstream, {**upstream, "table": "x", "collection": "orders-id/2"}) is None
    recreated = source.compare(query, upstream, {**upstream, "table": "x"})
    assert recreated is not None and recreated.code == "MZ043"


def test_changes_may_be_gone(tmp_path: Path, prod: StoredSource) -> None:
    offset = json.dumps({"reservoirVersion": 1, "index": -1, "isStartingVersion": False})
    assert CollectionCopy().check_position(copy(tmp_path), offset) is None
    for version in (0, 1):
        (prod.collection / "_delta_log" / f"{version:020}.json").unlink()
    problem = CollectionCopy().check_position(copy(tmp_path), offset)
    assert problem is not None and problem.kind == "offsets-gone"
    assert "doesn't wait for copies" in problem.detail
