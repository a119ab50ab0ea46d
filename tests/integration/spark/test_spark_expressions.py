"""`select` and `where` on a real Spark: it reads what mzplan has read, and nothing else of them runs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from mzplan.config import load_configuration
from mzplan.connectors.api.queries import Output
from mzplan.connectors.frames.merges import IS_REMOVED
from mzplan.connectors.frames.types import ddl, ddl_of
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError
from mzplan.schema.columns import Column, canonical_type, parse_columns
from mzplan.schema.description import Description
from mzplan.schema.sql.expressions import Parsed, parse_select, parse_where
from mzplan.schema.sql.sql_text import SqlTextError, bare, trees
from mzplan.schema.sql.sql_types import type_of
from mzplan.schema.sql.view_query import QueryPart, ViewQuery, parse_view
from mzplan.spark.sql import projection
from mzplan.spark.sql.expression_trees import expression_check
from tests.hostile_expressions import HOSTILE, HOSTILE_VIEWS, ONLY_SPARK_KNOWS
from tests.integration.spark_lab import Lab
from tests.support import refusal
from tests.unit.config.test_config_expressions import GOOD
from tests.unit.schema.test_sql_text import PARTS
from tests.unit.schema.test_sql_types import COLUMNS as TYPED_COLUMNS
from tests.unit.schema.test_sql_types import TYPES, UNKNOWN

# Of views: `@` is the collection's name.
VIEW_ITEMS = [
    *(
        "*",
        "@.*",
        "* EXCEPT (id)",
        "@.* EXCEPT (note, TAGS)",
        "id",
        "@.id AS a",
        "@ . `note`",
        "@./*x*/tags t",
    ),
    *("ID AS B", "@.o", "@.`true`", "@.true AS c", "@.current_user AS d", "@.from AS e", "@.offset f"),
    *("CAST(@.o.id AS STRING) AS g", "CAST(o.`left` AS int) AS h", "CAST(@.true AS STRING) i"),
    *("'@.id' AS j", "CAST('it\\'s' || \"@.id\" AS STRING) AS k", "CAST(id AS decimal(5)) AS l"),
    *("id::varchar(3) AS m", "try_cast(note AS Timestamp_NTZ) AS n", "DATE '2024-01-01' AS p"),
    *("CAST(transform(@.tags, t -> t || @.note) AS ARRAY<STRING>) AS r", "CAST(r'a\\' AS STRING) AS s"),
    *("CAST(tags AS ARRAY<CHAR(3)>) AS u", "CAST(o AS STRUCT<a: STRING, b: LONG>) AS v", "int(note) AS q"),
    *("CAST(map('a', id) AS MAP<STRING, BIGINT>) AS x", "CAST(id IS DISTINCT FROM 3 AS BOOLEAN) AS y"),
    *("CAST(extract(YEAR FROM @.from) AS SMALLINT) AS z", "amount AS `from`", "CAST(1 AS tinyint) `select`"),
    *("amount * 1.2 AS aa", "CAST(amount AS NUMERIC) AS ab", "CAST(amount AS REAL) AS ac"),
    *("CAST(amount AS INTERVAL DAY TO SECOND) AS ae", "CAST(note AS TIMESTAMP_LTZ) AS af"),
    *("CAST(left(note, 2) AS STRING) AS `a``b`", "CAST(note AS VARIANT) AS ah", "CAST(x'1F' AS BINARY) w"),
    *("timestamp(note) AS ad", "to_date(note) AS ag"),
]
VIEW_CONDITIONS = [
    *("@.id > 1", "offset > 1 AND @.offset < 9", "left(note, 1) = 'WHERE'", "NOT @.true = '--' -- x"),
    *("o.left IS NOT NULL", "note RLIKE '\\\\d' OR @.o.id = ';'", "exists(tags, t -> t = @.note);"),
]

COLUMNS = "id BIGINT, note STRING"
EXPRESSIONS: dict[str, Callable[[str], Parsed]] = {
    **dict.fromkeys((*GOOD, *TYPES, *UNKNOWN), parse_select),
    **{where.replace("@.", ""): parse_where for where in VIEW_CONDITIONS},
}


def test_both_parsers_read_every_expression_alike(lab: Lab) -> None:
    spark = lab.spark
    parser = spark._jsparkSession.sessionState().sqlParser()
    check = expression_check(spark.sparkContext._gateway)
    compared = 0
    for text, parse in EXPRESSIONS.items():
        parsed = parse(text)
        if parsed.problem or parsed.star:
            continue
        if "--" not in text and "/*" not in text:
            assert parsed.sql == text
        try:
            tree = parser.parseExpression(parsed.sql)
        except Exception:
            continue  # what a test expects Spark to refuse
        problem = check.problem_of_parsed(tree)
        assert problem == "" or "isn't a function of Spark" in problem, text
        classes, names = check.classes(tree), _names(tree)
        read = {name for class_, name in zip(classes, names, strict=True) if class_.endswith("Attribute")}
        variables = {name for class_, name in zip(classes, names, strict=True) if "LambdaVariable" in class_}
        ours = {name.lower() for name, _ in parsed.columns}
        assert ours <= read | variables, text
        assert read <= ours | {"current_date", "current_timestamp", "current_user", "localtimestamp"}, text
        compared += 1
    assert compared > 60


@pytest.mark.parametrize("ansi", ["true", pytest.param("false", marks=pytest.mark.nightly)])
def test_a_type_that_is_known_without_spark_is_sparks(lab: Lab, ansi: str) -> None:
    """Of every expression, over the columns that they read."""
    spark, setting = lab.spark, "spark.sql.ansi.enabled"
    texts = [text for text in (*GOOD, *TYPES, *UNKNOWN) if not parse_select(text).problem]
    names = {name.lower() for text in texts for name, _ in parse_select(text).columns}
    others = sorted(names - {column.name.lower() for column in TYPED_COLUMNS})
    columns = (*TYPED_COLUMNS, *(Column(name, "STRING") for name in others))
    rows = spark.createDataFrame([], ddl(columns))
    was, known = spark.conf.get(setting), 0
    spark.conf.set(setting, ansi)
    try:
        for text in texts:
            type_ = type_of(text, columns)
            if type_ is None:
                continue
            try:
                analysed = rows.selectExpr(text).schema.fields[0]
            except Exception:
                assert text not in TYPES
                continue  # of no such types, or what a test expects Spark to refuse
            assert type_ == canonical_type(ddl_of(analysed.dataType)), text
            known += 1
    finally:
        spark.conf.set(setting, was)
    assert known > len(TYPES)


def _names(tree: Any) -> list[str]:
    """The column that each node of Spark's tree names, by the node's JSON; "" where it is none."""
    nodes = json.loads(tree.toJSON())
    return [str(node.get("nameParts", "")).strip("[]").split(", ")[0].lower() for node in nodes]


def test_no_text_is_lexed_differently(lab: Lab) -> None:
    """Of what is let through, Spark's lexer finds no comment, and what sqlglot and mzplan have in quotes."""
    java = lab.spark._jvm
    parsing = java.org.apache.spark.sql.catalyst.parser
    streams = java.org.antlr.v4.runtime.CharStreams
    random_ = random.Random(7)
    let_through = 0
    while let_through < 120:
        text = "".join(random_.choice(PARTS) for _ in range(random_.randint(1, 7)))
        try:
            found = bare(text)
        except SqlTextError:
            continue
        if not found.quoted and text == found.sql and random_.random() < 0.8:
            continue
        let_through += 1
        lexer = parsing.SqlBaseLexer(parsing.UpperCaseCharStream(streams.fromString(found.sql)))
        lexer.removeErrorListeners()
        tokens = list(lexer.getAllTokens())
        inside: set[int] = set()
        for token in tokens:
            start, end = token.getStartIndex(), token.getStopIndex() + 1
            word = found.sql[start:end]
            if token.getChannel():
                assert not word.strip(), (text, word)
            if word[0] in "'\"`" or word[:2] in ("r'", "R'", 'r"', 'R"'):
                inside |= set(range(start, end))
        ours = {at for start, end in found.quoted for at in range(start, end)}
        ours -= {start for start, _ in found.quoted if found.sql[start] in "xX"}
        assert inside == ours, text
        try:
            trees("SELECT ", found, "spark")
        except SqlTextError:  # sqlglot has other tokens: n'a', for one
            assert parse_select(text).problem, text
        except Exception:
            continue  # its syntax


def _analysed(lab: Lab, description: Description) -> tuple[Output, ...]:
    query = lab.executor._resolve(description, lab.secrets)
    return projection.analysed_outputs(lab.spark, query, "STRUCT<step: BIGINT>")


@pytest.mark.parametrize("believed", [False, True], ids=["as it is", "had mzplan read it otherwise"])
def test_nothing_hostile_runs(
    lab: Lab, fill: Callable[[str], str], believed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if mzplan's own parser, the first of two checks, finds nothing wrong with it."""
    if believed:
        for name in ("parse_select", "parse_where"):
            monkeypatch.setattr(projection, name, lambda text: Parsed(sql=text))
    source = lab.kafka_source("none", COLUMNS)
    for text in [*HOSTILE, *ONLY_SPARK_KNOWS]:
        item = fill(text)
        # A filter on a column that the projection drops, too: nothing of it is in the columns that come out.
        filtered = {"select": ["id"], "where": f"({item.removesuffix(' as n')}) = 'a'"}
        for body in ({"select": [item]}, filtered):
            try:
                outputs = _analysed(lab, lab.sink(source, "console", None, **body))
            except MzplanError as refused:
                assert {d.code for d in refused.diagnostics} == {"MZ019"}, text
                assert "s3cr3t" not in str(refused)
            else:
                assert believed and "$" in text and "spark.app" in text, (text, outputs)


def test_a_query_from_the_store_is_checked_when_it_starts(lab: Lab, fill: Callable[[str], str]) -> None:
    source = lab.kafka_source("none", COLUMNS)
    for text in HOSTILE[:2]:
        assert lab.refused(lab.sink(source, "console", None, select=["id", fill(text)])).code == "MZ019"


def test_a_variable_of_spark_s_configuration_stays_text(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    spark = lab.spark
    assert spark.conf.get("spark.sql.variable.substitute") == "false"
    assert spark.newSession().conf.get("spark.sql.variable.substitute") == "false"
    sql = parse_select("'${spark.app.name}' AS n").sql
    assert spark.range(1).selectExpr(sql).collect()[0][0] == "${spark.app.name}"
    assert parse_select("${spark.app.name} AS n").problem


def test_sparks_functions_of_one_row_are_allowed(lab: Lab) -> None:
    """Its functions by their own examples, but those that see other rows, or reach out."""
    spark = lab.spark
    check = expression_check(spark.sparkContext._gateway)
    columns = {"id": "BIGINT", "note": "STRING", "tags": "ARRAY<STRING>", "at": "TIMESTAMP"}
    rows = spark.range(1).selectExpr(*(f"CAST(NULL AS {type_}) AS {name}" for name, type_ in columns.items()))
    items = (
        *("note LIKE 'a%' AND note ILIKE ANY ('b', 'c') OR note RLIKE 'd'", "map('a', note)['a']"),
        *(
            "transform(filter(tags, t -> exists(tags, u -> u = t)), (t, i) -> concat(t, i))",
            "sha2(note, 256)",
        ),
        *("aggregate(tags, '', (a, t) -> a || t)", "CASE WHEN id > 1 THEN 'a' ELSE note END"),
        *("try_cast(note AS INT) + try_add(id, 1)", "from_json(note, 'a INT').a", "from_xml(note, 'a INT')"),
        *("get_json_object(note, '$.a')", "variant_get(parse_json(note), '$.a', 'int')", "url_encode(note)"),
        *("date_trunc('hour', at) + INTERVAL 1 DAY", "current_timestamp()", "extract(DAY FROM at)"),
        *("aes_encrypt(note, 'abcdefghijklmnop')", "decode(note, 'a', 'b')", "system.builtin.lower(note)"),
        *("named_struct('a', id, 'b', struct(note))", "id IN (1, 2) AND id BETWEEN 1 AND 2"),
        *("trim(BOTH 'x' FROM note)", "substring(note FROM 1 FOR 2)", "coalesce(nullif(note, ''), 'x')"),
    )
    parser = spark._jsparkSession.sessionState().sqlParser()
    for item in items:
        sql = parse_select(f"{item} AS x").sql
        assert sql, item
        assert check.problem_of_parsed(parser.parseExpression(sql)) == "", item
        filtered = rows.where(parse_where(f"({item}) IS NOT NULL").sql)
        plans = (frame._jdf.queryExecution().analyzed() for frame in (filtered.selectExpr(sql), rows))
        assert check.problem_of_projection(*plans) == "", item


@pytest.mark.parametrize("own", [True, False])
def test_functions_that_call_java_or_open_files_are_missing(lab: Lab, own: bool) -> None:
    """Delta evaluates what a table's writer has put into its log: see mzplan.spark.sql.unsafe_functions."""
    spark = lab.spark if own else lab.spark.newSession()
    for call in (
        "reflect('java.lang.System', 'getenv', 'HOME')",
        "system.builtin.java_method('java.lang.System', 'getenv', 'HOME')",
        "try_reflect('java.lang.System', 'getenv', 'HOME')",
        "xpath_string('<a/>', 'a')",
    ):
        with pytest.raises(Exception, match=r"UNRESOLVED_ROUTINE|REQUIRES_SINGLE_PART_NAMESPACE"):
            spark.range(1).selectExpr(call).collect()


def test_no_schema_brings_a_class(lab: Lab) -> None:
    """PySpark would import the module that a user-defined type names, and Spark load its class."""
    spark = lab.spark
    udt = {"type": "udt", "pyClass": "this.x", "serializedClass": "gASVBAAAAAAAAABLAS4="}
    field = {"name": "a", "nullable": True, "metadata": {}, "type": {**udt, "sqlType": "integer"}}
    schema = json.dumps({"type": "struct", "fields": [field]})
    check = expression_check(spark.sparkContext._gateway)
    parser = spark._jsparkSession.sessionState().sqlParser()
    for call in (
        f"from_json(note, '{schema}')",
        "transform(tags, t -> system.builtin.from_csv(t, ' \\u007b'))",
        "from_json(schema_of_json(note), upper(note))",
        "variant_get(parse_json(note), '$', '[1]')",
    ):
        assert "takes its types as DDL" in check.problem_of_parsed(parser.parseExpression(call)), call
    assert check.problem_of_parsed(parser.parseExpression("from_csv(note, schema_of_csv('a'))")) == ""
    rows = spark.range(1).selectExpr(f"from_json('{{}}', '{schema}') AS n")
    with pytest.raises(ValueError, match="user-defined type"):
        print(rows.columns, rows.schema)


def _view(lab: Lab, sql: str, schema: str, columns: str) -> Description:
    """A view over a source `orders` of these columns, as the store would hold it."""
    source = lab.local_source(columns, "orders")
    view = replace(lab.sink(source, "console", None), address=Address("view", "v"), type="sql")
    return replace(view, body={"query": sql, "from": "orders", "schema": schema})


def _outputs(lab: Lab, view: Description) -> list[tuple[str, str | None]]:
    outputs = _analysed(lab, view)
    projection.ensure_columns(outputs, lab.executor._resolve(view, lab.secrets))
    return [(output.name, output.type) for output in outputs]


@pytest.mark.parametrize(
    "believed",
    [False, pytest.param(True, marks=pytest.mark.nightly)],
    ids=["as it is", "had mzplan read it otherwise"],
)
def test_no_hostile_view_runs(
    lab: Lab, fill: Callable[[str], str], believed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even in a description that no plan has checked."""
    orders = QueryPart("orders", 0)
    for sql in HOSTILE_VIEWS:
        text = fill(sql)
        view = _view(lab, text, "id BIGINT", f"{COLUMNS}, tags ARRAY<STRING>")
        if believed:  # all of it in the place of an item, and of the condition
            parsed = Parsed(sql=text)
            monkeypatch.setattr(projection, "parse_select", lambda _, parsed=parsed: parsed)
            monkeypatch.setattr(projection, "parse_where", lambda _, parsed=parsed: parsed)
            for query in (
                ViewQuery(collection=orders, items=(QueryPart(text, 0),)),
                ViewQuery(collection=orders, items=(QueryPart("id", 0),), where=QueryPart(text, 0)),
            ):
                monkeypatch.setattr(projection, "parse_view", lambda _, query=query: query)
                with pytest.raises(MzplanError) as refused:
                    _outputs(lab, view)
                assert {d.code for d in refused.value.diagnostics} == {"MZ019"}, text
            continue
        try:
            _outputs(lab, view)
        except MzplanError as refused:
            assert {d.code for d in refused.diagnostics} <= {"MZ019", "MZ230"}, text
            assert "s3cr3t" not in str(refused)
        else:  # Spark never gets the name of the collection
            assert parse_view(text).collection.text != "orders", text


@pytest.mark.parametrize(
    ("sql", "summary"),
    [
        ("SELECT id, id + true AS bad FROM orders", "Spark does not accept column bad of view.v"),
        ("SELECT id, id + true FROM orders", "Spark does not accept expression id + true of view.v"),
        ("SELECT id FROM orders WHERE id + true", "Spark does not accept the query of view.v"),
        ("SELECT id, nosuch(id) AS bad FROM orders", "Column bad of view.v isn't allowed in a view"),
        ("SELECT id FROM orders WHERE java_method('a', 'b')", "WHERE of view.v isn't allowed in a view"),
    ],
)
def test_an_error_names_the_place_in_the_query(lab: Lab, sql: str, summary: str) -> None:
    view = _view(lab, sql, "id BIGINT", "id BIGINT")
    assert refusal(lambda: _outputs(lab, view)).summary == summary


def test_an_item_can_use_the_name_of_an_earlier_item(lab: Lab) -> None:
    """A column of the input comes before it, and so does a function without parentheses."""
    items = (
        "id + 1 AS next, next * 2 AS twice, note AS id, id AS own, 'a' AS user, CAST(user() AS STRING) AS u"
    )
    sql = f"SELECT {items}, transform(array(1), x -> x + twice) AS xs FROM orders WHERE id > 0"
    schema = "next BIGINT, twice BIGINT, id STRING, own BIGINT, user STRING, u STRING, xs ARRAY<BIGINT>"
    names = [(column.name, column.type) for column in parse_columns(schema)]
    assert _outputs(lab, _view(lab, sql, schema, COLUMNS)) == names


@pytest.mark.parametrize("seed", [11, *(pytest.param(n, marks=pytest.mark.nightly) for n in (12, 13, 14))])
def test_the_plan_knows_the_columns_of_any_view(lab: Lab, tmp_path: Path, seed: int) -> None:
    """Names and types, for random queries with comments, quotes and qualifiers."""
    columns = "id BIGINT NOT NULL, note STRING, tags ARRAY<STRING>, o STRUCT<id: STRING, `left`: INT>, "
    columns += "`true` STRING, `offset` INT, `from` DATE, `current_user` INT, amount DECIMAL(10,2)"
    (tmp_path / "mzplan.yaml").write_text("version: 1\nproject: shop\n")
    random_ = random.Random(seed)
    agreed = 0
    for _ in range(100):
        other = random_.choice(("orders", "o", "`O`", "`true`", "date", "left_", "`from`"))
        plain = other == "orders"
        items = random_.sample(VIEW_ITEMS, random_.randint(1, 4))
        sql = " ".join(
            (
                random_.choice(("SELECT", "select/**/", "SELECT -- FROM x\n")),
                random_.choice((", ", ",", " /* , */ , ")).join(items),
                random_.choice(("FROM", "\nfrom", "-- '\nFROM")),
                random_.choice(("orders", "`orders`", "ORDERS")),
                "" if plain else random_.choice(("AS ", "", "as/**/")) + other,
                random_.choice(("", *(f"WHERE {condition}" for condition in VIEW_CONDITIONS))),
            )
        ).replace("@", other)
        source = {"type": "local", "schema": columns}
        content = {"sources": {"orders": source}, "views": {"v": {"query": sql}}}
        (tmp_path / "a.yaml").write_text(yaml.safe_dump(content))
        try:
            body = load_configuration(tmp_path).resources[Address("view", "v")].body
        except MzplanError as refused:
            assert {d.code for d in refused.diagnostics} <= {"MZ018", "MZ019", "MZ301"}, sql
            continue
        assert parse_view(sql).problem == ""
        view = _view(lab, sql, body["schema"], columns)
        wanted = [c.name for c in parse_columns(body["schema"])]
        assert [name for name, _ in _outputs(lab, view)] == wanted, sql  # and their types, or it raises
        agreed += 1
    assert agreed > 50


def test_a_condition_over_a_keyed_collection_reads_no_text_as_a_changing_time(lab: Lab) -> None:
    """A row that is updated or deleted must meet it again."""
    source = lab.kafka_source(
        "none", "id BIGINT, day DATE, note STRING", envelope={"type": "upsert", "key": ["id"]}
    )
    for where, is_time in (
        ("day > 'yesterday'", True),
        ("note = 'a' OR day IN ('2026-01-01', ' Today')", True),
        ("day > to_date('tomorrow')", True),
        ("day < date_add('today', 1)", True),
        ("date_format('now', 'HH') = note", True),
        ("note = 'today'", False),
        ("note = 'CAST(' AND day > '2026-01-01'", False),
    ):
        try:
            _analysed(lab, lab.sink(source, "console", None, where=where))
        except MzplanError as refused:
            assert is_time and "as a time that changes" in str(refused.diagnostics[0].detail), where
        else:
            assert not is_time, where


def test_a_removed_row_needs_only_its_key(lab: Lab) -> None:
    """For a row that leaves a keyed view, neither the condition nor another column is computed."""
    rows = lab.spark.sql(
        "SELECT k, qty, note, named_struct('_there', there) AS _position FROM VALUES (1, 0, 'none', 0), "
        "(2, 2, '7', 1), (3, 0, 'none', 1) AS t(k, qty, note, there)"
    )
    upsert = {"type": "upsert", "key": ["k"]}
    source = lab.kafka_source("none", "k INT, qty INT, note STRING", envelope=upsert)
    computed = ["K AS id", "10 / qty AS price", "CAST(note AS INT) AS number"]
    for select, where, wanted in (
        (computed, "qty <> 0", [(1, None, None), (2, 5.0, 7)]),
        (computed, "note < 'a' AND CAST(note AS INT) > 0", [(1, None, None), (2, 5.0, 7)]),
        (["k", "10 / qty AS price", "price + 1 AS more"], "qty <> 0", [(1, None, None), (2, 5.0, 6.0)]),
        (["*", "10 / qty AS price"], "qty <> 0", [(1, 0, "none", None), (2, 2, "7", 5.0)]),
    ):
        view = lab.sink(source, "console", None, select=select, where=where)
        query = lab.executor._resolve(view, lab.secrets)
        left = projection.project(rows, query, removed=IS_REMOVED, keys=["id", "k"]).drop("_position")
        assert [tuple(row) for row in left.orderBy(left[0]).collect()] == wanted, (select, where)
