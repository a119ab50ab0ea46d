"""What Spark gets of an expression, and that reading one ends: hostile texts, and texts that are nested."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mzplan.schema.sql.expressions import parse_select, parse_where
from mzplan.schema.sql.sql_text import SqlTextError, bare
from tests.hostile_expressions import HOSTILE
from tests.unit.config_files import SHOP, errors

# What two lexers may read differently, and enough else to make expressions of it.
QUOTES = (
    "/* */ /*+ -- \\ ' \" ` '' `` \\' \\\" \\\\ r' R\" x'1F' X' b' n' $$ $a$ ${a} {{ }} {% @ # ? : :: ://"
)
SIGNS = "; 0x1F 1e5 1e 2fa 1L 1.0BD .5 1_0 a note || | <=> -> => == ! ~ ^ & + - * / % ( ) [ ] , . upper("
PARTS = [
    *QUOTES.split(),
    *SIGNS.split(),
    *("\n", "\r\n", "\r", " ", "  ", "\t", "\u00a0", "\u2028", "\u017f", "\u212a", "\u00f6"),
    *("(select 1)", " as ", " and ", "date'2024-01-01'", "'it''s'", "'/*'", "'--'", "`/*`"),
]


def test_an_expression_that_reaches_out_of_the_row_is_refused() -> None:
    for text in HOSTILE:
        for parsed in (parse_select(text), parse_where(text.removesuffix(" as n"))):
            assert parsed.problem and not parsed.sql, text
            assert 0 <= parsed.offset <= len(text), text


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("a", None),
        ("  upper( a )\n  || 'it''s -- no comment' AS `b /* c`", None),
        ("r'\\d+' || \"/* x */\" || x'1f' as y", None),
        ("a->'b' = '${spark.app.name}'", None),
        ("a -- a remark", "a            "),
        ("a /* one */ + /* two\n lines */ b", "a           +       \n          b"),
        ("-- first\na", "        \na"),
        ("a-/**/-b", "a-    -b"),
        ("'a'/**/'b'", "'a'    'b'"),
    ],
)
def test_spark_gets_the_text_without_comments_and_else_byte_for_byte(text: str, sql: str | None) -> None:
    assert bare(text).sql == (text if sql is None else sql)


@given(st.lists(st.sampled_from(PARTS), max_size=12).map("".join))
@settings(max_examples=400, deadline=None)
def test_no_comment_is_left_in_the_sql_for_spark(text: str) -> None:
    try:
        found = bare(text)
    except SqlTextError as refused:
        assert 0 <= refused.offset <= len(text)
        return
    assert len(found.sql) == len(text)
    assert bare(found.sql) == found
    if "--" not in text and "/*" not in text:
        assert found.sql == text
    outside = list(found.sql)
    for start, end in found.quoted:
        outside[start:end] = "q" * (end - start)
    rest = "".join(outside)
    for mark in ("--", "/*", "*/", "'", '"', "`", "\\", "$", ";", "{", "?", "@", "#"):
        assert mark not in rest
    assert rest.isascii()
    parse_select(text)


# What opens and what closes a nested form
NESTED = {
    **dict.fromkeys(["TIMESTAMP(", "STRUCT(", "DATE(", "OBJECT(", "JSON(", "MAP(a, ", "ARRAY(", "("], ")"),
    **dict.fromkeys(["f(x -> ", "(x, y) -> (", "a IN (", "EXISTS(", "a LIKE ANY (", "(SELECT "], ")"),
    **dict.fromkeys(["INTERVAL '1' DAY + (", "EXTRACT(DAY FROM ", "TRIM(BOTH FROM "], ")"),
    **dict.fromkeys(["NAMED_STRUCT('a', ", "f(a) OVER (ORDER BY "], ")"),
    **dict.fromkeys(["NOT ", "- ", "INTERVAL "], ""),
    **dict.fromkeys(["[", "a["], "]"),
    "DECIMAL(": ", 2)",
    "CAST(": " AS INT)",
    "CAST(a AS STRUCT<a: ": ">)",
    "CASE WHEN ": " THEN 1 END",
    "CASE ": " WHEN 1 THEN 2 END",
    "IF(": ", 1, 2)",
    "a::ARRAY<": ">",
    "a BETWEEN ": " AND 2",
    "CAST(a AS `TIMESTAMP(TIMESTAMP(TIMESTAMP(TIMESTAMP(TIMESTAMP(TIMESTAMP(a))))))`": ")",
}


def test_any_nested_text_is_read_in_bounded_time() -> None:
    """Without a bound, this test does not end."""
    assert "nested too deep" in parse_select("TIMESTAMP(" * 40 + "a" + ")" * 40).problem
    assert "nested too deep" in parse_where("STRUCT(" * 30 + "a" + ")" * 30).problem
    assert not parse_select("STRUCT(STRUCT(STRUCT(DATE(TIMESTAMP(a))) AS b)) AS c").problem
    random_ = random.Random(0)
    forms = list(NESTED.items())
    for _ in range(80):
        chosen = [random_.choice(forms) for _ in range(random_.choice((1, 1, 2, 3)))]
        depth = random_.randint(4, 32)
        opening = "".join(form for form, _ in chosen) * depth
        closing = "".join(end for _, end in reversed(chosen)) * depth
        text = opening + "a" + closing[: len(closing) // random_.choice((1, 1, 1, 2))]
        assert parse_select(text).problem or parse_where(text).problem or parse_select(text).sql == text


@pytest.mark.parametrize("text", ["map(id)", "DATE_TRUNC()", "map(id) + upper(a)"])
def test_a_failure_of_sqlglot_is_an_error_beside_the_others(tmp_path: Path, text: str) -> None:
    body = f'    select: [id, "{text} AS x", amunt]\n    where: "{text} = 1"\n'
    found = errors(tmp_path, {"a.yaml": SHOP + body})
    refused = [d for d in found if d.code == "MZ019"]
    assert len(refused) == 3 and all(d.range is not None for d in refused)
    assert sum("amunt" in d.summary for d in refused) == 1


@pytest.mark.parametrize(
    ("text", "called"),
    [
        ("repeat('a', 1000000000) AS x", "repeat"),
        ("aggregate(array(1, 2), 0, (a, x) -> a + x) AS x", "aggregate"),
        ("transform(tags, x -> from_json(x, space(1000000000))) AS x", "repeat"),
        ("from_json(note, if('aaaa' rlike '(a+)+$', 'a INT', 'b INT')) AS x", "regexp_like"),
        ("round(1.5D, 2147483647) AS x", "round"),
        ("format_string('%1000000000d', 1) AS x", "format_string"),
        ("repeat(repeat('a', 1000), 1000) AS x", "repeat"),
        ("repeat('a', 10 * id(1)) AS x", "repeat"),
        ("hex(hex(hex(hex(hex(hex(hex('a'))))))) AS x", "hex"),
        ("size(sequence(1, 2000000000)) AS x", "sequence"),
        ("sequence(TIMESTAMP '2026-01-01', TIMESTAMP '2026-01-02', INTERVAL 1 SECOND) AS x", "sequence"),
        ("replace('aaaa', 'a', space(9)) AS x", "replace"),
        ("array_insert(array(1), 1000000000, 2) AS x", "array_insert"),
        ("transform(array(1, 2), x -> transform(array(1, 2), y -> x + y)) AS x", "transform"),
        ("split('aaaa', '(a+)+$') AS x", "split"),
        ("str_to_map('a', '(a+)+', '=') AS x", "str_to_map"),
        ("'aaaa' LIKE '%a%a%a%a%b' AS x", "like"),
        # The field of a struct, a type, a name of a call: none of them is the variable of that name.
        ("exists(tags, a -> date_part(repeat(named_struct('a', 'a').a, 20000), at) = a) AS x", "repeat"),
        ("transform(tags, a -> repeat(struct('b' AS a), 20000)) AS x", "repeat"),
        ("transform(tags, a -> repeat(cast(NULL AS STRUCT<a: INT>), 20000)) AS x", "repeat"),
    ],
)
def test_a_constant_that_spark_might_compute_forever_is_refused(text: str, called: str) -> None:
    """Spark computes it while it analyses the query: nothing stops that."""
    assert parse_select(text).problem.startswith(f"{called} computes a constant, which may take forever")


@pytest.mark.parametrize(
    "text",
    [
        "from_csv(note, 'a INT', map('sep', ';')) AS x",
        "transform(tags, x -> hex(x)) AS x",
        "named_struct('a', 1, 'b', upper('b')) AS x",
        "from_json(note, schema_of_json('{\"a\": 1}')) AS x",
        "concat(note, char(10), substr('ab', 1, 1)) AS x",
        "note LIKE concat(left('ab', 1), '%') AS x",
        "round(1 / 60.0, 2) AS x",
        "greatest(1, 1L) AS x",
        "sequence(1, 3) AS x",
        "sequence(0, 86400, 3600) AS x",
        "sequence(DATE '2026-01-01', DATE '2026-12-31', INTERVAL 1 MONTH) AS x",
        "transform(sequence(1, 3), i -> i * 2) AS x",
        "concat(repeat('-', 80), lpad('7', 5, '0')) AS x",
        "split('a,b', ',')[0] AS x",
        "regexp_extract('a-1', '([0-9]+)', 1) AS x",
        "date_format(DATE '2026-01-01', 'yyyy') AS x",
        "element_at(map('a', 1, 'b', 2), 'a') AS x",
        "array_sort(array_union(array(2, 1), array(3))) AS x",
        "hex('a') AS x",
    ],
)
def test_a_cheap_constant_is_allowed(text: str) -> None:
    assert parse_select(text).problem == ""


@pytest.mark.parametrize(
    "call",
    [
        'from_json(note, \'{"type": "struct", "fields": []}\')',
        'from_json(note, \' \n{"type": "udt"}\')',
        "from_csv(note, '\\u007b}')",
        "system.builtin.from_json(note, concat('{', '}'))",
        "from_json(note, if(true, 'a INT', 'b INT'))",
        "variant_get(parse_json(note), '$', '\"integer\"')",
    ],
)
def test_types_in_json_are_refused(call: str) -> None:
    """In JSON they can name a class, which Spark and PySpark would load."""
    assert "takes its types as DDL" in parse_select(f"{call} AS x").problem


def test_a_function_that_returns_a_function_is_refused() -> None:
    """Spark's parser takes memory without end to read thousands of arrows in a row."""
    refused = parse_select(f"transform(tags, {'x -> ' * 1900}x) AS x").problem
    assert refused == "a function can't be the result of a function"
    nested = "transform(tags, x -> transform(more, y -> x + y), x -> -x) AS x"
    assert parse_select(nested).problem == ""
