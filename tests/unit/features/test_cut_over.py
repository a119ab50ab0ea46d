"""`mzplan cut-over`: a generation that runs beside the one in service, on a dry instance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli_runs import mzplan

TOTALS = "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer"
UPSERT = {"mode": "upsert", "key": ["customer"], "on_replace": "difference"}
LARGE = "SELECT customer, total FROM totals WHERE total > 10"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "mzplan.yaml").write_text(
        "version: 1\nproject: shop\nwarehouse: ./warehouse\ninstances: {local: {type: dry}}\n"
    )
    write(tmp_path, TOTALS)
    assert apply(tmp_path) == 0
    return tmp_path


def write(folder: Path, query: str, **lifecycle: str) -> None:
    beside = {"lifecycle": lifecycle or {"replace": "side-by-side", "cut_over": "manual"}}
    shop = {
        "sources": {"orders": {"type": "local", "schema": "customer STRING, amount BIGINT"}},
        "views": {
            "totals": {"query": query, "output": "update", "key": ["customer"], **beside},
            "large": {"query": LARGE, "key": ["customer"], "lifecycle": {"replace": "side-by-side"}},
        },
        "sinks": {"shown": {"type": "delta", "connection": "lake", "path": "t", "from": "large", **UPSERT}},
        "connections": {"lake": {"type": "files", "path": "lake"}},
    }
    (folder / "shop.yaml").write_text(json.dumps(shop))


def apply(folder: Path) -> int:
    return mzplan(folder, "apply", "--auto-approve", "--allow-replace", "--wait", "1s").code


def generations(folder: Path) -> dict[str, int]:
    queries: list[dict[str, Any]] = mzplan(folder, "status", "--json").json()["queries"]
    return {query["address"]: query["generation"] for query in queries}


FIRST = {"source.orders": 1, "view.totals": 1, "view.large": 1, "sink.shown": 1}
BOTH = {**FIRST, "view.totals@2": 2, "view.large@2": 2}
TAXES = TOTALS.replace("sum(amount)", "sum(amount + 1)")


def test_a_generation_waits_for_its_word(shop: Path) -> None:
    write(shop, TAXES)
    planned = mzplan(shop, "plan").out
    assert "generation 2 runs beside generation 1, which stays in service meanwhile" in planned
    assert "and `mzplan cut-over view.totals` asks for it" in planned
    assert apply(shop) == 8
    assert generations(shop) == BOTH
    (drift,) = [mzplan(shop, "drift", "--json").json()["drift"]]
    assert drift == []
    why = mzplan(shop, "why", "view.totals").out
    assert "generation 2 waits for `mzplan cut-over view.totals`" in why
    done = mzplan(shop, "cut-over", "view.totals", "--auto-approve", "--wait", "1s")
    assert done.code == 0, done
    assert generations(shop) == {**FIRST, "view.totals": 2, "view.large": 2, "sink.shown": 2}
    # The next one waits for a word of its own.
    write(shop, TOTALS)
    assert apply(shop) == 8
    assert generations(shop)["view.totals"] == 2
    assert generations(shop)["view.totals@3"] == 3


def test_a_generation_that_is_given_up_is_not_computed_again(shop: Path) -> None:
    before = {q["address"]: q["run_id"] for q in mzplan(shop, "status", "--json").json()["queries"]}
    write(shop, TAXES)
    assert apply(shop) == 8
    done = mzplan(shop, "cut-over", "view.totals", "--abort", "--auto-approve", "--wait", "1s")
    assert done.code == 0, done
    assert generations(shop) == FIRST
    after = {q["address"]: q["run_id"] for q in mzplan(shop, "status", "--json").json()["queries"]}
    assert after == before
    # The files still want it: a plan shows it again, as a generation of its own.
    assert apply(shop) == 8
    assert generations(shop) == {**FIRST, "view.totals@3": 3, "view.large@3": 3}
    assert mzplan(shop, "cut-over", "view.large", "--abort", "--auto-approve", "--wait", "1s").code == 0
    write(shop, TOTALS)
    assert mzplan(shop, "plan", "--detailed-exitcode").code == 0


def test_without_a_word_to_wait_for_all_take_over(shop: Path) -> None:
    write(shop, TAXES, replace="side-by-side")
    assert apply(shop) == 0
    assert generations(shop) == {**FIRST, "view.totals": 2, "view.large": 2, "sink.shown": 2}
    refused = mzplan(shop, "cut-over", "view.totals", "--auto-approve")
    assert refused.code == 64
    assert "Generation 2 is in service, and is the newest one." in refused.err


@pytest.mark.parametrize(
    ("address", "why"),
    [("source.orders", "Only a view can have one."), ("view.totals", "and is the newest one")],
)
def test_what_has_no_generation_beside_it_is_refused(shop: Path, address: str, why: str) -> None:
    for options in ((), ("--abort",)):
        refused = mzplan(shop, "cut-over", address, "--auto-approve", *options)
        assert refused.code == 64
        assert "MZ390" in refused.err and why in refused.err


def test_manual_needs_side_by_side(shop: Path) -> None:
    write(shop, TOTALS, cut_over="manual")
    refused = mzplan(shop, "validate")
    assert refused.code == 1
    assert "cut_over" in refused.err
