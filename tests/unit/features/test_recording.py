"""What `mzplan test --record` refuses before it starts Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli_runs import failed, mzplan

FILES = {
    "mzplan.yaml": "version: 1\nproject: shop\ninstances: {local: {type: dry}}\n",
    "pipeline.yaml": """\
sources:
  orders: {type: local, schema: "id BIGINT, amount DOUBLE"}
views:
  large: {query: "SELECT * FROM orders WHERE amount > 5"}
  paid: {query: "SELECT * FROM orders WHERE amount > 0", materialize: false}
  ids: {query: "SELECT id FROM paid"}
""",
}


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_recording_needs_a_view_and_steps(shop: Path) -> None:
    assert mzplan(shop, "test", "--record", "view.large").code == 64
    assert mzplan(shop, "test", "--steps", "0..1").code == 64
    assert failed(shop, "test", "--record", "source.orders", "--steps", "0..1", code=64)["code"] == "MZ354"
    assert mzplan(shop, "apply", "--auto-approve").code == 0
    masked = failed(shop, "test", "--record", "view.large", "--steps", "0..1", "--mask", "amount", code=64)
    assert masked["code"] == "MZ354" and "id" in masked["detail"]
    assert failed(shop, "test", "--record", "view.large", "--steps", "0..1", code=1)["code"] == "MZ354"
