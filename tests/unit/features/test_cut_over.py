"""`mzplan cut-over`: a generation that runs beside the one in service, on a dry instance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mzplan.features.ui.follower import Follower
from mzplan.features.ui.overview import OverviewReader
from mzplan.features.ui.queries_page import queries_page
from mzplan.features.ui.resource_page import resource_page
from mzplan.operations.project import open_project
from mzplan.render.html import joined
from tests.unit.cli_runs import mzplan
from tests.unit.small_projects import at

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
    beside = {"lifecycle": lifecycle or {"cut_over": "manual"}}
    shop = {
        "sources": {"orders": {"type": "local", "schema": "customer STRING, amount BIGINT"}},
        "views": {
            "totals": {"query": query, "output": "update", "key": ["customer"], **beside},
            "large": {"query": LARGE, "key": ["customer"], "trigger": {"interval": "1s"}},
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
    assert "± view.large  begins again as generation 2 beside generation 1: reads from the start" in planned
    assert "view.totals: generation 2 will wait for `mzplan cut-over view.totals`" in planned
    assert apply(shop) == 8
    assert generations(shop) == BOTH
    refused = mzplan(shop, "state", "rm", "sink.shown", "view.large")
    assert refused.code == 7 and "MZ414" in refused.err
    assert "sink.shown can't be forgotten while generation 1 is in service" in refused.err
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


def test_events_history_and_pages_show_both_generations(shop: Path) -> None:
    write(shop, TAXES)
    assert apply(shop) == 8
    for words in ("events view.totals", "history show 2"):
        assert "view.totals@2  started" in mzplan(shop, *words.split()).out
    assert "± view.totals  begins again as generation 2 beside generation 1" in (
        mzplan(shop, "history", "show", "2").out
    )
    assert "view.totals@2" not in mzplan(shop, "events", "view.large").out
    with Follower(OverviewReader(open_project(str(shop)))) as follower:
        view = follower.view()
        assert view.overview is not None
        queries = str(joined(queries_page(view)))
        assert '<a href="/resources/view.totals">view.totals@2</a>' in queries
        page = str(joined(resource_page(view.overview, at("view.totals"), follower.samples)))
    assert "1, in service" in page and "Generation 2" in page and "beside it" in page


def abort(folder: Path, view: str = "view.totals") -> Any:
    return mzplan(folder, "cut-over", view, "--abort", "--auto-approve", "--wait", "1s")


def test_a_pause_outlives_a_generation_that_is_given_up(shop: Path) -> None:
    write(shop, TAXES)
    assert apply(shop) == 8
    assert mzplan(shop, "pause", "view.large").code == 0
    assert abort(shop).code == 0
    assert generations(shop) == FIRST
    queries = mzplan(shop, "status", "--json").json()["queries"]
    assert {q["address"] for q in queries if q["condition"] == "paused"} == {"view.large"}


def test_the_number_of_a_generation_that_was_given_up_is_not_used_again(shop: Path) -> None:
    write(shop, TAXES)
    assert apply(shop) == 8
    assert abort(shop).code == 0
    assert mzplan(shop, "state", "rollback", "1", "--auto-approve").code == 0
    assert apply(shop) == 8
    assert generations(shop)["view.totals@3"] == 3


def test_a_generation_whose_input_was_replaced_too_is_not_given_up(shop: Path) -> None:
    before = (shop / "shop.yaml").read_text()
    (shop / "shop.yaml").write_text(before.replace("amount BIGINT", "amount INT"))
    assert apply(shop) == 8
    refused = abort(shop)
    assert refused.code == 1
    assert "MZ400" in refused.err and "source.orders was replaced since" in refused.err
    assert generations(shop)["view.totals@2"] == 2


def test_without_a_word_to_wait_for_all_take_over(shop: Path) -> None:
    write(shop, TAXES, replace="side-by-side")
    assert apply(shop) == 0
    assert generations(shop) == {**FIRST, "view.totals": 2, "view.large": 2, "sink.shown": 2}
    refused = mzplan(shop, "cut-over", "view.totals", "--auto-approve")
    assert refused.code == 64
    assert "Generation 2 is in service, and is the newest one." in refused.err


@pytest.mark.parametrize(
    ("address", "why"),
    [("source.orders", "Its `lifecycle` replaces it in place."), ("view.totals", "and is the newest one")],
)
def test_what_has_no_generation_beside_it_is_refused(shop: Path, address: str, why: str) -> None:
    for options in ((), ("--abort",)):
        refused = mzplan(shop, "cut-over", address, "--auto-approve", *options)
        assert refused.code == 64
        assert "MZ400" in refused.err and why in refused.err


def test_a_replace_in_place_has_no_generation_beside_it(shop: Path) -> None:
    write(shop, TAXES, replace="in-place")
    assert "± view.totals  begins again as generation 2: reads from the start" in mzplan(shop, "plan").out
    assert apply(shop) == 0
    refused = mzplan(shop, "cut-over", "view.totals", "--auto-approve")
    assert "Its `lifecycle` replaces it in place." in refused.err


def test_a_view_that_moves_while_it_is_replaced(shop: Path) -> None:
    settings = (shop / "mzplan.yaml").read_text()
    (shop / "mzplan.yaml").write_text(settings.replace("type: dry}", "type: dry}, far: {type: dry}"))
    warning = "view.totals: generation {} starts on instance far before it has read as much as generation 1"
    move(shop, TAXES)
    assert warning.format(2) in mzplan(shop, "plan").out
    write(shop, TAXES)
    assert apply(shop) == 8
    move(shop, TAXES)
    assert warning.format(2) in mzplan(shop, "plan").out
    assert mzplan(shop, "cut-over", "view.totals", "--auto-approve", "--wait", "1s").code == 0
    assert "before it has read" not in mzplan(shop, "plan").out


def test_views_on_two_instances_do_not_take_over_together(shop: Path) -> None:
    settings = (shop / "mzplan.yaml").read_text()
    (shop / "mzplan.yaml").write_text(settings.replace("type: dry}", "type: dry}, far: {type: dry}"))
    move(shop, TOTALS, "large")
    assert apply(shop) == 0
    move(shop, TAXES, "large")
    planned = mzplan(shop, "plan").out
    assert "view.large and view.totals are replaced, but don't take over together" in planned


def move(folder: Path, query: str, name: str = "totals") -> None:
    """Write the files, with a view on the other instance."""
    write(folder, query)
    files = json.loads((folder / "shop.yaml").read_text())
    files["views"][name]["instance"] = "far"
    (folder / "shop.yaml").write_text(json.dumps(files))


def write_source(folder: Path, topic: str, **lifecycle: str) -> None:
    """Write files with a source, a view that aggregates its rows, and a sink of each."""
    beside = lifecycle or {"replace": "side-by-side", "cut_over": "manual"}
    orders = {"connection": "bus", "topic": topic, "lifecycle": beside}
    orders |= {"format": {"type": "json", "schema": "customer STRING, amount BIGINT"}}
    lines = {"type": "delta", "connection": "lake", "path": "lines", "on_replace": "truncate"}
    shop = {
        "sources": {"orders": orders},
        "views": {"totals": {"query": TOTALS, "output": "update", "key": ["customer"]}},
        "sinks": {
            "shown": {"type": "delta", "connection": "lake", "path": "t", "from": "totals", **UPSERT},
            "lines": {"from": "orders", **lines},
        },
        "connections": {
            "lake": {"type": "files", "path": "lake"},
            "bus": {"type": "kafka", "brokers": ["b:9092"]},
        },
    }
    (folder / "shop.yaml").write_text(json.dumps(shop))


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    (tmp_path / "mzplan.yaml").write_text(
        "version: 1\nproject: shop\nwarehouse: ./warehouse\ninstances: {local: {type: dry}}\n"
    )
    write_source(tmp_path, "orders")
    assert apply(tmp_path) == 0
    return tmp_path


ONE = {"source.orders": 1, "view.totals": 1, "sink.shown": 1, "sink.lines": 1}


def test_a_source_waits_for_its_word_with_all_its_readers(stream: Path) -> None:
    write_source(stream, "orders_v2")
    planned = mzplan(stream, "plan").out
    assert (
        "± source.orders  begins again as generation 2 beside generation 1: reads from the start" in planned
    )
    assert "source.orders: generation 2 will wait for `mzplan cut-over source.orders`" in planned
    assert apply(stream) == 8
    assert generations(stream) == {**ONE, "source.orders@2": 2, "view.totals@2": 2}
    assert mzplan(stream, "drift", "--json").json()["drift"] == []
    why = mzplan(stream, "why", "source.orders").out
    assert "generation 2 waits for `mzplan cut-over source.orders`" in why
    refused = mzplan(stream, "erase", "source.orders", "--where", "customer = 'ada'", "--auto-approve")
    assert refused.code == 7 and "Its generation 1 stays in service, and keeps the rows" in refused.err
    done = mzplan(stream, "cut-over", "source.orders", "--auto-approve", "--wait", "1s")
    assert done.code == 0, done
    assert generations(stream) == dict.fromkeys(ONE, 2)


@pytest.mark.parametrize("address", ["source.orders", "view.totals"])
def test_a_source_and_its_readers_are_given_up_together(stream: Path, address: str) -> None:
    before = {q["address"]: q["run_id"] for q in mzplan(stream, "status", "--json").json()["queries"]}
    write_source(stream, "orders_v2")
    assert apply(stream) == 8
    assert abort(stream, address).code == 0
    assert generations(stream) == ONE
    after = {q["address"]: q["run_id"] for q in mzplan(stream, "status", "--json").json()["queries"]}
    assert after == before
    write_source(stream, "orders")
    assert mzplan(stream, "plan", "--detailed-exitcode").code == 0


def test_a_source_is_replaced_in_place_by_default(stream: Path) -> None:
    write_source(stream, "orders_v2", replace="in-place")
    assert "± source.orders  begins again as generation 2: reads from the start" in mzplan(stream, "plan").out
    assert apply(stream) == 0
    assert generations(stream)["source.orders"] == 2


@pytest.mark.parametrize(
    ("slot", "code"), [({"slot": "shop"}, "MZ413"), ({"publication": "shop"}, ""), ({}, "")]
)
def test_generations_of_a_source_do_not_share_a_slot(tmp_path: Path, slot: dict[str, str], code: str) -> None:
    table = {"connection": "pg", "tables": ["public.t"], "schema": "id INT", "key": ["id"], **slot}
    pg = {"type": "postgres", "host": "h", "database": "d", "user": "u"}
    shop = {
        "connections": {"pg": pg},
        "sources": {"changes": {**table, "lifecycle": {"replace": "side-by-side"}}},
    }
    (tmp_path / "mzplan.yaml").write_text("version: 1\nproject: shop\ninstances: {local: {type: dry}}\n")
    (tmp_path / "shop.yaml").write_text(json.dumps(shop))
    checked = mzplan(tmp_path, "plan")
    assert (code or "MZ413") in checked.err or checked.code == 0
    assert ("MZ413" in checked.err) == bool(code)
