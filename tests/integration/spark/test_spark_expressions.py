"""`select` and `where` on a real Spark: it reads what mzplan has read, and nothing else of them runs."""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from string import Template
from typing import Any

import pytest
import yaml

from mzplan.model.diagnostics import MzplanError
from mzplan.schema.conformity import fault_of
from mzplan.schema.expressions import Parsed, parse_select, parse_where
from mzplan.schema.sql_text import SqlTextError, bare, trees
from mzplan.spark import projection
from tests.hostile_expressions import HOSTILE, ONLY_SPARK_KNOWS
from tests.integration.spark_lab import Lab, until
from tests.unit.config.test_config_expressions import GOOD
from tests.unit.schema.test_sql_text import PARTS

ROOT = Path(__file__).parents[3]
COLUMNS = "id BIGINT, note STRING"


def _expressions() -> dict[str, Callable[[str], Parsed]]:
    """Every expression that the suites and the examples have, and how it is read."""
    found: dict[str, Callable[[str], Parsed]] = dict.fromkeys(GOOD, parse_select)
    for folder in ("tests/cases", "examples", "benchmarks"):
        for file in (ROOT / folder).rglob("*.yaml"):
            try:
                for document in yaml.safe_load_all(file.read_text(encoding="utf-8")):
                    found.update(_of(document))
            except (yaml.YAMLError, UnicodeDecodeError):
                continue
    for file in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            keys: list[tuple[Any, ast.expr]] = []
            if isinstance(node, ast.Call):
                keys = [(one.arg, one.value) for one in node.keywords]
            elif isinstance(node, ast.Dict):
                keys = [(getattr(k, "value", None), v) for k, v in zip(node.keys, node.values, strict=True)]
            for key, value in keys:
                if key in ("select", "where"):
                    try:
                        found.update(_of({key: ast.literal_eval(value)}))
                    except (ValueError, TypeError):
                        continue
    return found


def _of(value: Any) -> Iterator[tuple[str, Callable[[str], Parsed]]]:
    if isinstance(value, list):
        for inner in value:
            yield from _of(inner)
    elif isinstance(value, dict):
        if isinstance(value.get("where"), str):
            yield value["where"], parse_where
        if isinstance(value.get("select"), list):
            yield from ((item, parse_select) for item in value["select"] if isinstance(item, str))
        for inner in value.values():
            yield from _of(inner)


def _session(lab: Lab) -> Any:
    assert lab.executor._spark is not None
    return lab.executor._spark


def test_both_parsers_read_every_expression_of_the_suites_alike(lab: Lab) -> None:
    spark = _session(lab)
    parser = spark._jsparkSession.sessionState().sqlParser()
    looking = projection._looking(spark.sparkContext._gateway)
    compared = 0
    for text, parse in _expressions().items():
        parsed = parse(text)
        if parsed.problem or parsed.star:
            continue
        if "--" not in text and "/*" not in text:
            assert parsed.sql == text
        try:
            tree = parser.parseExpression(parsed.sql)
        except Exception:
            continue  # what a test expects Spark to refuse
        assert "has no function" in looking.odd_tree(tree) or looking.odd_tree(tree) == "", text
        classes, names = projection._lines(tree.map(looking._class)), _names(tree)
        read = {name for class_, name in zip(classes, names, strict=True) if class_.endswith("Attribute")}
        variables = {name for class_, name in zip(classes, names, strict=True) if "LambdaVariable" in class_}
        ours = {name.lower() for name, _ in parsed.columns}
        assert ours <= read | variables, text
        assert read <= ours | {"current_date", "current_timestamp", "current_user", "localtimestamp"}, text
        compared += 1
    assert compared > 60


def _names(tree: Any) -> list[str]:
    """The column that each node of Spark's tree names, by the node's JSON; "" where it is none."""
    nodes = json.loads(tree.toJSON())
    return [str(node.get("nameParts", "")).strip("[]").split(", ")[0].lower() for node in nodes]


def test_no_text_is_lexed_differently(lab: Lab) -> None:
    """Of what is let through, Spark's lexer finds no comment, and what sqlglot and mzplan have in quotes."""
    java = _session(lab)._jvm
    parsing = java.org.apache.spark.sql.catalyst.parser
    streams = java.org.antlr.v4.runtime.CharStreams
    random_ = random.Random(7)
    let_through = 0
    while let_through < 250:
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


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret.txt"
    file.write_text("s3cr3t\n")
    return file


@pytest.mark.parametrize("believed", [False, True], ids=["as it is", "had mzplan read it otherwise"])
def test_nothing_hostile_runs(
    lab: Lab, tmp_path: Path, secret: Path, believed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where the store holds it, nor where the first of the two looks finds nothing wrong with it."""
    if believed:
        for name in ("parse_select", "parse_where"):
            monkeypatch.setattr(projection, name, lambda text: Parsed(sql=text))
    source = lab.kafka_source("none", COLUMNS)
    made = tmp_path / "made"
    for text in [*HOSTILE, *ONLY_SPARK_KNOWS]:
        item = Template(text).safe_substitute(X=made, F=secret)
        # A filter on a column that the projection drops, too: nothing of it is in the columns that come out.
        for body in (
            {"select": [item]},
            {"select": ["id"], "where": f"({item.removesuffix(' as n')}) = 'a'"},
        ):
            sink = lab.sink(source, "console", None, **body)
            if text in HOSTILE and not believed:
                assert fault_of(sink), text
            try:
                outputs = projection.analysed_outputs(
                    _session(lab), lab.executor._resolve(sink, lab.secrets), "STRUCT<step: BIGINT>"
                )
            except MzplanError as refused:
                assert {d.code for d in refused.diagnostics} == {"MZ058"}, text
                assert "s3cr3t" not in str(refused)
            else:
                assert believed and "$" in text and "spark.app" in text, (text, outputs)
    assert not made.exists()


def test_what_the_store_holds_is_refused_by_the_query_that_starts(lab: Lab, tmp_path: Path) -> None:
    inbox, made = tmp_path / "inbox", tmp_path / "made"
    inbox.mkdir()
    (inbox / "a.json").write_text('{"id": 1, "note": "x"}')
    source = lab.files_source(inbox, COLUMNS)
    lab.start(source)
    until("the collection has a row", lambda: lab.count(source) == 1)
    for text in HOSTILE[:2]:
        item = Template(text).safe_substitute(X=made, F="/etc/hostname")
        with pytest.raises(MzplanError) as refused:
            lab.start(lab.sink(source, "console", None, select=["id", item]))
        assert {d.code for d in refused.value.diagnostics} == {"MZ058"}
    lab.stop(source)
    assert not made.exists()


def test_a_variable_of_spark_s_configuration_stays_text(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    spark = _session(lab)
    assert spark.conf.get("spark.sql.variable.substitute") == "false"
    assert spark.newSession().conf.get("spark.sql.variable.substitute") == "false"
    sql = parse_select("'${spark.app.name}' AS n").sql
    assert spark.range(1).selectExpr(sql).collect()[0][0] == "${spark.app.name}"
    assert parse_select("${spark.app.name} AS n").problem


def test_what_spark_itself_has_of_one_row_is_let_through(lab: Lab) -> None:
    """Its functions by their own examples, but those that see other rows, or reach out."""
    spark = _session(lab)
    looking = projection._looking(spark.sparkContext._gateway)
    columns = {"id": "BIGINT", "note": "STRING", "tags": "ARRAY<STRING>", "at": "TIMESTAMP"}
    rows = spark.range(1).selectExpr(*(f"CAST(NULL AS {type_}) AS {name}" for name, type_ in columns.items()))
    items = [
        "upper(note)",
        "note LIKE 'a%' AND note ILIKE ANY ('b', 'c') OR note RLIKE 'd'",
        "transform(filter(tags, t -> exists(tags, u -> u = t)), (t, i) -> concat(t, i))",
        "aggregate(tags, '', (a, t) -> a || t)",
        "CASE WHEN id > 1 THEN 'a' ELSE note END",
        "try_cast(note AS INT) + try_add(id, 1)",
        "from_json(note, 'a INT').a",
        "get_json_object(note, '$.a')",
        "variant_get(parse_json(note), '$.a', 'int')",
        "from_xml(note, 'a INT')",
        "date_trunc('hour', at) + INTERVAL 1 DAY",
        "aes_encrypt(note, 'abcdefghijklmnop')",
        "url_encode(note)",
        "decode(note, 'a', 'b')",
        "named_struct('a', id, 'b', struct(note))",
        "map('a', note)['a']",
        "sha2(note, 256)",
        "trim(BOTH 'x' FROM note)",
        "extract(DAY FROM at)",
        "substring(note FROM 1 FOR 2)",
        "current_timestamp()",
        "system.builtin.lower(note)",
        "id IN (1, 2) AND id BETWEEN 1 AND 2",
        "coalesce(nullif(note, ''), ifnull(note, 'x'), if(id = 1, 'a', 'b'))",
    ]
    parser = spark._jsparkSession.sessionState().sqlParser()
    for item in items:
        sql = parse_select(f"{item} AS x").sql
        assert sql, item
        assert looking.odd_tree(parser.parseExpression(sql)) == "", item
        filtered = rows.where(parse_where(f"({item}) IS NOT NULL").sql)
        assert looking.odd_plan(filtered.selectExpr(sql), rows, ["Project", "Filter"]) == "", item


@pytest.mark.parametrize("own", [True, False])
def test_what_calls_java_or_opens_files_is_not_in_spark(lab: Lab, own: bool) -> None:
    """Delta evaluates what a table's writer has put into its log: see mzplan.spark.reach."""
    spark = _session(lab) if own else _session(lab).newSession()
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
    spark = _session(lab)
    udt = {
        "type": "udt",
        "pyClass": "this.x",
        "serializedClass": "gASVBAAAAAAAAABLAS4=",
        "sqlType": "integer",
    }
    field = {"name": "a", "nullable": True, "metadata": {}, "type": udt}
    schema = json.dumps({"type": "struct", "fields": [field]})
    looking = projection._looking(spark.sparkContext._gateway)
    parser = spark._jsparkSession.sessionState().sqlParser()
    for call in (
        f"from_json(note, '{schema}')",
        "transform(tags, t -> system.builtin.from_csv(t, ' \\u007b'))",
        "from_json(schema_of_json(note), upper(note))",
        "variant_get(parse_json(note), '$', '[1]')",
    ):
        assert "takes its types as DDL" in looking.odd_tree(parser.parseExpression(call)), call
    for call in (
        "from_json(note, 'a INT')",
        "from_csv(note, schema_of_csv('a'))",
        "variant_get(v, '$', 'int')",
    ):
        assert looking.odd_tree(parser.parseExpression(call)) == "", call
    rows = spark.range(1).selectExpr(f"from_json('{{}}', '{schema}') AS n")
    with pytest.raises(ValueError, match="user-defined type"):
        print(rows.columns, rows.schema)
