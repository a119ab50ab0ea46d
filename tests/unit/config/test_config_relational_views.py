"""Views by SQL with joins, aggregations and snapshots: what follows from a query, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mzplan.model.resources import Resource
from tests.unit.cli_runs import apply, mzplan, planned_effects
from tests.unit.config_files import DRY, all_text, brief, errors, load, resource, write
from tests.unit.features.alter.alter_runs import altered

SOURCES = """\
sources:
  orders: {type: local, schema: "id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2), ts TIMESTAMP, \
tags ARRAY<STRING>, lines ARRAY<STRUCT<sku: STRING, n: INT>>"}
  payments: {type: local, schema: "id BIGINT, paid DOUBLE, ts TIMESTAMP"}
  customers: {type: local, schema: "customer STRING, city STRING", key: [customer]}
  locals: {type: local, schema: "customer STRING, ts TIMESTAMP_NTZ"}
"""
ORDERS_MARK = {"watermarks": {"orders": {"column": "ts", "delay": "10 minutes"}}}
BOTH_MARKS = {"watermarks": {**ORDERS_MARK["watermarks"], "payments": {"column": "ts", "delay": "1h"}}}
BY_MINUTE = "GROUP BY customer, window(ts, '1 minute')"
GROUPED = "FROM orders GROUP BY customer"
COUNT = f"SELECT customer, count(*) AS n {GROUPED}"
COUNT_BY_MINUTE = f"SELECT customer, count(*) AS n FROM orders {BY_MINUTE}"
JOIN = "SELECT o.id, p.paid FROM orders o JOIN payments p ON o.id = p.id"
TAGGED = "SELECT id, explode(tags) AS tag FROM orders"
BY_HOUR = "FROM (SELECT window(ts, '1 hour') AS w FROM orders) GROUP BY"
OR_NULL = "FROM orders UNION ALL SELECT NULL FROM payments"
NEWEST = "row_number() OVER (PARTITION BY id ORDER BY ts)"
SAME_WINDOW = "SELECT o.id FROM orders o JOIN payments p ON window(o.ts, '1 hour') = window(p.ts, '1 hour')"
CITIES = "SELECT city, count(*) AS n FROM orders JOIN customers USING (customer) GROUP BY city"
NUMBERED = "SELECT customer AS c, count(id) AS n, n + 1 AS m FROM orders GROUP BY 1"
OUTER_JOIN = "SELECT o.id FROM orders o LEFT JOIN payments p ON o.id = p.id"
ONE_HOUR = " AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR"
CUSTOMERS = {"snapshots": ["customers"]}


def update(*key: str) -> dict[str, Any]:
    return {"output": "update", "key": list(key)}


def mark(stream: str, column: str = "ts") -> dict[str, Any]:
    return {"watermarks": {stream: {"column": column, "delay": "1h"}}}


BY_CUSTOMER = update("customer")


def inlined(query: str) -> dict[str, Any]:
    return {"materialize": False, "query": query}


def files(views: dict[str, Any], sources: str = SOURCES) -> dict[str, str | bytes]:
    return {"mzplan.yaml": DRY, "a.yaml": f"{sources}views: {json.dumps(views)}\n"}


def loaded(folder: Path, views: dict[str, Any]) -> Resource:
    """The view `v` of a project with these views."""
    return resource(load(folder, files(views)), "view.v")


def refused(folder: Path, views: dict[str, Any]) -> str:
    """The text of the only error of a project with these views."""
    found = errors(folder, files(views))
    assert len(found) == 1 and found[0].range is not None, found
    return f"{found[0].code} {all_text(found)}"


def committed(folder: Path, views: dict[str, Any], sources: str = SOURCES) -> Path:
    """A project with these views, applied to a dry instance."""
    apply(write(folder, files(views, sources)))
    assert planned_effects(folder) == {}
    return folder


@pytest.mark.parametrize(
    ("query", "more", "reads_and_schema"),
    [
        (
            f"SELECT customer, window(ts, '1 minute').start AS m, sum(amount) AS s, count(*) AS n, "
            f"avg(amount) AS a, max(struct(ts, id)).id AS last FROM orders {BY_MINUTE}",
            ORDERS_MARK,
            "orders: customer STRING, m TIMESTAMP, s DECIMAL(20,2), n BIGINT, a DECIMAL(14,6), last BIGINT",
        ),
        (OUTER_JOIN + ONE_HOUR, BOTH_MARKS, "orders, payments: id BIGINT"),
        (
            "SELECT * FROM (SELECT customer, id FROM orders) o LEFT JOIN customers USING (customer)",
            CUSTOMERS,
            "orders: customer STRING, id BIGINT, city STRING",
        ),
        (
            "SELECT * FROM (SELECT id, customer FROM orders) o NATURAL LEFT JOIN customers",
            CUSTOMERS,
            "orders: customer STRING, id BIGINT, city STRING",
        ),
        (
            "SELECT ts, paid FROM orders NATURAL JOIN payments",
            {},
            "orders, payments: ts TIMESTAMP, paid DOUBLE",
        ),
        (
            "WITH t AS (SELECT id, tag FROM orders LATERAL VIEW explode(tags) e AS tag) "
            "SELECT t.id, tag FROM t UNION ALL SELECT id, 'paid' FROM payments",
            {},
            "orders, payments: id BIGINT, tag STRING",
        ),
        (
            "SELECT x.*, count(*) AS n FROM (SELECT customer, id FROM orders) x GROUP BY ALL",
            update("customer", "id"),
            "orders: customer STRING, id BIGINT, n BIGINT",
        ),
        (f"SELECT w.end AS e, count(*) AS n {BY_HOUR} w", ORDERS_MARK, "orders: e TIMESTAMP, n BIGINT"),
        ("SELECT id, inline(lines) FROM orders", {}, "orders: id BIGINT, sku STRING, n INT"),
        ("SELECT id, inline_outer(lines) AS (s, m) FROM orders", {}, "orders: id BIGINT, s STRING, m INT"),
        (
            "SELECT id, json_tuple(customer, 'a', 'b') FROM orders",
            {},
            "orders: id BIGINT, c0 STRING, c1 STRING",
        ),
        (
            "SELECT t.* FROM orders LATERAL VIEW OUTER json_tuple(customer, 'a', 'b') t AS x, y",
            {},
            "orders: x STRING, y STRING",
        ),
        ("WITH q(a) AS (SELECT id FROM orders) SELECT a FROM q", {}, "orders: a BIGINT"),
        ("SELECT t.b FROM (SELECT id, ts FROM orders) AS t(a, b)", {}, "orders: b TIMESTAMP"),
        ("SELECT b FROM locals AS p(a, b)", {}, "locals: b TIMESTAMP_NTZ"),
        ("SELECT id, window(ts, '1 hour').start AS h FROM orders", {}, "orders: id BIGINT, h TIMESTAMP"),
        (
            "SELECT id, explode(CAST(sequence(1, 3) AS ARRAY<INT>)) AS n FROM orders",
            {},
            "orders: id BIGINT, n INT",
        ),
        (
            "SELECT customer, CAST(round(count(*) / 60.0, 2) AS DOUBLE) AS r, "
            f"greatest(count(*), 1L) AS g {GROUPED}",
            update("customer"),
            "orders: customer STRING, r DOUBLE, g BIGINT",
        ),
        (f"SELECT exists(tags, t -> t = 'x') AS x {OR_NULL}", {}, "orders, payments: x BOOLEAN"),
        ("SELECT id, posexplode(tags) AS (p, t) FROM orders", {}, "orders: id BIGINT, p INT, t STRING"),
        (
            f"SELECT customer, max_by(id, ts) AS a, max_by(id, ts, 2) b, regr_avgx(1, amount) AS c {GROUPED}",
            BY_CUSTOMER,
            "orders: customer STRING, a BIGINT, b ARRAY<BIGINT>, c DECIMAL(14,6)",
        ),
        (f"{NUMBERED} HAVING n > 2", update("c"), "orders: c STRING, n BIGINT, m BIGINT"),
        (
            "SELECT sum(n) n, window(window_time(w), '1 hour') AS h FROM (SELECT window(ts, '1 minute') AS w,"
            " count(*) AS n FROM orders GROUP BY window(ts, '1 minute')) GROUP BY 2",
            ORDERS_MARK,
            "orders: n BIGINT, h STRUCT<start: TIMESTAMP,end: TIMESTAMP>",
        ),
    ],
)
def test_inputs_and_columns_follow_from_the_query(
    tmp_path: Path, query: str, more: dict[str, Any], reads_and_schema: str
) -> None:
    body = loaded(tmp_path, {"v": {"query": query, **more}}).body
    assert f"{', '.join(body['reads'])}: {body['schema']}" == reads_and_schema and "from" not in body


# The query; other keys of the view; words of the error: its rule, and what its fix names
REFUSED: list[tuple[Any, ...]] = [
    # Watermarks and the output mode
    (COUNT_BY_MINUTE, {}, "append mode needs a watermark", "`watermarks: {orders: {column: ts, delay:"),
    ("SELECT DISTINCT customer FROM orders", {}, "`key: [customer]`, with GROUP BY in place of"),
    ("SELECT DISTINCT customer FROM orders", ORDERS_MARK, "select ts;"),
    (COUNT, ORDERS_MARK, "the GROUP BY leaves out ts of orders"),
    (OUTER_JOIN, {}, "needs a watermark on both", "payments: {column: ts, delay: 10 minutes}}`, and limit"),
    (OUTER_JOIN + ONE_HOUR, {}, "needs a watermark on both", "payments: {column: ts, delay: 10 minutes}}`."),
    (OUTER_JOIN, BOTH_MARKS, "ON … AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR."),
    (f"SELECT count(*) AS n FROM orders {BY_MINUTE}", mark("orders", "amount"), '"amount" is DECIMAL(10,2)'),
    (f"SELECT count(*) AS n FROM locals {BY_MINUTE}", mark("locals"), "CAST(ts AS TIMESTAMP)"),
    (f"SELECT count(*) AS n FROM orders o {BY_MINUTE}", mark("o"), "write orders, not its alias."),
    (TAGGED, mark("order"), 'did you mean "orders"'),
    (COUNT, {"output": "complete", "key": ["customer"]}, "MZ005", "append, update"),
    (f"SELECT w.start AS at, count(*) AS n {BY_HOUR} at", ORDERS_MARK, "only the start or end of a window"),
    # Keys
    (COUNT, {"output": "update"}, "write `key: [customer]`"),
    (COUNT, update("n"), "write `key: [customer]`"),
    (TAGGED, {"key": ["id"]}, "a view that only adds rows has no key"),
    (f"SELECT count(*) AS n {GROUPED}", update("n"), "leaves out an expression of the GROUP BY"),
    ("SELECT id FROM orders", update("id"), "needs a GROUP BY in the outermost"),
    (f"SELECT customer, explode(collect_set(id)) AS n {GROUPED}", BY_CUSTOMER, "several rows of a group"),
    ("SELECT map('a', customer) AS m, count(*) AS n FROM orders GROUP BY 1", update("m"), "map_entries"),
    # What a stream can't compute
    ("SELECT id FROM orders JOIN payments USING (id) ORDER BY id", {}, "a stream has no end: ORDER BY"),
    (f"SELECT * FROM (SELECT *, {NEWEST} AS n FROM orders)", {}, "functions (OVER)", "max_by(column, time)"),
    ("SELECT id FROM orders EXCEPT SELECT id FROM payments", {}, "EXCEPT can't be computed over streams"),
    ("SELECT id FROM orders UNION ALL BY NAME SELECT id FROM payments", {}, "BY NAME isn't allowed"),
    (COUNT.replace("orders", "(SELECT DISTINCT customer FROM orders)"), BY_CUSTOMER, "in update mode"),
    (f"SELECT customer, max(now()) AS n {GROUPED}", BY_CUSTOMER, "changes each time"),
    (COUNT.replace("GROUP", "WHERE ts > to_date('today') GROUP"), BY_CUSTOMER, "'today' changes each time"),
    (f"SELECT customer, count(DISTINCT id) AS n {GROUPED}", BY_CUSTOMER, "approx_count_distinct"),
    (SAME_WINDOW, {}, "window can't stand in the condition of a JOIN", "select it in a subquery"),
    ("SELECT id FROM orders GROUP BY CUBE (id)", {}, "write one view for each grouping"),
    # Columns and their types
    ("SELECT id FROM orders JOIN payments ON true", {}, "id is a column of", "write orders.id"),
    ("SELECT o.id, amunt FROM orders o JOIN payments USING (id)", {}, '"amunt"', '"amount"'),
    ("SELECT o.id FROM orders o JOIN payments USING (ids)", {}, 'Unknown column "ids"'),
    ("SELECT o.id FROM orders o JOIN paymens p USING (id)", {}, "MZ012", 'did you mean "payments"'),
    (f"SELECT customer, max(my_own(id)) AS n {GROUPED}", BY_CUSTOMER, 'Unknown function "my_own"'),
    (f"SELECT customer, CAST(summ(id) AS INT) AS n {GROUPED}", BY_CUSTOMER, 'Unknown function "summ"', "sum"),
    ("SELECT id, explode(tags) AS t, NULL AS a FROM orders", {}, "MZ301", '"a" is known only'),
    ("SELECT explode(tags) AS t, NULL AS a, NULL AS b FROM orders", {}, "MZ301", "The types of a, b are"),
    ("SELECT id, sum(amount) FROM orders GROUP BY id", ORDERS_MARK, "SUM(amount) AS name"),
    ("SELECT id, explode(sequence(1, 2000000000)) AS n FROM orders", {}, "sequence computes a constant"),
    ("SELECT id, stack(2000000000, 'a') AS n FROM orders", {}, "stack computes a constant"),
    ("SELECT b FROM locals AS p(b)", {}, "p names 1 columns, but there are 2: customer, ts"),
    ("SELECT id, inline(tags) FROM orders", {}, "inline(…) needs an ARRAY<STRUCT<…>>"),
    (f"{TAGGED} WHERE EXISTS (SELECT 1 FROM payments)", {}, "contains a subquery"),
    ("SELECT w.* FROM (SELECT struct(id, ts) AS w FROM orders) x", {}, "list its fields: w.field"),
    ("SELECT FROM orders GROUP BY customer", {"output": "update"}, "it selects no column"),
    ("SELECT id, id FROM orders JOIN payments USING (id)", {}, "two columns are called id"),
    ("SELECT city FROM payments NATURAL JOIN customers", CUSTOMERS, "no column in common", "JOIN … ON"),
    ("SELECT id FROM orders NATURAL LEFT SEMI JOIN payments", {}, "this kind of JOIN"),
    ("SELECT 'a' AS user, user AS u FROM orders JOIN payments USING (id)", {}, 'Unknown column "user"'),
    (
        "SELECT id, current_date d FROM orders JOIN (SELECT id, 1 AS current_date FROM payments) USING (id)",
        {},
        "Ambiguous name",
        "write current_date() for the function, or `current_date` in",
    ),
    ("SELECT id FROM orders JOIN orders USING (id)", {}, "two relations are called orders"),
    ("SELECT id FROM orders WHERE sum(id) > 1 GROUP BY id", {}, "WHERE has an aggregate function"),
    ("SELECT count(*) AS n, * FROM payments GROUP BY 2", update("id"), "the number of an item beside `*`"),
    ("SELECT id FROM orders JOIN payments USING (id)", {"schema": "id STRING"}, "In its query, id is BIGINT"),
    # Snapshots
    ("SELECT id FROM orders JOIN customers USING (customer)", {}, "MZ020", "snapshots: [customers]"),
    ("SELECT city FROM customers c LEFT JOIN orders USING (customer)", CUSTOMERS, "rows without a match"),
    ("SELECT city FROM customers JOIN customers d USING (city)", CUSTOMERS, "a stream"),
    ("SELECT id FROM orders UNION ALL SELECT 1 AS id FROM customers", CUSTOMERS, "at each micro-batch"),
    (CITIES, {**CUSTOMERS, **update("city")}, "and a view with snapshots can't", "in a view of their own"),
    (f"{JOIN} JOIN customers USING (customer)", CUSTOMERS, "a view with snapshots reads one stream"),
    (TAGGED, {"snapshots": ["custmers"]}, "MZ012", "custmers"),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case[2])
def test_a_query_that_can_not_be_computed_is_refused_by_its_rule(tmp_path: Path, case: Any) -> None:
    query, more, *words = case
    text = refused(tmp_path, {"v": {"query": query, **more}})
    assert all(word in text for word in words), text


def test_a_query_reads_a_hundred_times_at_most(tmp_path: Path) -> None:
    """Spark computes a name in WITH, or an inlined view, again wherever it is read."""
    twice = "SELECT id FROM {0} UNION ALL SELECT id FROM {0}"
    names = ", ".join(f"c{n} AS ({twice.format(f'c{n - 1}')})" for n in range(1, 20))
    query = f"WITH c0 AS (SELECT id FROM orders), {names} SELECT id FROM c"
    assert loaded(tmp_path, {"v": {"query": f"{query}6"}}).body["reads"] == ["orders"]
    assert "would read collections 524,288 times" in refused(tmp_path, {"v": {"query": f"{query}19"}})

    views = {f"v{n}": inlined(twice.format(f"v{n - 1}" if n else "orders")) for n in range(6)}
    query = f"WITH x AS ({twice.format('v5')}) SELECT id FROM x"
    assert "would read collections 128 times" in refused(tmp_path, {**views, "v": {"query": query}})
    assert loaded(tmp_path, {**views, "v": {"query": "SELECT id FROM v5"}})


def test_an_inlined_view_is_part_of_a_query_that_joins(tmp_path: Path) -> None:
    views = """\
views:
  large: {materialize: false, query: "SELECT id, customer, ts FROM orders -- all\\n WHERE amount > 10"}
  tagged: {materialize: false, query: "SELECT id, explode(tags) AS tag FROM orders"}
  paid: {query: "SELECT large.id, paid FROM large JOIN payments p ON large.id = p.id"}
  tags: {query: "SELECT tag FROM tagged WHERE tag <> ''"}
"""
    found = load(tmp_path, {"a.yaml": SOURCES + views})
    paid, tags = resource(found, "view.paid"), resource(found, "view.tags")
    assert paid.body["query"].startswith("SELECT large.id, paid FROM (SELECT id, customer, ts FROM orders")
    assert paid.body["query"].endswith(") AS large JOIN payments p ON large.id = p.id")
    assert paid.body["reads"] == ["orders", "payments"] and paid.through == ("large",)
    assert tags.body["reads"] == ["orders"] and tags.body["schema"] == "tag STRING"

    wrong = views.replace("SELECT large.id, paid", "SELECT large.id, amount")
    (column,) = brief(errors(tmp_path, {"a.yaml": SOURCES + wrong}))
    assert column == 'a.yaml:9:35 MZ019 Unknown column "amount"'
    sink = "sinks:\n  out: {type: console, from: tagged}\n"
    (refused_sink,) = errors(tmp_path, {"a.yaml": SOURCES + views + sink})
    assert refused_sink.code == "MZ304" and "only another view can read it" in refused_sink.detail


@pytest.mark.parametrize(
    "query",
    [
        # payments is read by its name, too: where WITH doesn't hide it.
        "WITH payments AS (SELECT id FROM payments WHERE paid > 9) SELECT k.id FROM known k JOIN payments p "
        "ON p.id = k.id",
        "SELECT p.id FROM payments p JOIN (WITH payments AS (SELECT id FROM orders) SELECT payments.id FROM "
        "payments JOIN outer_known k ON k.id = payments.id) q ON q.id = p.id",
    ],
)
def test_a_name_in_with_may_not_hide_an_input_of_an_inlined_view(tmp_path: Path, query: str) -> None:
    known, outer = (inlined(f"SELECT id FROM {name}") for name in ("payments", "known WHERE id > 1"))
    views = {"known": known, "outer_known": outer, "v": {"query": query}}
    assert "a name in WITH hides payments" in refused(tmp_path, views)


def test_an_inlined_view_is_no_snapshot_and_has_no_watermark_but_what_it_reads(tmp_path: Path) -> None:
    query = "SELECT o.id, k.city FROM orders o LEFT JOIN known k USING (customer)"
    known = inlined("SELECT customer, upper(city) AS city FROM customers")
    views: dict[str, Any] = {"known": known, "v": {"query": query, "snapshots": ["known"]}}
    text = all_text(errors(tmp_path, files(views)))
    assert "known has no stored rows" in text and "write `snapshots: [customers]`" in text
    views["v"].update(CUSTOMERS)
    body = loaded(tmp_path, views).body
    assert body["snapshots"] == ["customers"] and body["schema"] == "id BIGINT, city STRING"

    views = {"large": inlined("SELECT * FROM orders WHERE amount > 10")}
    views["v"] = {"query": COUNT_BY_MINUTE.replace("orders", "large"), **mark("large")}
    text = refused(tmp_path, views)
    assert "large has no stored rows, so it can't have a watermark" in text
    assert "write `orders` in place of large" in text
    views["v"].update(ORDERS_MARK)
    assert loaded(tmp_path, views).body["reads"] == ["orders"]


def test_another_query_replaces_a_view_with_state_and_restarts_one_without(tmp_path: Path) -> None:
    views = {"counted": {"query": COUNT, **BY_CUSTOMER}, "tagged": {"query": TAGGED}}
    committed(tmp_path, views)
    for view in views.values():
        view["query"] = str(view["query"]).replace("FROM orders", "FROM orders WHERE id > 1")
    write(tmp_path, files(views))
    assert planned_effects(tmp_path) == {"view.counted": "replace", "view.tagged": "restart"}
    plan = mzplan(tmp_path, "plan", "--json").json()
    queries = {change["address"]: change["query"] for change in plan["changes"]}
    assert queries["view.counted"]["state"] == "unknown" and queries["view.tagged"]["state"] == "kept"
    assert f"+{TAGGED} WHERE id > 1" in queries["view.tagged"]["diff"]
    assert "its state can't be kept: another query" in mzplan(tmp_path, "plan").out


def test_another_number_of_readings_is_named_in_the_plan(tmp_path: Path) -> None:
    """A view without state continues from its checkpoint, which has a position for each reading."""
    united = "SELECT id FROM orders UNION ALL SELECT id FROM payments"
    twice = f"{TAGGED} UNION ALL {TAGGED}"
    committed(tmp_path, {"tagged": {"query": TAGGED}, "other": {"query": united}})
    write(tmp_path, files({"tagged": {"query": twice}, "other": {"query": f"{united} WHERE id > 1"}}))
    assert planned_effects(tmp_path) == dict.fromkeys(["view.other", "view.tagged"], "restart")
    shown = mzplan(tmp_path, "plan").out
    added = "view.tagged: the query reads orders 2 times instead of once; the added readings begin where"
    assert added in shown and "view.other: the query reads" not in shown
    committed(tmp_path, {"tagged": {"query": twice}})
    named = f"WITH t AS ({TAGGED}) SELECT * FROM t UNION ALL SELECT * FROM t"  # one reading
    write(tmp_path, files({"tagged": {"query": named}}))
    assert "once instead of 2 times; the view continues once its" in mzplan(tmp_path, "plan").out


# Spark compares the types of the state by position: after a swap, it would take (1, 2) for (2, 1).
@pytest.mark.parametrize("after", ["a INT, b INT, ts TIMESTAMP, c INT", "b INT, a INT, ts TIMESTAMP"])
def test_a_star_that_stands_for_other_columns_replaces_views_with_state(tmp_path: Path, after: str) -> None:
    marked = mark("pairs")
    views = {
        "every": {"query": "SELECT DISTINCT * FROM pairs", **marked},
        "inner": {"query": "SELECT a, b FROM (SELECT DISTINCT * FROM pairs) x", **marked},
        "named": {"query": "SELECT DISTINCT a, ts FROM pairs", **marked},
        "all": {"query": "SELECT * FROM pairs UNION ALL SELECT * FROM pairs"},
    }
    source = "sources: {pairs: {type: local, schema: '%s'}}\n"
    committed(tmp_path, views, source % "a INT, b INT, ts TIMESTAMP")
    write(tmp_path, files(views, source % after))
    replaced = dict.fromkeys(["view.every", "view.inner"], "replace")
    restarted = dict.fromkeys(["source.pairs", "view.named", "view.all"], "restart")
    assert planned_effects(tmp_path) == {**replaced, **restarted}
    plan = mzplan(tmp_path, "plan", "--json").json()
    (changed,) = (change["query"] for change in plan["changes"] if change["address"] == "view.inner")
    assert (changed["state"], changed["because"]) == ("lost", "`*` now selects other columns")


def test_a_column_that_no_result_needs_replaces_no_view_with_state(tmp_path: Path) -> None:
    live = inlined("SELECT * FROM pairs WHERE a > 0")
    join = "ON x.a = y.a AND x.ts = y.ts"
    views = {
        "live": live,
        "more": inlined("SELECT l.*, b * 2 AS twice FROM live l"),
        "both": inlined("SELECT * FROM live UNION ALL SELECT * FROM pairs"),
        "joined": {"query": f"SELECT x.a FROM live x JOIN more y {join}", **mark("pairs")},
        "used": {"query": "SELECT a, sum(twice) AS n FROM more GROUP BY a", **update("a")},
        "united": {"query": "SELECT a, count(*) AS n FROM both GROUP BY a", **update("a")},
        "whole": {"query": f"SELECT x.* FROM live x JOIN live y {join}", **mark("pairs")},
        "grouped": {"query": "SELECT l.*, count(*) AS n FROM live l GROUP BY ALL", "output": "update"},
        "distinct": {"query": "SELECT DISTINCT * FROM live", **mark("pairs")},
    }
    views["grouped"]["key"] = ["a", "b", "ts"]
    source = "sources: {pairs: {type: local, schema: '%s'}}\n"
    committed(tmp_path, views, source % "a INT, b INT, ts TIMESTAMP")
    views["grouped"]["key"] = ["a", "b", "ts", "c"]
    write(tmp_path, files(views, source % "a INT, b INT, ts TIMESTAMP, c INT"))
    replaced = {view for view, effect in planned_effects(tmp_path).items() if effect == "replace"}
    assert replaced == {"view.whole", "view.grouped", "view.distinct"}
    views["grouped"]["key"] = ["a", "b", "ts"]
    write(tmp_path, files(views, source % "ts TIMESTAMP, b INT, a INT"))
    replaced = {view for view, effect in planned_effects(tmp_path).items() if effect == "replace"}
    assert "view.united" not in replaced and "view.used" in replaced


def test_a_new_column_with_the_name_of_an_alias_is_a_change(tmp_path: Path) -> None:
    """Spark reads the column, no longer the alias."""
    aliased = "1 AS small, small + 1 AS more"
    views = {
        "tagged": {"query": f"SELECT id, {aliased}, tag FROM orders LATERAL VIEW explode(tags) t AS tag"},
        "pairs": {"query": f"SELECT DISTINCT {aliased}, ts FROM orders", **ORDERS_MARK},
        "inner": {"query": f"SELECT {aliased} FROM (SELECT DISTINCT ts FROM orders) x", **ORDERS_MARK},
        "having": {"query": f"SELECT customer, count(*) AS small {GROUPED} HAVING small > 1", **BY_CUSTOMER},
        "hidden": {"query": f"SELECT customer, 'a' AS small, count(*) AS n {GROUPED}", **BY_CUSTOMER},
        "row": {"query": f"SELECT id, {aliased} FROM orders"},
        "natural": {"query": "SELECT id FROM orders NATURAL JOIN nums", "snapshots": ["nums"]},
    }
    nums = SOURCES + '  nums: {type: local, schema: "id BIGINT, small INT", key: [id]}\n'
    committed(tmp_path, views, nums)
    write(tmp_path, files(views, nums.replace("tags ARRAY", "small INT, tags ARRAY")))
    effects = planned_effects(tmp_path)
    others = ["source.orders", "view.inner", "view.having", "view.hidden", "view.natural", "view.row"]
    assert effects == {"view.tagged": "restart", "view.pairs": "replace", **dict.fromkeys(others, "restart")}
    plan = mzplan(tmp_path, "plan").out
    assert "its state can't be kept: a name now stands for another value" in plan
    assert "view.natural: the change to `aliases` names in the query now stand for other values" in plan
    assert "Also 2 others: view.row, view.tagged." in plan


def test_blanks_comments_and_spellings_of_a_duration_change_nothing(tmp_path: Path) -> None:
    """Other letters do: `to_json` writes names of fields."""
    views: dict[str, Any] = {
        "counted": {"query": COUNT_BY_MINUTE.replace("customer,", "orders.customer,", 1), **ORDERS_MARK},
        "few": {"query": "SELECT id, to_json(struct(id AS Id)) AS j FROM orders WHERE id > 1"},
        "large": inlined("SELECT id FROM orders"),
        "both": {"query": "SELECT id FROM payments UNION ALL SELECT id FROM large"},
    }
    committed(tmp_path, views)
    for view in views.values():
        view["query"] = view["query"].replace(" FROM", "  -- who\n  FROM") + " ;"
    views["counted"]["watermarks"] = {"orders": {"column": "ts", "delay": "600s"}}
    write(tmp_path, files(views))
    assert planned_effects(tmp_path) == dict.fromkeys(["view.both", "view.counted", "view.few"], "in-place")
    shown = mzplan(tmp_path, "plan").out
    assert "other rows" not in shown and "affects only new rows" not in shown and "0 to restart" in shown
    committed(tmp_path, views)

    views["few"]["query"] = views["few"]["query"].replace("AS Id", "AS ID")
    write(tmp_path, files(views))
    shown = mzplan(tmp_path, "plan").out
    assert "1 query writes other rows" in shown and "view.few  restarts from its checkpoint" in shown


def test_a_join_whose_state_grows_without_end_is_a_warning(tmp_path: Path) -> None:
    views: dict[str, Any] = {
        "on": {"query": JOIN},
        "comma": {"query": "SELECT o.id, p.paid FROM orders o, payments p WHERE o.id = p.id"},
        "twice": {"query": "SELECT a.id FROM orders a JOIN (SELECT id FROM orders) b ON a.id = b.id"},
        "timed": {"query": OUTER_JOIN.replace("LEFT", "") + ONE_HOUR, **BOTH_MARKS},
        "looked_up": {"query": "SELECT id FROM orders JOIN customers USING (customer)", **CUSTOMERS},
        "both": {"query": "SELECT id FROM orders UNION ALL SELECT id FROM payments"},
    }
    plan = mzplan(write(tmp_path, files(views)), "plan", "--json").json()
    found = {d["address"]: d for d in plan["diagnostics"]}
    assert found.keys() == {"view.on", "view.comma", "view.twice"}
    warning = found["view.on"]
    assert (warning["severity"], warning["code"]) == ("warning", "MZ045")
    assert "rows of orders and payments" in warning["detail"]
    assert "payments: {column: ts" in warning["hint"] and "ON … AND p.ts BETWEEN" in warning["hint"]


def test_replacing_a_snapshot_is_a_warning_unless_its_view_is_paused(tmp_path: Path) -> None:
    """Rows that come while it fills again find no match, for good."""
    join = "FROM orders o LEFT JOIN {} c USING (customer)"
    views: dict[str, Any] = {
        "cities": {"query": f"SELECT o.id, c.city {join.format('customers')}", **CUSTOMERS},
        "others": {"query": f"SELECT o.id, c.ts {join.format('locals')}", "snapshots": ["locals"]},
    }
    committed(tmp_path, views)
    replace = ("--replace", "source.customers")
    assert planned_effects(tmp_path, *replace) == {"source.customers": "replace", "view.cities": "restart"}
    (found,) = mzplan(tmp_path, "plan", "--json", *replace).json()["diagnostics"]
    assert (found["severity"], found["code"], found["address"]) == ("warning", "MZ045", "view.cities")
    assert "source.customers in snapshots" in found["summary"] and "mzplan pause view.cities" in found["hint"]

    assert mzplan(tmp_path, "pause", "view.cities").code == 0
    (found,) = mzplan(tmp_path, "plan", "--json", *replace).json()["diagnostics"]
    assert found["severity"] == "notice"


def test_settings_without_an_effect_change_nothing(tmp_path: Path) -> None:
    """Neither a default nor the partitions of a view that keeps no state."""
    views: dict[str, Any] = {
        "rows": {"query": "SELECT id FROM orders"},
        "both": {"query": "SELECT id FROM payments UNION ALL SELECT id FROM orders"},
        "counted": {"query": COUNT_BY_MINUTE, **ORDERS_MARK},
    }
    committed(tmp_path, views)
    for partitions, changed in ((4, {}), (8, {"view.counted": "replace"})):
        for view in views.values():
            view.update(output="append", partitions=partitions)
        write(tmp_path, files(views))
        assert planned_effects(tmp_path) == changed


def test_renaming_an_input_keeps_the_state(tmp_path: Path) -> None:
    """The new name, `left`, is a keyword of SQL, so the edit quotes it."""
    views = {
        "counted": {"query": COUNT_BY_MINUTE.replace("customer,", "orders.customer,", 1), **ORDERS_MARK},
        "few": {"query": "SELECT orders.id FROM orders WHERE orders.id > 1"},
    }
    committed(tmp_path, views)
    renamed = altered(tmp_path, "ALTER SOURCE orders RENAME TO left").json()
    effects = {change["address"]: change["effect"] for change in renamed["changes"]}
    assert effects == {"source.left": "restart", "view.counted": "restart", "view.few": "in-place"}
    assert not [d for d in renamed.get("diagnostics", ()) if d["code"] == "MZ045"]
    text = (tmp_path / "a.yaml").read_text()
    assert "SELECT `left`.customer" in text and "FROM `left` WHERE `left`.id" in text
    assert planned_effects(tmp_path) == {}


@pytest.mark.parametrize("command", ["plan --replace", "plan --target", "graph --impact", "ddl"])
def test_a_command_that_names_an_inlined_view_says_that_it_has_no_query(tmp_path: Path, command: str) -> None:
    views = {
        "paid": inlined("SELECT id FROM orders WHERE id > 1"),
        "few": {"query": "SELECT id FROM paid WHERE id < 9"},
        "both": {"query": "SELECT id FROM orders UNION ALL SELECT id FROM paid"},
    }
    ran = mzplan(write(tmp_path, files(views)), *command.split(), "view.paid", "--json")
    problem = ran.error()
    assert ran.code == 64 and "view.paid has no query" in problem["summary"]
    assert "materialize: false" in problem["detail"] and "view.both, view.few" in problem["detail"]
