"""`mzplan erase`: what it plans and refuses, what it doesn't reach, and where the condition is meanwhile."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from mzplan.model.tasks import ERASURE, Task
from mzplan.spark.tasks.erasures import outcome_of
from tests.unit import cli_runs

PROJECT = """\
connections:
  k: {type: kafka, brokers: ["a:9092"]}
  pg: {type: postgres, host: h, database: shop, user: app}
  disk: {type: files, path: /lake}
sources:
  people:
    connection: k
    topic: p
    format: {type: json, schema: "id BIGINT, name STRING, tags MAP<STRING, INT>"}
    envelope: {type: upsert, key: [id]}
  orders: {connection: k, topic: o, format: {type: json, schema: "id BIGINT, name STRING, amount INT"}}
views:
  named: {key: [id], query: "SELECT id, name FROM people"}
  counts:
    output: current
    key: [name]
    query: SELECT name, count(*) AS n FROM orders GROUP BY name
  big: {query: "SELECT id, name FROM orders WHERE amount > 10"}
  small: {query: "SELECT id, name FROM orders WHERE amount < 1"}
  totals:
    output: update
    key: [name]
    query: SELECT name, sum(amount) AS total FROM orders GROUP BY name
  looked_up:
    snapshots: [people]
    query: SELECT o.id, p.name FROM orders o JOIN people p ON o.id = p.id
sinks:
  people_pg: {from: people, connection: pg, table: people, mode: upsert, key: [id], select: [id, name]}
  people_history:
    {from: people, connection: pg, table: versions, mode: history, key: [id], select: [id, name]}
  named_pg: {from: named, connection: pg, table: named, mode: upsert, key: [id]}
  counts_pg: {from: counts, connection: pg, table: counts, mode: upsert, key: [name]}
  orders_pg: {from: orders, connection: pg, table: orders, mode: append}
  orders_lake:
    type: delta
    from: orders
    connection: disk
    path: orders
    mode: upsert
    key: [id]
    on_replace: difference
  out: {type: console, from: orders}
  big_pg: {from: big, connection: pg, table: big, mode: upsert, key: [id]}
  totals_pg: {from: totals, connection: pg, table: totals, mode: upsert, key: [name]}
  small_out: {type: console, from: small}
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    cli_runs.write(tmp_path)
    (tmp_path / "pipeline.yaml").write_text(PROJECT)
    cli_runs.apply(tmp_path)
    return tmp_path


def erase(folder: Path, source: str, *options: str, where: str = "name = 'ann'") -> cli_runs.Ran:
    return cli_runs.mzplan(folder, "erase", source, "--where", where, *options, "--auto-approve", "--json")


def changed(ran: cli_runs.Ran) -> dict[str, tuple[str, str]]:
    """The action and its reason, by address."""
    return {change["address"]: (change["action"], change["reason"]) for change in ran.json()["changes"]}


def unreached(ran: cli_runs.Ran) -> dict[str, str]:
    """What the plan says isn't reached: the hint by address."""
    found = [d for d in ran.json()["diagnostics"] if d["code"] == "MZ403" and d["severity"] == "warning"]
    return {d["address"]: d["hint"] for d in found}


def test_the_plan_lists_what_a_source_with_a_key_does_not_reach(shop: Path) -> None:
    ran = erase(shop, "source.people", "--no-replace")
    assert ran.code == 0, ran
    assert changed(ran) == {"source.people": ("restart", "an erase of rows")}
    after = "once the erasure is done"
    assert unreached(ran) == {
        "view.looked_up": f"{after}: mzplan apply --replace view.looked_up --allow-replace",
        "sink.people_history": f"{after} and the sink has read it: remove its rows from versions by hand",
    }


def test_the_plan_lists_what_a_growing_source_does_not_reach(shop: Path) -> None:
    ran = erase(shop, "source.orders", "--no-replace")
    assert ran.code == 0, ran
    assert changed(ran) == {"source.orders": ("restart", "an erase of rows")}
    after = "once the erasure is done"
    by_hand = f"{after} and the sink has read it:"
    assert unreached(ran) == {
        "view.big": f"{after}: mzplan apply --replace view.big --allow-replace",
        "view.small": f"{after}: mzplan apply --replace view.small --allow-replace",
        "view.totals": f"{after}: mzplan apply --replace view.totals --allow-replace",
        "view.looked_up": f"{after}: mzplan apply --replace view.looked_up --allow-replace",
        "sink.big_pg": "nothing more: view.big replaces it, too",
        "sink.small_out": f"{by_hand} remove its rows from its target by hand",
        "sink.totals_pg": "nothing more: view.totals replaces it, too",
        "sink.orders_pg": f"{by_hand} DELETE FROM orders WHERE name = 'ann'",
        "sink.orders_lake": f"{after}: mzplan apply --replace sink.orders_lake --allow-replace",
        "sink.out": f"{by_hand} remove its rows from its target by hand",
    }


ERASED, AGAIN = (
    ("restart", "an erase of rows"),
    ("replace", "it would still count the erased rows"),
)


def test_queries_that_would_still_count_the_rows_are_replaced(shop: Path) -> None:
    ran = erase(shop, "source.orders")
    assert ran.code == 0, ran
    assert changed(ran) == {
        "source.orders": ERASED,
        "sink.orders_lake": AGAIN,
        "view.big": AGAIN,
        "view.totals": AGAIN,
        "sink.big_pg": ("replace", "view.big replaced"),
        "sink.totals_pg": ("replace", "view.totals replaced"),
    }
    by_hand = "once the erasure is done and the sink has read it:"
    assert unreached(ran) == {
        "view.looked_up": "once the erasure is done: mzplan apply --replace view.looked_up --allow-replace",
        "view.small": "once the erasure is done: mzplan apply --replace view.small --allow-replace",
        "sink.small_out": f"{by_hand} remove its rows from its target by hand",
        "sink.orders_pg": f"{by_hand} DELETE FROM orders WHERE name = 'ann'",
        "sink.out": f"{by_hand} remove its rows from its target by hand",
    }
    small = next(d for d in ran.json()["diagnostics"] if d["address"] == "view.small")
    assert small["detail"].endswith("stays. Replacing sink.small_out would write its rows again.")
    generations = cli_runs.mzplan(shop, "status", "--json").json()["queries"]
    assert {q["address"] for q in generations if q["generation"] == 2} == {
        address for address, change in changed(ran).items() if change != ERASED
    }


def test_a_view_that_would_look_up_other_rows_again_is_listed(shop: Path) -> None:
    ran = erase(shop, "source.people")
    assert ran.code == 0, ran
    assert changed(ran) == {"source.people": ERASED}
    assert list(unreached(ran)) == ["sink.people_history", "view.looked_up"]
    found = next(d for d in ran.json()["diagnostics"] if d["address"] == "view.looked_up")
    assert found["detail"].endswith("would join all its rows with source.people as of now.")


def test_a_replaced_view_keeps_its_warnings(shop: Path) -> None:
    """It counts the rows until somebody puts the new generation into service, or resumes its sink."""
    manual = "    lifecycle: {cut_over: manual}\n    query: SELECT name, sum"
    cli_runs.edit(shop, "    query: SELECT name, sum", manual)
    cli_runs.edit(shop, "totals_pg: {", "totals_pg: {paused: true, ")
    cli_runs.apply(shop)
    ran = erase(shop, "source.orders")
    told = {(d["code"], d["address"]): d["summary"] for d in ran.json()["diagnostics"]}
    assert ("MZ045", "view.totals") in told
    assert (
        told["MZ403", "sink.totals_pg"] == "sink.totals_pg is paused, and keeps the rows until it is resumed"
    )


@pytest.mark.parametrize(
    ("view", "why"),
    [
        ("lifecycle: {prevent_destroy: true}", "view.totals must not be replaced."),
        ("paused: true", "It is paused."),
    ],
)
def test_a_view_that_must_not_be_replaced_is_listed(shop: Path, view: str, why: str) -> None:
    cli_runs.edit(
        shop,
        "    key: [name]\n    query: SELECT name, sum",
        f"    {view}\n    key: [name]\n    query: SELECT name, sum",
    )
    cli_runs.apply(shop)
    ran = erase(shop, "source.orders")
    assert ran.code == 0, ran
    assert {"view.totals", "sink.totals_pg"} <= unreached(ran).keys() - changed(ran).keys()
    found = next(d for d in ran.json()["diagnostics"] if d["address"] == "view.totals")
    assert found["detail"].endswith(why)


def test_a_target_that_keeps_other_keys_is_corrected_by_hand(shop: Path) -> None:
    """Only a view that is replaced side by side has both generations to compare."""
    cli_runs.edit(
        shop, "    query: SELECT name, sum", "    lifecycle: {replace: in-place}\n    query: SELECT name, sum"
    )
    cli_runs.apply(shop)
    ran = erase(shop, "source.orders")
    assert changed(ran)["view.totals"] == AGAIN
    assert "remove its rows from totals by hand" in unreached(ran)["sink.totals_pg"]


def test_a_view_of_a_table_that_follows_later_is_replaced_by_hand(shop: Path) -> None:
    """When the erasure is done, the table may still have the rows."""
    cli_runs.edit(shop, "    snapshots: [people]", "    snapshots: [named]")
    cli_runs.edit(shop, "JOIN people p", "JOIN named p")
    cli_runs.apply(shop, "--allow-replace")
    ran = erase(shop, "source.people")
    assert changed(ran) == {"source.people": ERASED}
    assert "view.looked_up" in unreached(ran)


def test_dead_letters_in_other_places_are_listed(shop: Path) -> None:
    def listed() -> list[str]:
        ran = erase(shop, "source.orders", "--no-replace")
        assert ran.code == 0, ran
        return [d["summary"] for d in ran.json()["diagnostics"] if "dead letters" in d["summary"]]

    assert listed() == []
    before = "topic: o, "
    for letters in ("{path: dead/a}", "{topic: lost}", "{path: dead/b}"):
        after = f"topic: o, on_error: dead-letter, dead_letter: {letters}, "
        cli_runs.edit(shop, before, after)
        cli_runs.apply(shop)
        before = after
    assert listed() == ["source.orders: dead letters in folder dead/a and topic lost stay"]


def test_dead_letters_of_views_are_listed_even_after_the_view(shop: Path) -> None:
    def listed() -> dict[str, str]:
        ran = erase(shop, "source.orders", "--no-replace")
        found = [d for d in ran.json()["diagnostics"] if "dead letters" in d["summary"]]
        return {d["address"]: d["summary"].partition(": ")[2] for d in found}

    assert listed() == {}
    query = 'query: "SELECT id, name FROM orders WHERE amount > 10"'
    for folder in ("a", "b"):
        expect = "expect: {e: {not_null: name, on_violation: dead-letter}}"
        cli_runs.edit(shop, f"big: {{{query}", f"big: {{{expect}, dead_letter: {{path: {folder}}}, {query}")
        cli_runs.apply(shop)
        cli_runs.edit(shop, f"{expect}, dead_letter: {{path: {folder}}}, ", "")
    assert listed() == {"view.big": "dead letters in folder a and folder b stay"}
    assert "dead letters" not in erase(shop, "source.people", "--no-replace").out
    text = (shop / "pipeline.yaml").read_text().splitlines(keepends=True)
    (shop / "pipeline.yaml").write_text("".join(line for line in text if "big" not in line))
    cli_runs.apply(shop)
    assert listed() == {"view.big": "dead letters in folder a and folder b stay"}


def test_a_dry_instance_gets_no_condition(shop: Path) -> None:
    """Nothing would ever remove it."""
    assert erase(shop, "source.people").code == 0
    assert list(shop.rglob("erasures/*.json")) == []


def test_a_reader_that_has_stopped_is_restarted_by_hand(shop: Path) -> None:
    files = shop / "pipeline.yaml"
    text = files.read_text().replace("table: named,", "table: named, trigger: available-now,")
    files.write_text(text)
    cli_runs.apply(shop)
    hint = "once the erasure is done: mzplan restart sink.named_pg"
    assert unreached(erase(shop, "source.people"))["sink.named_pg"] == hint


UNSEEN = ("--no-live", "--wait", "0s")


def use_a_cluster(folder: Path) -> None:
    """Make the instance one whose runner isn't started."""
    cli_runs.edit(folder, "type: dry", "type: cluster", "mzplan.yaml")
    assert cli_runs.mzplan(folder, "apply", *UNSEEN, "--auto-approve").code == 8


def test_the_state_and_its_history_never_have_the_condition(shop: Path) -> None:
    use_a_cluster(shop)
    ran = erase(shop, "source.people", *UNSEEN)
    assert ran.code == 8, ran
    (conditions,) = shop.glob("warehouse/checkpoints/*/g1/erasures")
    assert [path.read_text() for path in conditions.iterdir()] == [
        '{"format_version": 1, "where": "name = \'ann\'"}'
    ]
    with_it = [path for path in shop.rglob("*") if path.is_file() and b"ann" in path.read_bytes()]
    assert {path.parent for path in with_it} == {conditions}
    run = partial(cli_runs.mzplan, shop)
    for words in ("history", "history --json", "status --json", "events", "plan", "state show source.people"):
        assert "ann" not in run(*words.split()).out, words


def test_a_refused_or_cancelled_request_leaves_no_condition(shop: Path) -> None:
    use_a_cluster(shop)
    run = partial(cli_runs.mzplan, shop)
    asked = ("erase", "source.people", "--where", "name = 'ann'")
    assert run(*asked).code == 64, "there is no terminal on which to approve it"
    assert list(shop.rglob("erasures/*.json")) == []
    assert run(*asked, "--no-live", "--auto-approve", "--wait", "0s").code in (0, 8)
    assert len(list(shop.rglob("erasures/*.json"))) == 1


@pytest.mark.parametrize(
    ("source", "where", "code", "why"),
    [
        ("source.people", "names = 'ann'", 64, "names isn't a column"),
        ("source.people", "true", 64, "names no column"),
        ("source.people", "", 64, "It is empty"),
        ("source.people", "id > rand()", 64, "another value each time"),
        ("source.people", "tags['a'] = 1", 64, "can't compare the values of tags"),
        ("view.named", "name = 'ann'", 7, "Only the rows of a source"),
        ("sink.out", "name = 'ann'", 7, "Only the rows of a source"),
    ],
)
def test_what_cannot_be_erased_is_refused(shop: Path, source: str, where: str, code: int, why: str) -> None:
    ran = erase(shop, source, where=where)
    assert ran.code == code and ran.error()["code"] == "MZ402" and why in ran.error()["detail"], ran
    assert list(shop.rglob("erasures/*.json")) == []


def test_a_paused_source_is_refused(shop: Path) -> None:
    assert cli_runs.mzplan(shop, "pause", "source.people").code == 0
    assert "mzplan resume source.people" in erase(shop, "source.people").error()["hint"]
    for words in ("erase source.people", "erase source.people --cancel --where id=1"):
        assert cli_runs.mzplan(shop, *words.split(), "--auto-approve").code == 64
    assert cli_runs.mzplan(shop, "erase", "source.people", "--cancel", "--auto-approve").code == 7


def test_the_outcome_has_numbers_and_no_values() -> None:
    task = Task(kind=ERASURE, arguments={}, serial=3, generation=1, title="erase of rows")
    outcome = outcome_of(task, step=4, rows=2, letters=1, unreadable=3)
    assert outcome.text.splitlines() == [
        "2 rows erased from its collection (step 4), 1 dead letter erased",
        "3 dead letters stay: their columns can't be read",
    ]
    assert outcome.facts == {"rows": 2, "step": 4, "dead_letters": 1, "unreadable_dead_letters": 3}
    assert (
        outcome_of(task, step=4, rows=0, letters=0, unreadable=0).text == "0 rows erased from its collection"
    )
