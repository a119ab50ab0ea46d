"""What `mzplan preview` refuses before it starts Spark."""

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


def test_only_a_declared_view_or_sink_is_previewed(shop: Path) -> None:
    unknown = failed(shop, "preview", "view.larg", code=64)
    assert unknown["code"] == "MZ353" and "view.large" in unknown["hint"]
    assert failed(shop, "preview", "view.paid", code=64)["summary"] == "view.paid has no query"
    assert failed(shop, "preview", "source.orders", code=64)["summary"] == "source.orders reads no collection"


def test_a_preview_needs_rows(shop: Path) -> None:
    new = failed(shop, "preview", "view.large", code=1)
    assert "source.orders" in new["detail"] and new["code"] == "MZ353"
    assert mzplan(shop, "apply", "--auto-approve").code == 0
    assert failed(shop, "preview", "view.large", code=1)["summary"].endswith("source.orders is still empty")


def test_only_a_source_parses_records(shop: Path) -> None:
    records = shop / "records.txt"
    assert failed(shop, "preview", "source.orders", "--records", str(records), code=1)["code"] == "MZ353"
    records.write_text("")
    empty = failed(shop, "preview", "source.orders", "--records", str(records), code=64)
    assert empty["summary"].endswith("records.txt has no records")
    records.write_text("{}\n")
    view = failed(shop, "preview", "view.large", "--records", str(records), code=64)
    assert view["summary"] == "view.large parses no records"


def test_options_of_a_preview_that_exclude_each_other(shop: Path) -> None:
    assert mzplan(shop, "preview", "view.large", "--csv", "--compare").code == 64
    assert mzplan(shop, "preview", "view.large", "--limit", "0").code == 64
    assert mzplan(shop, "preview", "source.orders", "--records", "-", "--steps", "1..2").code == 64
