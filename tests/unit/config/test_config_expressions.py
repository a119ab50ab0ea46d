"""Expressions of select and where: what is stateless Spark SQL, what it reads, what it is called."""

from __future__ import annotations

import pytest

from mzplan.schema.sql.expressions import parse_select, parse_where
from mzplan.schema.sql.sql_text import MAX_LENGTH

GOOD = {
    "id": ("id", ["id"]),
    "`a b`": ("a b", ["a b"]),
    "amount * 1.2 AS gross": ("gross", ["amount"]),
    "amount*-1 as x": ("x", ["amount"]),
    "'it' AS lit": ("lit", []),
    "payload.address.city": ("city", ["payload"]),
    "payload.a AS b": ("b", ["payload"]),
    "date": ("date", ["date"]),
    "count": ("count", ["count"]),
    "current_date AS day": ("day", []),
    "CAST(id AS STRING) AS id": ("id", ["id"]),
    "CASE WHEN amount > 0 THEN 'in' ELSE kind END AS kind": ("kind", ["amount", "kind"]),
    "transform(items, i -> i.price * rate) AS prices": ("prices", ["items", "rate"]),
    "exists(tags, t -> t = customer) AS e": ("e", ["tags", "customer"]),
    "aggregate(xs, 0, (a, x) -> a + x) AS total": ("total", ["xs"]),
    "payload:field.inner AS v": ("v", ["payload"]),
    "tags[0] AS first_tag": ("first_tag", ["tags"]),
    "date_trunc('hour', ts) AS hour": ("hour", ["ts"]),
    "coalesce(a, b) c": ("c", ["a", "b"]),
    "greatest(a, b) AS g": ("g", ["a", "b"]),
    "name LIKE ANY ('a%', 'b%') AS m": ("m", ["name"]),
    "my_function(a) AS f": ("f", ["a"]),
    "interval 1 day + ts AS next": ("next", ["ts"]),
    "a -- a remark": ("a", ["a"]),
    "_position.offset AS o": ("o", ["_position"]),
    "struct(a = 1) AS s": ("s", ["a"]),
    "a IS NOT NULL AND b.c > 1 OR `d` is null AS x": ("x", ["a", "b", "d"]),
}

REFUSED = {
    "sum(a) AS s": "sum needs other rows",
    "any(a) AS l": "any needs other rows",
    "sum(a) OVER (ORDER BY b) AS s": "window function",
    "row_number() AS r": "window function",
    "explode(tags) AS t": "explode makes several rows",
    "window(ts, '1 minute') AS w": "window makes several rows",
    "exists(SELECT 1) AS x": "subquery",
    "a, b": "write each as an item of its own",
    "a; DROP TABLE x": "more than one expression",
    "s.*": "fields one by one",
    "a AS (x, y)": "several names",
    "* REPLACE (1 AS a)": "or have EXCEPT",
    ":x AS x": "placeholder",
    "a +": "syntax",
    "'open": "quote",
    " ": "empty",
    "(" * 3000: "nested too deep",
    "a" * (MAX_LENGTH + 1): "longer",
}


@pytest.mark.parametrize("text", GOOD)
def test_an_expression_has_a_name_and_columns(text: str) -> None:
    name, columns = GOOD[text]
    parsed = parse_select(text)
    assert parsed.problem == "" and parsed.name == name
    assert list(dict.fromkeys(column for column, _ in parsed.columns)) == columns
    for column, offset in parsed.columns:
        assert text[offset:].lstrip("`").startswith(column)


@pytest.mark.parametrize("text", REFUSED)
def test_an_expression_that_needs_more_than_its_row_is_refused(text: str) -> None:
    parsed = parse_select(text)
    assert REFUSED[text] in parsed.problem
    assert 0 <= parsed.offset <= len(text)


def test_stars_and_conditions() -> None:
    parsed = parse_select("* EXCEPT (id, Ts)")
    assert parsed.star and parsed.without == {"id", "ts"}
    assert [name for name, _ in parsed.columns] == ["id", "Ts"]
    assert parse_where("amount > 0 AND customer = 'x'").columns == (("amount", 0), ("customer", 15))
    assert parse_where("amount BETWEEN 1 AND 2 OR NOT flag").problem == ""
    assert "subquery" in parse_where("a IN (SELECT 1)").problem
    assert "needs other rows" in parse_where("max(a) > 1").problem
    assert parse_where("a AS b").problem
    assert parse_where("a > 0) OR (1 = 1").problem


JAVA = "'java.lang.Runtime', 'getRuntime'"


@pytest.mark.parametrize(
    "call",
    [
        f"JAVA_METHOD ({JAVA})",
        f"system.builtin.`Reflect`({JAVA})",
        f"concat('a long text before it', upper(reflect({JAVA})))",
        f"transform(tags, t -> reflect({JAVA}, t))",
        f"/* x */ reflect /* y */ ({JAVA})",
    ],
)
def test_a_call_of_java_code_is_refused(call: str) -> None:
    for parsed in (parse_select(f"{call} AS x"), parse_where(f"{call} = 'a'")):
        assert "calls Java code" in parsed.problem and 0 <= parsed.offset < len(call)
    for harmless in ("note = 'reflect(x)'", "reflect > 1", "reflected(a) = 1"):
        assert not parse_where(harmless).problem


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("ts > current_timestamp() - INTERVAL 1 DAY", "CURRENT_TIMESTAMP()"),
        ("day = curdate()", "CURRENT_DATE"),
        ("ts BETWEEN NOW() AND later", "NOW()"),
        ("ts > TIMESTAMP 'today'", "CAST('today' AS TIMESTAMP)"),
        ("day > to_date('today')", "'today'"),
        ("hour(('now')) = 3", "'now'"),
        ("note = date_format(' Tomorrow', 'HH')", "' Tomorrow'"),
        ("note = aes_encrypt(note, key)", "AES_ENCRYPT(note, key)"),
        ("note = aes_encrypt(note, key, 'ECB')", None),
        ("note = aes_encrypt(note, key, 'CBC', 'DEFAULT', iv)", None),
        ("note = concat('today', note)", None),
        ("note = date_format(day, 'now')", None),
        ("id > unix_timestamp()", "CURRENT_TIMESTAMP()"),
        ("ts > TIMESTAMP '2024-01-01'", None),
        ("year(now) = 2024", None),
    ],
)
def test_a_value_that_changes_each_time_is_found(text: str, what: str | None) -> None:
    for parsed in (parse_where(text), parse_select(f"{text} AS x")):
        assert not parsed.problem
        assert (parsed.varies and parsed.varies[0]) == what
    if what and "NOW" in what:
        assert parse_where(text).varies == (what, text.index("NOW"))
