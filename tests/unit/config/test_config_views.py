"""Views by SQL: inputs, columns and keys that follow from the query, and errors at their place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mzplan.schema.view_query import parse_view
from tests.hostile_expressions import HOSTILE, HOSTILE_VIEWS
from tests.unit.cli_runs import apply, planned_effects
from tests.unit.config_files import DRY, errors, load, resource, write
from tests.unit.features.alter.alter_runs import altered

ORDERS = """\
sources:
  orders: {type: local, schema: "id BIGINT NOT NULL, customer VARCHAR(20), amount DECIMAL(10,2), \
tags ARRAY<STRING>"}
  latest: {type: local, schema: "id BIGINT, name STRING", key: [id]}
"""
TAGS = "tags ARRAY<STRING>"
CYCLE = 'views:\n  a: {query: "SELECT x FROM b"}\n  b: {query: "SELECT x FROM a"}\n'
UNKNOWN = "views:\n  v:\n    query: |\n      SELECT id,\n        amunt\n      FROM orders\n"
BIG = 'views:\n  big: {query: "SELECT * FROM orders"}\n'


def test_inputs_and_columns_follow_from_the_query(tmp_path: Path) -> None:
    views = """\
views:
  again:
    query: |
      SELECT b.id, CAST(twice AS STRING) AS text
      FROM big b
  big: {query: "SELECT id, upper(customer) AS customer, CAST(amount * 2 AS DECIMAL(12,2)) twice
          FROM orders o WHERE o.amount > 1",
        schema: "id BIGINT NOT NULL, customer STRING, twice DECIMAL(12,2)"}
  same: {query: SELECT * FROM orders}
sinks:
  out: {type: console, from: again, select: [text]}
"""
    found = load(tmp_path, {"a.yaml": ORDERS + views})
    again, big, same = (resource(found, f"view.{name}") for name in ("again", "big", "same"))
    assert again.references == {"from": big.address} and big.references["from"].name == "orders"
    assert resource(found, "sink.out").references == {"from": again.address}
    assert (again.body["schema"], again.type) == ("id BIGINT NOT NULL, text STRING", "sql")
    assert same.body["schema"] == f"id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2), {TAGS}"


def test_an_item_can_use_the_name_of_an_earlier_item(tmp_path: Path) -> None:
    views = """\
views:
  v: {query: "SELECT id + 1 AS next, next * 2 AS twice, amount AS id, id AS own FROM orders WHERE id > 1"}
  inner: {materialize: false, query: "SELECT id AS amount, upper(customer) AS w, w || 'x' AS l FROM orders"}
  outer: {query: "SELECT l, amount + 1 AS a, a + a AS b FROM inner"}
"""
    found = load(tmp_path, {"a.yaml": ORDERS + views})
    v, outer = (resource(found, f"view.{name}").body for name in ("v", "outer"))
    assert v["schema"] == "next BIGINT, twice BIGINT, id DECIMAL(10,2), own BIGINT NOT NULL"
    assert (v["from"], v["aliases"], outer["aliases"]) == ("orders", ["next"], ["a", "a"])
    assert outer["query"] == (
        "SELECT\n  (upper(customer)) || 'x' AS l,\n  id + 1 AS a,\n  (id + 1) + (id + 1) AS b\nFROM orders\n"
    )


def view(query: str, more: str = "", name: str = "v") -> str:
    return f"views:\n  {name}: {{query: {json.dumps(query)}{more}}}\n"


@pytest.mark.parametrize(
    ("query", "key"),
    [
        ("SELECT * FROM latest", ["id"]),
        ("SELECT l.ID i, id AS j FROM latest l", ["i"]),
        ("SELECT * EXCEPT (name) FROM latest", ["id"]),
        ("SELECT id FROM orders", None),
    ],
)
def test_the_key_follows_from_the_key_of_the_input(tmp_path: Path, query: str, key: list[str] | None) -> None:
    found = load(tmp_path, {"a.yaml": ORDERS + view(query)})
    assert resource(found, "view.v").body.get("key") == key


# The views; place and code of the error; words of the error and of its fix
MISTAKES: list[tuple[str, ...]] = [
    (UNKNOWN, "8:9 MZ019", "source.orders has the columns", 'did you mean "amount"?'),
    (view("SELECT CAST(uper(id) AS INT) AS i FROM orders"), "5:27 MZ019", 'function "uper"', 'mean "upper"?'),
    (view("SELECT id FROM orders WHERE lowr('a') = 'a'"), "5:43 MZ019", 'function "lowr"', 'mean "lower"?'),
    (view("SELECT id, sum(amount) AS s FROM orders"), "5:22 MZ019", "id is neither in GROUP BY nor in an"),
    (view("SELECT id FROM orders", ', schema: "a BIGINT, b INT"'), "5:47 MZ230", "Its query gives id, in"),
    (view("SELECT tags FROM orders", f", schema: {TAGS} NOT NULL"), "5:49 MZ230", "tags may be NULL"),
    (view("SELECT id + 1 AS n FROM orders WHERE n > 1"), "5:52 MZ019", "source.orders has the columns id,"),
    (view("SELECT n + 1 AS m, id + 1 AS n FROM orders"), "5:22 MZ019", "source.orders has the columns id,"),
    (view("SELECT 'a' AS user, user AS u FROM orders"), "5:35 MZ019", 'Unknown column "user"'),
    (
        view("SELECT id, id AS current_date FROM orders", name="a")
        + '  v: {query: "SELECT id, current_date + 1 AS d FROM a"}\n',
        "6:26 MZ019",
        "Ambiguous name",
        "write current_date() for the function, or `current_date` in",
    ),
    (view("SELECT id + 1 AS id FROM latest"), "5:40 MZ019", "keeps the latest row of each key (id)"),
    (view("SELECT id AS i FROM latest", ", key: [id]"), "5:44 MZ019", "gives the key i", "remove `key`"),
    (view("SELECT id FROM orders", ", key: [id]"), "5:39 MZ019", "its query reads orders, which has no key"),
    (view("SELECT * FROM latest WHERE now() > '2026'"), "5:42 MZ019", "source.latest is updated or deleted"),
    ('views:\n  orders: {query: "SELECT id FROM latest"}\n', "5:3 MZ003", "give one of them another name"),
    (CYCLE, "5:29 MZ014", "view.a → view.b → view.a"),
    (view("SELECT id FROM orders", ", reads: [orders]"), "5:39 MZ004", 'view.v sets "reads"'),
    (BIG + "sinks:\n  out: {type: console, from: big, select: [idd]}\n", "7:44 MZ019", "view.big has the"),
]


@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: f"{case[1]} {case[2]}")
def test_a_mistake_of_a_view_is_one_error_at_its_place(tmp_path: Path, case: tuple[str, ...]) -> None:
    views, place, *words = case
    (found,) = errors(tmp_path, {"a.yaml": ORDERS + views})
    assert f"{found.range} {found.code}" == f"a.yaml:{place}"
    assert all(word in f"{found.summary} {found.detail} {found.hint}" for word in words), found


def test_hostile_sql_is_an_error_at_its_place(tmp_path: Path) -> None:
    source = "sources:\n  orders: {type: local, schema: 'id BIGINT, note STRING, tags ARRAY<STRING>'}\n"
    rows = ("stack(2, id, id)", "explode(array")  # a view may make several rows of one
    items = [f"SELECT {item} FROM orders" for item in HOSTILE if not item.startswith(rows)]
    conditions = [f"SELECT id FROM orders WHERE ({item.removesuffix(' as n')}) = 'a'" for item in HOSTILE]
    queries = [*HOSTILE_VIEWS, *items, *conditions]
    views = {f"v{number}.yaml": view(sql, name=f"v{number}") for number, sql in enumerate(queries)}
    found = errors(tmp_path, {"a.yaml": source, **views})
    # Also a control character, its length, a reference, no such collection, and names of columns.
    also = {"MZ002", "MZ005", "MZ012", "MZ017", "MZ018"}
    assert {d.code for d in found} <= {"MZ019", "MZ301", *also}
    assert {d.range.path for d in found if d.range} == views.keys()


INLINED = """\
views:
  paid: {materialize: false, query: "SELECT * FROM orders o WHERE o.amount > 0"}
  short:
    materialize: false
    query: "SELECT id, amount AS customer, upper(customer) AS amount, tags FROM paid WHERE id <> 3"
  named: {materialize: false, query: "SELECT id AS number, name FROM latest"}
"""


DOUBLED = "  v%d: {materialize: false, query: 'SELECT id + id AS id FROM %s'}\n"
LONG = DOUBLED % (0, "orders") + "".join(DOUBLED % (n, f"v{n - 1}") for n in range(1, 40))


def test_an_inlined_view_is_part_of_its_readers(tmp_path: Path) -> None:
    readers = """\
  big: {query: "SELECT s.customer + 1 AS more, s.amount FROM short s WHERE tags[0] = amount OR id = 1"}
  key: {query: "SELECT * FROM named WHERE number > 1"}
sinks:
  one: {from: paid, type: console}
  two: {from: short, type: console, select: ["* EXCEPT (id)", "CASE WHEN amount = 'X' THEN 1 END AS `order`"]}
"""
    found = load(tmp_path, {"a.yaml": ORDERS + INLINED + readers})
    queries = ["sink.one", "sink.two", "view.big", "view.key"]
    assert sorted(map(str, found.resources)) == sorted([*queries, "source.latest", "source.orders"])
    one, two, big, key = (resource(found, query) for query in queries)
    assert {str(r.references["from"]) for r in (one, two, big)} == {"source.orders"}
    assert one.body == {"type": "console", "from": "orders", "where": "`amount` > 0"}
    assert two.body["select"] == [
        "amount AS customer",
        "upper(customer) AS amount",
        "tags",
        "CASE WHEN (upper(customer)) = 'X' THEN 1 END AS order",
    ]
    assert big.body["query"] == (
        "SELECT\n  amount + 1 AS more,\n  upper(customer) AS amount\nFROM orders\n"
        f"WHERE (({one.body['where']}) AND (id <> 3)) AND (tags[0] = (upper(customer)) OR id = 1)\n"
    )
    assert key.body["key"] == ["number"]
    assert key.body["query"] == "SELECT\n  id AS number,\n  name\nFROM latest\nWHERE id > 1\n"


def test_a_column_of_an_inlined_view_may_be_called_like_a_word_of_sql(tmp_path: Path) -> None:
    views = """\
views:
  words: {materialize: false, query: "SELECT id AS `from`, amount AS `distinct`, tags AS `all` FROM orders"}
  v: {query: "SELECT `all`, `from`, `distinct` AS `from2` FROM words WHERE `from` > 1"}
  w: {query: "SELECT `from` FROM words"}
"""
    found = load(tmp_path, {"a.yaml": ORDERS + views})
    v, w = (resource(found, f"view.{name}").body["query"] for name in ("v", "w"))
    assert parse_view(v).body["select"] == ["tags AS `all`", "id AS `from`", "amount AS from2"]
    assert parse_view(w).collection.text == "orders" and parse_view(w).body["select"] == ["id AS `from`"]


@pytest.mark.parametrize(
    ("views", "message"),
    [
        ("  v: {materialize: false, paused: true, query: SELECT id FROM orders}\n", "no query of its own"),
        ("  v: {materialize: false, query: SELECT uuid() AS u FROM orders}\n", "another value in each query"),
        (INLINED[7:] + "  v: {query: 'SELECT struct(id, tags) AS s FROM short'}\n", "named_struct"),
        (INLINED[7:] + "  v: {query: 'SELECT transform(tags, id -> id) AS s FROM short'}\n", "id may be a"),
        (
            INLINED[7:]
            + "  v: {query: 'SELECT rand() AS r, r + 1 AS s FROM short', schema: 'r DOUBLE, s DOUBLE'}\n",
            "r has another value each time",
        ),
        (LONG, "its SQL gets too long"),
    ],
)
def test_a_view_that_can_not_be_inlined_is_refused(tmp_path: Path, views: str, message: str) -> None:
    schema = 'schema: "s STRUCT<a: INT>"'
    text = views.replace("FROM short'}", f"FROM short', {schema}}}")
    sinks = "sinks:\n  out: {type: console, from: v39}\n" if "v39" in views else ""
    found = errors(tmp_path, {"a.yaml": f"{ORDERS}views:\n{text}{sinks}"})
    refused = [d for d in found if d.code == "MZ304"]
    assert refused and message in refused[0].detail, found
    assert refused[0].hint.startswith(f"remove `{'paused' if 'paused' in views else 'materialize: false'}`")


def test_a_rename_that_would_need_the_sql_of_an_inlined_view_is_refused(tmp_path: Path) -> None:
    text = ORDERS + INLINED + "sinks:\n  out: {type: console, from: paid}\n"
    apply(write(tmp_path, {"mzplan.yaml": DRY, "a.yaml": text}))
    refused = altered(tmp_path, "ALTER SOURCE orders RENAME TO sales", code=1)
    assert refused.error()["code"] == "MZ304" and (tmp_path / "a.yaml").read_text() == text
    moved = text.replace("  orders: {", "  sales: {lifecycle: {moved_from: orders}, ")
    (tmp_path / "a.yaml").write_text(moved.replace("FROM orders", "FROM sales"))
    assert planned_effects(tmp_path)["sink.out"] in ("none", "in-place")
