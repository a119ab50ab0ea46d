"""Views by SQL with joins, aggregations and snapshots: what follows from a query, and what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mzplan.config import load_configuration
from mzplan.connectors.catalogue import Connectors
from mzplan.model.address import Address
from mzplan.model.resources import Resource
from mzplan.schema.conformity import fault_of
from mzplan.schema.description import describe
from mzplan.store.formats import decode_state
from tests.unit.cli_runs import run
from tests.unit.config_files import all_text, brief, errors, write

SOURCES = """\
sources:
  orders: {type: local, schema: "id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2), ts TIMESTAMP, \
tags ARRAY<STRING>, lines ARRAY<STRUCT<sku: STRING, n: INT>>"}
  payments: {type: local, schema: "id BIGINT, paid DOUBLE, ts TIMESTAMP"}
  customers: {type: local, schema: "customer STRING, city STRING", key: [customer]}
  locals: {type: local, schema: "customer STRING, ts TIMESTAMP_NTZ"}
"""
SETTINGS = "version: 1\nproject: shop\ninstances: {local: {type: dry}}\n"
ORDERS_MARK = {"orders": {"column": "ts", "delay": "10 minutes"}}
MARKS = {**ORDERS_MARK, "payments": {"column": "ts", "delay": "1h"}}
BY_MINUTE = "GROUP BY customer, window(ts, '1 minute')"


def view_of(folder: Path, query: str, **more: Any) -> Resource:
    """Return the only view of a project."""
    body = json.dumps({"query": query, **more})
    files = {"a.yaml": f"{SOURCES}views:\n  v: {body}\n"}
    return load_configuration(write(folder, files)).resources[Address("view", "v")]


@pytest.mark.parametrize(
    ("query", "more", "reads", "schema"),
    [
        (
            f"SELECT customer, window(ts, '1 minute').start AS minute, sum(amount) AS s, count(*) AS n, "
            f"avg(amount) AS a, max(struct(ts, id)).id AS last FROM orders {BY_MINUTE}",
            {"watermarks": ORDERS_MARK},
            ["orders"],
            "customer STRING, minute TIMESTAMP, s DECIMAL(20,2), n BIGINT, a DECIMAL(14,6), last BIGINT",
        ),
        (
            "SELECT o.id, p.paid FROM orders o JOIN payments p ON o.id = p.id",
            {},
            ["orders", "payments"],
            "id BIGINT, paid DOUBLE",
        ),
        (
            "SELECT o.id, p.paid FROM orders o LEFT JOIN payments p "
            "ON o.id = p.id AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 5 MINUTES",
            {"watermarks": MARKS},
            ["orders", "payments"],
            "id BIGINT, paid DOUBLE",
        ),
        (
            "SELECT * FROM (SELECT customer, id FROM orders) o LEFT JOIN customers USING (customer)",
            {"snapshots": ["customers"]},
            ["orders"],
            "customer STRING, id BIGINT, city STRING",
        ),
        (
            "WITH t AS (SELECT id, tag FROM orders LATERAL VIEW explode(tags) e AS tag) "
            "SELECT t.id, tag FROM t UNION ALL SELECT id, 'paid' FROM payments",
            {},
            ["orders", "payments"],
            "id BIGINT, tag STRING",
        ),
        (
            "SELECT x.*, count(*) AS n FROM (SELECT customer, id FROM orders) x GROUP BY ALL",
            {"output": "update", "key": ["customer", "id"]},
            ["orders"],
            "customer STRING, id BIGINT, n BIGINT",
        ),
        (
            "SELECT w.end AS e, count(*) AS n FROM (SELECT window(ts, '1 hour') AS w FROM orders) GROUP BY w",
            {"watermarks": ORDERS_MARK},
            ["orders"],
            "e TIMESTAMP, n BIGINT",
        ),
        ("SELECT id, inline(lines) FROM orders", {}, ["orders"], "id BIGINT, sku STRING, n INT"),
        (
            "SELECT id, exists(tags, t -> t = 'x') AS x FROM orders UNION ALL SELECT id, NULL FROM payments",
            {},
            ["orders", "payments"],
            "id BIGINT, x BOOLEAN",
        ),
        (
            "SELECT id, posexplode(tags) AS (p, t) FROM orders",
            {},
            ["orders"],
            "id BIGINT, p INT, t STRING",
        ),
        (
            "SELECT customer AS c, count(id) AS n, n + 1 AS m FROM orders GROUP BY 1 HAVING n > 2",
            {"output": "update", "key": ["c"]},
            ["orders"],
            "c STRING, n BIGINT, m BIGINT",
        ),
        (
            "SELECT sum(n) AS n, window(window_time(w), '1 hour') AS h FROM "
            "(SELECT window(ts, '1 minute') AS w, count(*) AS n FROM orders GROUP BY window(ts, '1 minute')) "
            "GROUP BY 2",
            {"watermarks": ORDERS_MARK},
            ["orders"],
            "n BIGINT, h STRUCT<start: TIMESTAMP,end: TIMESTAMP>",
        ),
    ],
)
def test_its_inputs_and_columns_follow_from_the_query(
    tmp_path: Path, query: str, more: dict[str, Any], reads: list[str], schema: str
) -> None:
    body = view_of(tmp_path, query, **more).body
    assert (body["reads"], body["schema"]) == (reads, schema) and "from" not in body


def test_state_is_the_same_for_the_same_query(tmp_path: Path) -> None:
    query = f"SELECT customer, count(*) AS n FROM orders {BY_MINUTE}"
    same = f"select CUSTOMER, -- who\n  count( * ) as N\nfrom orders {BY_MINUTE.lower()};"
    other = query.replace("1 minute", "2 minutes")
    states = [view_of(tmp_path, text, watermarks=ORDERS_MARK).body["state"] for text in (query, same, other)]
    assert states[0] == states[1] != states[2]
    assert "state" not in view_of(tmp_path, "SELECT id, explode(tags) AS tag FROM orders").body


@pytest.mark.parametrize(
    ("query", "more", "words"),
    [
        (
            f"SELECT customer, count(*) AS n FROM orders {BY_MINUTE}",
            {},
            ["append mode needs a watermark", "`watermarks: {orders: {column: ts, delay: 10 minutes}}`"],
        ),
        (
            "SELECT DISTINCT customer FROM orders",
            {},
            ["a DISTINCT in append mode needs a watermark", "`key: [customer]`, with GROUP BY in place of"],
        ),
        (
            "SELECT DISTINCT customer FROM orders",
            {"watermarks": ORDERS_MARK},
            ["the SELECT leaves out ts of orders, which has the watermark", "select ts;"],
        ),
        (
            "SELECT customer, count(*) AS n FROM orders GROUP BY customer",
            {"watermarks": ORDERS_MARK},
            ["the GROUP BY leaves out ts of orders", "window(ts, '1 minute')", "`key: [customer]`"],
        ),
        (
            "SELECT o.id FROM orders o LEFT JOIN payments p ON o.id = p.id",
            {},
            [
                "outer join of two streams needs a watermark on both",
                "{orders: {column: ts, delay: 10 minutes}, payments: {column: ts, delay: 10 minutes}}",
                "BETWEEN",
            ],
        ),
        (
            "SELECT o.id FROM orders o LEFT JOIN payments p ON o.id = p.id",
            {"watermarks": MARKS},
            [
                "outer join of two streams needs a limited time in ON",
                "limit it: ON … AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR.",
            ],
        ),
        (
            "SELECT o.id FROM orders o LEFT JOIN payments p ON o.id = p.id AND p.ts BETWEEN o.ts AND o.ts + "
            "INTERVAL 1 HOUR",
            {},
            ["needs a watermark on both", "payments: {column: ts, delay: 10 minutes}}`."],
        ),
        ("SELECT id FROM orders JOIN payments USING (id) ORDER BY id", {}, ["a stream has no end: ORDER BY"]),
        ("SELECT id FROM orders JOIN payments USING (id) LIMIT 3", {}, ["a stream has no end: LIMIT"]),
        ("SELECT id, sum(amount) OVER (PARTITION BY id) AS s FROM orders", {}, ["window functions (OVER)"]),
        (
            "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY id ORDER BY ts) AS n FROM orders) "
            "WHERE n = 1",
            {},
            ["window functions (OVER)", "keep a row of each key", "max_by(column, time)"],
        ),
        (
            "SELECT id FROM orders EXCEPT SELECT id FROM payments",
            {},
            ["EXCEPT can't be computed over streams"],
        ),
        (
            "SELECT id FROM orders JOIN payments ON true",
            {},
            ["id is a column of", "write orders.id"],
        ),
        (
            "SELECT o.id, amunt FROM orders o JOIN payments USING (id)",
            {},
            ['"amunt"', '"amount"'],
        ),
        ("SELECT o.id FROM orders o JOIN payments USING (ids)", {}, ['Unknown column "ids"']),
        ("SELECT o.id FROM orders o JOIN paymens p USING (id)", {}, ["MZ012", 'did you mean "payments"']),
        ("SELECT id FROM orders JOIN customers USING (customer)", {}, ["MZ020", "snapshots: [customers]"]),
        (
            "SELECT city, count(*) AS n FROM customers GROUP BY city",
            {"output": "update", "key": ["city"]},
            ["MZ020", "write customers to a target with a sink"],
        ),
        (
            "SELECT city FROM customers c LEFT JOIN orders USING (customer)",
            {"snapshots": ["customers"]},
            ["rows without a match", "FROM stream LEFT JOIN snapshot"],
        ),
        (
            "SELECT city FROM customers JOIN customers d USING (city)",
            {"snapshots": ["customers"]},
            ["a stream"],
        ),
        (
            "SELECT id FROM orders UNION ALL SELECT 1 AS id FROM customers",
            {"snapshots": ["customers"]},
            ["would add the rows of the snapshot at each micro-batch"],
        ),
        (
            "SELECT city, count(*) AS n FROM orders JOIN customers USING (customer) GROUP BY city",
            {"snapshots": ["customers"], "output": "update", "key": ["city"]},
            ["keeps state, and a view with snapshots can't", "in a view of their own"],
        ),
        (
            "SELECT o.id FROM orders o JOIN payments p USING (id) JOIN customers USING (customer)",
            {"snapshots": ["customers"]},
            ["a view with snapshots reads one stream"],
        ),
        (
            "SELECT id, explode(tags) AS tag FROM orders",
            {"snapshots": ["custmers"]},
            ["MZ012", "custmers"],
        ),
        (
            f"SELECT count(*) AS n FROM orders {BY_MINUTE}",
            {"watermarks": {"orders": {"column": "amount", "delay": "1h"}}},
            ["needs a column of type TIMESTAMP", '"amount" is DECIMAL(10,2)', "write ts."],
        ),
        (
            f"SELECT count(*) AS n FROM orders o {BY_MINUTE}",
            {"watermarks": {"o": {"column": "ts", "delay": "1h"}}},
            ['reads no stream "o"', "write orders, not its alias."],
        ),
        (
            "SELECT customer, count(*) AS n FROM orders GROUP BY customer",
            {"output": "complete", "key": ["customer"]},
            ["MZ005", "append, update"],
        ),
        (
            "SELECT id, explode(tags) AS tag FROM orders",
            {"watermarks": {"order": {"column": "ts", "delay": "1h"}}},
            ['reads no stream "order"', 'did you mean "orders"'],
        ),
        (
            "SELECT customer, count(*) AS n FROM orders GROUP BY customer",
            {"output": "update"},
            ["write `key: [customer]`"],
        ),
        (
            "SELECT id, explode(tags) AS tag FROM orders",
            {"key": ["id"]},
            ["a view that only adds rows has no key", "remove `key`"],
        ),
        (
            "SELECT customer, count(*) AS n FROM orders GROUP BY customer",
            {"output": "update", "key": ["n"]},
            ["write `key: [customer]`"],
        ),
        (
            "SELECT count(*) AS n FROM orders GROUP BY customer",
            {"output": "update", "key": ["n"]},
            ["leaves out an expression of the GROUP BY"],
        ),
        ("SELECT id FROM orders", {"output": "update", "key": ["id"]}, ["needs a GROUP BY in the outermost"]),
        (
            "SELECT customer, explode(collect_set(id)) AS id FROM orders GROUP BY customer",
            {"output": "update", "key": ["customer"]},
            ["makes several rows of a group", "LATERAL VIEW"],
        ),
        (
            "SELECT map('a', customer) AS m, count(*) AS n FROM orders GROUP BY 1",
            {"output": "update", "key": ["m"]},
            ["m is a MAP", "map_entries"],
        ),
        (
            "SELECT customer, count(*) AS n FROM (SELECT DISTINCT customer FROM orders) GROUP BY customer",
            {"output": "update", "key": ["customer"]},
            ["a DISTINCT and an aggregation keep state", "in update mode"],
        ),
        (
            "SELECT customer, max(now()) AS n FROM orders GROUP BY customer",
            {"output": "update", "key": ["customer"]},
            ["changes each time"],
        ),
        (
            "SELECT customer, max(my_own(id)) AS n FROM orders GROUP BY customer",
            {"output": "update", "key": ["customer"]},
            ["MZ301", 'The type of "n" is known only to Spark'],
        ),
        (
            "SELECT id, sum(amount) FROM orders GROUP BY id",
            {"watermarks": ORDERS_MARK},
            ["SUM(amount) AS name"],
        ),
        (
            "SELECT customer, count(DISTINCT id) AS n FROM orders GROUP BY customer",
            {"output": "update", "key": ["customer"]},
            ["has DISTINCT", "approx_count_distinct"],
        ),
        (
            "SELECT o.id FROM orders o JOIN payments p ON window(o.ts, '1 hour') = window(p.ts, '1 hour')",
            {},
            ["window can't stand in the condition of a JOIN", "select it in a subquery"],
        ),
        ("SELECT id, (amount).x AS a, explode(tags) AS t FROM orders", {}, ["MZ301", '"a" is known only']),
        ("SELECT id, inline(tags) FROM orders", {}, ["inline(…) needs an ARRAY<STRUCT<…>>"]),
        ("SELECT id, explode(tags) AS t, NULL AS a FROM orders", {}, ["MZ301", '"a" is known only']),
        (
            "SELECT id, explode(tags) AS t FROM orders WHERE EXISTS (SELECT 1 FROM payments)",
            {},
            ["an expression contains a subquery"],
        ),
        (
            f"SELECT id, explode(tags) AS t, {'id + ' * 1500}id AS x FROM orders",
            {},
            ["nested too deep", "in a subquery"],
        ),
        (
            f"SELECT count(*) AS n FROM locals {BY_MINUTE}",
            {"watermarks": {"locals": {"column": "ts", "delay": "1h"}}},
            ["needs a column of type TIMESTAMP", "CAST(ts AS TIMESTAMP)"],
        ),
        *(
            (
                f"SELECT {edge} AS at, count(*) AS n FROM (SELECT *, window(ts, '1 hour') AS w FROM orders) "
                f"GROUP BY {by}",
                {"watermarks": ORDERS_MARK},
                ["only the start or end of a window", "group by the window"],
            )
            for edge, by in (
                ("window(ts, '1 hour').end", "window(ts, '1 hour').end"),
                ("window(ts, '1 hour').start", "at"),
                ("w.start", "w.start"),
            )
        ),
        (
            "SELECT customer, count(*) AS n FROM orders WHERE ts > to_date('today') GROUP BY customer",
            {"output": "update", "key": ["customer"]},
            ["'today' changes each time"],
        ),
        (
            "SELECT w.* FROM (SELECT struct(id, ts) AS w FROM orders) x",
            {},
            ["w is a column, and `w.*` has no fixed names", "list its fields: w.field"],
        ),
        ("SELECT FROM orders GROUP BY customer", {"output": "update"}, ["it selects no column"]),
        ("SELECT id FROM orders UNION ALL BY NAME SELECT id FROM payments", {}, ["BY NAME isn't allowed"]),
        ("SELECT id, id FROM orders JOIN payments USING (id)", {}, ["two columns are called id"]),
        ("SELECT id FROM orders JOIN orders USING (id)", {}, ["two relations are called orders"]),
        ("SELECT id FROM orders WHERE sum(id) > 1 GROUP BY id", {}, ["WHERE has an aggregate function"]),
        (
            "SELECT count(*) AS n, * EXCEPT (amount, ts, tags, lines) FROM orders GROUP BY 2, 3",
            {"output": "update", "key": ["customer", "id"]},
            ["GROUP BY uses the number of an item beside `*`"],
        ),
        ("SELECT id FROM orders GROUP BY CUBE (id)", {}, ["write one view for each grouping"]),
        (
            "SELECT id FROM orders JOIN payments USING (id)",
            {"schema": "id STRING"},
            ["MZ230", "In its query, id is BIGINT"],
        ),
    ],
)
def test_what_can_not_be_computed_names_the_rule(
    tmp_path: Path, query: str, more: dict[str, Any], words: list[str]
) -> None:
    body = json.dumps({"query": query, **more})
    found = errors(tmp_path, {"a.yaml": f"{SOURCES}views:\n  v: {body}\n"})
    assert len(found) == 1 and found[0].range is not None
    text = f"{found[0].code} {all_text(found)}"
    assert all(word in text for word in words), text


def test_a_query_reads_a_hundred_times_at_most(tmp_path: Path) -> None:
    """Spark computes a name in WITH, or an inlined view, again wherever it is read."""
    twice = "SELECT id FROM {0} UNION ALL SELECT id FROM {0}"
    names = ", ".join(f"c{n} AS ({twice.format(f'c{n - 1}')})" for n in range(1, 20))
    query = f"WITH c0 AS (SELECT id FROM orders), {names} SELECT id FROM c"
    assert view_of(tmp_path, f"{query}6").body["reads"] == ["orders"]
    found = errors(tmp_path, {"a.yaml": f"{SOURCES}views: {json.dumps({'v': {'query': f'{query}19'}})}\n"})
    assert len(found) == 1 and "would read collections 524,288 times" in all_text(found)

    views: dict[str, Any] = {
        f"v{n}": {"query": twice.format(f"v{n - 1}" if n else "orders"), "materialize": False}
        for n in range(6)
    }
    views["v"] = {"query": f"WITH x AS ({twice.format('v5')}) SELECT id FROM x"}
    found = errors(tmp_path, {"a.yaml": f"{SOURCES}views: {json.dumps(views)}\n"})
    assert len(found) == 1 and "would read collections 128 times" in all_text(found)
    views["v"] = {"query": "SELECT id FROM v5"}
    assert not errors(tmp_path, {"a.yaml": f"{SOURCES}views: {json.dumps(views)}\n"})


def test_an_error_is_at_its_place(tmp_path: Path) -> None:
    query = "      SELECT o.id,\n        p.payed\n      FROM orders o\n      JOIN payments p USING (id)\n"
    found = errors(tmp_path, {"a.yaml": f"{SOURCES}views:\n  v:\n    query: |\n{query}"})
    assert brief(found) == ['a.yaml:10:11 MZ019 Unknown column "payed"']


def test_an_inlined_view_is_part_of_a_query_that_joins(tmp_path: Path) -> None:
    views = """\
views:
  large: {materialize: false, query: "SELECT id, customer, ts FROM orders -- all\\n WHERE amount > 10"}
  tagged: {materialize: false, query: "SELECT id, explode(tags) AS tag FROM orders"}
  paid: {query: "SELECT large.id, paid FROM large JOIN payments p ON large.id = p.id"}
  tags: {query: "SELECT tag FROM tagged WHERE tag <> ''"}
"""
    resources = load_configuration(write(tmp_path, {"a.yaml": SOURCES + views})).resources
    paid, tags = resources[Address("view", "paid")], resources[Address("view", "tags")]
    assert paid.body["query"].startswith("SELECT large.id, paid FROM (SELECT id, customer, ts FROM orders")
    assert paid.body["query"].endswith(") AS large JOIN payments p ON large.id = p.id")
    assert paid.body["reads"] == ["orders", "payments"] and paid.through == ("large",)
    assert tags.body["reads"] == ["orders"] and tags.body["schema"] == "tag STRING"

    wrong = views.replace("SELECT large.id, paid", "SELECT large.id, amount")
    found = errors(tmp_path, {"a.yaml": SOURCES + wrong})
    assert brief(found) == ['a.yaml:9:35 MZ019 Unknown column "amount"']

    sink = f"{views}sinks:\n  out: {{type: console, from: tagged}}\n"
    found = errors(tmp_path, {"a.yaml": SOURCES + sink})
    assert [d.code for d in found] == ["MZ304"] and "only another view can read it" in all_text(found)


@pytest.mark.parametrize(
    "query",
    [
        "WITH payments AS (SELECT id FROM orders) SELECT k.id FROM known k JOIN payments USING (id)",
        # payments is read by its name, too: where WITH doesn't hide it.
        "WITH payments AS (SELECT id FROM payments WHERE paid > 9) SELECT k.id FROM known k JOIN payments p "
        "ON p.id = k.id",
        "SELECT p.id FROM payments p JOIN (WITH payments AS (SELECT id FROM orders) SELECT payments.id FROM "
        "payments JOIN outer_known k ON k.id = payments.id) q ON q.id = p.id",
    ],
)
def test_no_name_in_with_hides_what_an_inlined_view_reads(tmp_path: Path, query: str) -> None:
    views = {
        "known": {"materialize": False, "query": "SELECT id FROM payments"},
        "outer_known": {"materialize": False, "query": "SELECT id FROM known WHERE id > 1"},
        "v": {"query": query},
    }
    found = errors(tmp_path, {"a.yaml": f"{SOURCES}views: {json.dumps(views)}\n"})
    assert "a name in WITH hides payments" in all_text(found) and len(found) == 1


def test_the_name_of_an_inlined_view_may_stand_in_backquotes(tmp_path: Path) -> None:
    query = "SELECT `left`.id FROM `left` JOIN orders o ON o.id = `left`.id"
    views = {
        "left": {"materialize": False, "query": "SELECT id FROM `payments`"},
        "v": {"query": query},
    }
    files = write(tmp_path, {"a.yaml": f"{SOURCES}views: {json.dumps(views)}\n"})
    view = load_configuration(files).resources[Address("view", "v")]
    inlined = "FROM (SELECT id FROM `payments`) AS `left` JOIN"
    assert view.body["query"] == query.replace("FROM `left` JOIN", inlined)
    assert view.body["reads"] == ["payments", "orders"]


def test_an_inlined_view_is_no_snapshot(tmp_path: Path) -> None:
    """Its SQL is, over the snapshots that it reads."""
    query = "SELECT o.id, k.city FROM orders o LEFT JOIN known k USING (customer)"
    known = {"materialize": False, "query": "SELECT customer, upper(city) AS city FROM customers"}
    views: dict[str, Any] = {"known": known, "v": {"query": query, "snapshots": ["known"]}}
    found = errors(tmp_path, {"a.yaml": f"{SOURCES}views: {json.dumps(views)}\n"})
    assert "known has no stored rows" in all_text(found) and "write `snapshots: [customers]`" in all_text(
        found
    )
    views["v"]["snapshots"] = ["customers"]
    files = write(tmp_path, {"a.yaml": f"{SOURCES}views: {json.dumps(views)}\n"})
    view = load_configuration(files).resources[Address("view", "v")]
    assert view.body["snapshots"] == ["customers"] and view.body["schema"] == "id BIGINT, city STRING"


def test_an_inlined_view_has_no_watermark(tmp_path: Path) -> None:
    """The stream below it has."""
    query = f"SELECT customer, count(*) AS n FROM large {BY_MINUTE}"
    large = {"materialize": False, "query": "SELECT * FROM orders WHERE amount > 10"}
    mark = ORDERS_MARK["orders"]
    views: dict[str, Any] = {"large": large, "v": {"query": query, "watermarks": {"large": mark}}}
    found = errors(tmp_path, {"a.yaml": f"{SOURCES}views: {json.dumps(views)}\n"})
    assert "large has no stored rows, so it can't have a watermark" in all_text(found)
    assert "write `orders` in place of large" in all_text(found)
    views["v"]["watermarks"] = {"orders": mark}
    files = write(tmp_path, {"a.yaml": f"{SOURCES}views: {json.dumps(views)}\n"})
    assert load_configuration(files).resources[Address("view", "v")].body["reads"] == ["orders"]


def test_another_query_replaces_what_keeps_state_and_restarts_the_rest(tmp_path: Path) -> None:
    count = {
        "query": "SELECT customer, count(*) AS n FROM orders GROUP BY customer",
        "output": "update",
        "key": ["customer"],
    }
    views = {"counted": count, "tagged": {"query": "SELECT id, explode(tags) AS tag FROM orders"}}
    files = {"mzplan.yaml": SETTINGS, "a.yaml": f"{SOURCES}views: {json.dumps(views)}\n"}
    folder = write(tmp_path, files)
    assert run("-C", folder, "apply", "--auto-approve").code == 0
    assert run("-C", folder, "plan", "--json").json()["changes"] == []

    changed = files["a.yaml"].replace("FROM orders GROUP", "FROM orders WHERE id > 1 GROUP")
    changed = changed.replace("AS tag FROM orders", "AS tag FROM orders WHERE id > 1")
    (Path(folder) / "a.yaml").write_text(changed)
    plan = run("-C", folder, "plan", "--json").json()
    effects = {change["address"]: change["effect"] for change in plan["changes"]}
    assert effects == {"view.counted": "replace", "view.tagged": "restart"}
    queries = {change["address"]: change["query"] for change in plan["changes"]}
    assert queries["view.counted"]["state"] == "unknown" and queries["view.tagged"]["state"] == "kept"
    assert "+SELECT id, explode(tags) AS tag FROM orders WHERE id > 1" in queries["view.tagged"]["diff"]
    assert "its state can't be kept: another query" in run("-C", folder, "plan").out


def test_what_reads_views_of_a_join_conforms(tmp_path: Path) -> None:
    """The positions of no source reach them."""
    views = {
        "paid": {"query": "SELECT o.customer, o.ts FROM orders o JOIN payments p USING (id)"},
        "hourly": {
            "query": f"SELECT customer, count(*) AS n FROM paid {BY_MINUTE}",
            "watermarks": {"paid": {"column": "ts", "delay": "1h"}},
        },
        "large": {"query": "SELECT customer FROM hourly WHERE n > 3"},
    }
    sinks = {name: {"type": "console", "from": name} for name in views}
    text = f"{SOURCES}views: {json.dumps(views)}\nsinks: {json.dumps(sinks)}\n"
    folder = write(tmp_path, {"mzplan.yaml": SETTINGS, "a.yaml": text})
    assert run("-C", folder, "apply", "--auto-approve").code == 0
    file = Path(folder) / "state" / "mzplan.state.json"
    resources = decode_state(file.read_bytes(), str(file)).resources
    queries = [describe(record, resources) for record in resources.values() if record.reads]
    assert len(queries) == 6
    assert not any(map(fault_of, queries)), [*map(fault_of, queries)]
    assert all(Connectors().position(query) for query in queries)


@pytest.mark.parametrize(
    ("before", "after", "replaced"),
    [
        ("a INT, b INT, ts TIMESTAMP", "a INT, b INT, ts TIMESTAMP, c INT", {"every", "inner"}),
        # Spark compares the types of the state by position: it would take (1, 2) for (2, 1).
        ("a INT, b INT, ts TIMESTAMP", "b INT, a INT, ts TIMESTAMP", {"every", "inner"}),
    ],
)
def test_a_star_that_stands_for_other_columns_replaces_what_keeps_state(
    tmp_path: Path, before: str, after: str, replaced: set[str]
) -> None:
    mark = {"pairs": {"column": "ts", "delay": "1 minute"}}
    views = {
        "every": {"query": "SELECT DISTINCT * FROM pairs", "watermarks": mark},
        "inner": {"query": "SELECT a, b FROM (SELECT DISTINCT * FROM pairs) x", "watermarks": mark},
        "named": {"query": "SELECT DISTINCT a, ts FROM pairs", "watermarks": mark},
        "all": {"query": "SELECT * FROM pairs UNION ALL SELECT * FROM pairs"},
    }
    source = "sources: {pairs: {type: local, schema: '%s'}}\nviews: " + json.dumps(views)
    folder = write(tmp_path, {"mzplan.yaml": SETTINGS, "a.yaml": source % before})
    assert run("-C", folder, "apply", "--auto-approve").code == 0
    (Path(folder) / "a.yaml").write_text(source % after)
    plan = run("-C", folder, "plan", "--json").json()
    effects = {change["address"]: change["effect"] for change in plan["changes"]}
    names = {"every", "inner", "named", "all"}
    assert effects == {
        "source.pairs": "restart",
        **{f"view.{name}": "replace" if name in replaced else "restart" for name in names},
    }
    (changed,) = (change["query"] for change in plan["changes"] if change["address"] == "view.inner")
    assert (changed["state"], changed["because"]) == ("lost", "`*` now selects other columns")


def test_blanks_and_comments_change_nothing(tmp_path: Path) -> None:
    """Nor does another way to write a duration. Other letters do: `to_json` writes names of fields."""
    views: dict[str, Any] = {
        "counted": {
            "query": f"SELECT orders.customer, count(*) AS n FROM orders {BY_MINUTE}",
            "watermarks": ORDERS_MARK,
        },
        "few": {"query": "SELECT id, to_json(struct(id AS Id)) AS j FROM orders WHERE id > 1"},
        "large": {"query": "SELECT id FROM orders", "materialize": False},
        "both": {"query": "SELECT id FROM payments UNION ALL SELECT id FROM large"},
    }
    files = {"mzplan.yaml": SETTINGS, "a.yaml": f"{SOURCES}views: {json.dumps(views)}\n"}
    folder = write(tmp_path, files)
    assert run("-C", folder, "apply", "--auto-approve").code == 0
    for view in views.values():
        view["query"] = view["query"].replace(" FROM", "  -- who\n  FROM") + " ;"
    views["counted"]["watermarks"] = {"orders": {"column": "ts", "delay": "600s"}}
    (Path(folder) / "a.yaml").write_text(f"{SOURCES}views: {json.dumps(views)}\n")
    plan = run("-C", folder, "plan", "--json").json()
    effects = {change["address"]: change["effect"] for change in plan["changes"]}
    assert effects == dict.fromkeys(["view.both", "view.counted", "view.few"], "in-place")
    shown = run("-C", folder, "plan").out
    assert "other rows" not in shown and "affects only new rows" not in shown and "0 to restart" in shown
    assert run("-C", folder, "apply", "--auto-approve").code == 0
    assert run("-C", folder, "plan", "--json").json()["changes"] == []

    views["few"]["query"] = views["few"]["query"].replace("AS Id", "AS ID")
    (Path(folder) / "a.yaml").write_text(f"{SOURCES}views: {json.dumps(views)}\n")
    shown = run("-C", folder, "plan").out
    assert "1 query writes other rows" in shown and "view.few  restarts from its checkpoint" in shown


def test_a_join_whose_state_grows_without_end_is_named(tmp_path: Path) -> None:
    timed = "SELECT o.id FROM orders o JOIN payments p ON o.id = p.id AND p.ts BETWEEN o.ts AND o.ts + "
    views: dict[str, Any] = {
        "on": {"query": "SELECT o.id, p.paid FROM orders o JOIN payments p ON o.id = p.id"},
        "comma": {"query": "SELECT o.id, p.paid FROM orders o, payments p WHERE o.id = p.id"},
        "twice": {"query": "SELECT a.id FROM orders a JOIN (SELECT id FROM orders) b ON a.id = b.id"},
        "timed": {"query": f"{timed} INTERVAL 1 HOUR", "watermarks": MARKS},
        "looked_up": {"query": "SELECT id FROM orders JOIN customers USING (customer)"},
        "both": {"query": "SELECT id FROM orders UNION ALL SELECT id FROM payments"},
    }
    views["looked_up"]["snapshots"] = ["customers"]
    files = {"mzplan.yaml": SETTINGS, "a.yaml": f"{SOURCES}views: {json.dumps(views)}\n"}
    folder = write(tmp_path, files)
    found = {d["address"]: d for d in run("-C", folder, "plan", "--json").json()["diagnostics"]}
    assert found.keys() == {"view.on", "view.comma", "view.twice"}
    warning = found["view.on"]
    assert (warning["severity"], warning["code"]) == ("warning", "MZ045")
    assert "rows of orders and payments" in warning["detail"]
    assert "{orders: {column: ts, delay: 10 minutes}, payments: {column: ts" in warning["hint"]
    assert "ON … AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR" in warning["hint"]


def test_a_replaced_snapshot_is_named(tmp_path: Path) -> None:
    """Rows that come while it fills again find no match, for good."""
    join = "FROM orders o LEFT JOIN {} c USING (customer)"
    views: dict[str, Any] = {
        "cities": {"query": f"SELECT o.id, c.city {join.format('customers')}", "snapshots": ["customers"]},
        "others": {"query": f"SELECT o.id, c.ts {join.format('locals')}", "snapshots": ["locals"]},
    }
    files = {"mzplan.yaml": SETTINGS, "a.yaml": f"{SOURCES}views: {json.dumps(views)}\n"}
    folder = write(tmp_path, files)
    assert run("-C", folder, "apply", "--auto-approve").code == 0
    replace = ("-C", folder, "plan", "--json", "--replace", "source.customers")
    plan = run(*replace).json()
    assert {c["address"]: c["effect"] for c in plan["changes"]} == {
        "source.customers": "replace",
        "view.cities": "restart",
    }
    (found,) = plan["diagnostics"]
    assert (found["severity"], found["code"], found["address"]) == ("warning", "MZ045", "view.cities")
    assert "source.customers in snapshots" in found["summary"] and "mzplan pause view.cities" in found["hint"]

    assert run("-C", folder, "pause", "view.cities").code == 0
    assert [d["severity"] for d in run(*replace).json()["diagnostics"]] == ["notice"]


def test_settings_without_an_effect_change_nothing(tmp_path: Path) -> None:
    """Neither a default nor the partitions of a state that isn't kept."""
    views: dict[str, Any] = {
        "rows": {"query": "SELECT id FROM orders"},
        "both": {"query": "SELECT id FROM payments UNION ALL SELECT id FROM orders"},
        "counted": {
            "query": f"SELECT customer, count(*) AS n FROM orders {BY_MINUTE}",
            "watermarks": ORDERS_MARK,
        },
    }
    files = {"mzplan.yaml": SETTINGS, "a.yaml": f"{SOURCES}views: {json.dumps(views)}\n"}
    folder = write(tmp_path, files)
    assert run("-C", folder, "apply", "--auto-approve").code == 0
    for partitions, changed in ((4, {}), (8, {"view.counted": "replace"})):
        for view in views.values():
            view.update(output="append", partitions=partitions)
        (Path(folder) / "a.yaml").write_text(f"{SOURCES}views: {json.dumps(views)}\n")
        plan = run("-C", folder, "plan", "--json").json()
        assert {change["address"]: change["effect"] for change in plan["changes"]} == changed


def test_a_renamed_input_keeps_the_state(tmp_path: Path) -> None:
    views = {
        "counted": {
            "query": f"SELECT orders.customer, count(*) AS n FROM orders {BY_MINUTE}",
            "watermarks": ORDERS_MARK,
        }
    }
    files = {"mzplan.yaml": SETTINGS, "a.yaml": f"{SOURCES}views: {json.dumps(views)}\n"}
    folder = write(tmp_path, files)
    assert run("-C", folder, "apply", "--auto-approve").code == 0
    renamed = run("-C", folder, "alter", "ALTER SOURCE orders RENAME TO sales", "--auto-approve", "--json")
    effects = {change["address"]: change["effect"] for change in renamed.json()["changes"]}
    assert effects == {"source.sales": "restart", "view.counted": "restart"}
    shown = renamed.json()
    assert not [d for d in shown.get("diagnostics", ()) if d["code"] == "MZ045"]
    assert "SELECT sales.customer" in (Path(folder) / "a.yaml").read_text()
    assert run("-C", folder, "plan", "--json").json()["changes"] == []


@pytest.mark.parametrize("name", ["left", "on", "values", "union", "where"])
def test_a_collection_may_have_a_word_of_sql_as_its_name(tmp_path: Path, name: str) -> None:
    views = {
        "both": {"query": "SELECT orders.id FROM payments p JOIN orders ON orders.id = p.id"},
        "few": {"query": "SELECT orders.id FROM orders WHERE orders.id > 1"},
    }
    files = {"mzplan.yaml": SETTINGS, "a.yaml": f"{SOURCES}views: {json.dumps(views)}\n"}
    folder = write(tmp_path, files)
    assert run("-C", folder, "apply", "--auto-approve").code == 0
    renamed = run("-C", folder, "alter", f"ALTER SOURCE orders RENAME TO {name}", "--auto-approve", "--json")
    text = (Path(folder) / "a.yaml").read_text()
    assert renamed.code == 0 and f"JOIN `{name}` ON `{name}`.id" in text and f"FROM `{name}` WHERE" in text
    assert run("-C", folder, "plan", "--json").json()["changes"] == []


@pytest.mark.parametrize("command", ["plan --replace", "plan --target", "graph --impact", "ddl"])
def test_a_view_without_a_query_is_not_called_undeclared(tmp_path: Path, command: str) -> None:
    views = {
        "paid": {"query": "SELECT id FROM orders WHERE id > 1", "materialize": False},
        "few": {"query": "SELECT id FROM paid WHERE id < 9"},
        "both": {"query": "SELECT id FROM orders UNION ALL SELECT id FROM paid"},
    }
    files = {"mzplan.yaml": SETTINGS, "a.yaml": f"{SOURCES}views: {json.dumps(views)}\n"}
    refused = run("-C", write(tmp_path, files), *command.split(), "view.paid", "--json")
    assert refused.code == 64
    problem = refused.error()
    assert "view.paid has no query" in problem["summary"]
    assert "materialize: false" in problem["detail"] and "view.both, view.few" in problem["detail"]
