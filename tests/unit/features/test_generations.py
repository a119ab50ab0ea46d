"""What `mzplan diff` refuses before it starts Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stored_steps import StoredSource
from tests.unit.cli_runs import apply, failed, state

FILES = {
    "mzplan.yaml": "version: 1\nproject: shop\ninstances: {local: {type: dry}}\n",
    "pipeline.yaml": """\
sources:
  orders: {type: local, schema: "id BIGINT, name STRING"}
sinks:
  out: {from: orders, type: console}
""",
}


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    apply(tmp_path)
    return tmp_path


def test_two_generations_are_needed(shop: Path) -> None:
    assert failed(shop, "diff", "source.none", code=64)["code"] == "MZ070"
    assert failed(shop, "diff", "sink.out", code=64)["summary"] == "sink.out has no collection"
    not_begun = failed(shop, "diff", "source.orders", code=64)
    assert not_begun["summary"] == "Generation 1 of source.orders has no rows yet"
    StoredSource(shop / "warehouse", state(shop)["resources"]["source.orders"]["id"])
    one = failed(shop, "diff", "source.orders", code=64)
    assert one["summary"] == "source.orders has no former generation to compare with"
