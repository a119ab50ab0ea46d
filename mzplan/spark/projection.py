"""The columns that a sink writes: `select` and `where`, and what Spark may make of them.

What a person, or a writer of the store, has written never gets to Spark as it is (see schema.sql_text). And
whatever it was, Spark's own trees are looked at: as its parser reads them, before any analysis, which already
opens files; and as it has analysed them. In both, what is allowed is listed, and nothing else runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.queries import Output, ResolvedQuery
from mzplan.connectors.frames.types import ddl_of, quoted
from mzplan.model.diagnostics import MzplanError, error
from mzplan.schema.columns import POSITION, canonical_type, spark_type
from mzplan.schema.expressions import (
    SCHEMA_OF,
    TYPED,
    VALUES,
    XPATH,
    Parsed,
    is_ddl,
    parse_select,
    parse_where,
)
from mzplan.schema.kinds import resource_kind
from mzplan.schema.source_columns import columns_of, keys_of
from mzplan.schema.view_query import parse_view
from mzplan.secrets.resolved import shortened

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CATALYST = "org.apache.spark.sql.catalyst."
# Catalyst's own expressions of a row, but those that hold a query, call others' code, or see other rows.
_EXPRESSION = re.compile(
    re.escape(_CATALYST) + r"expressions\.(?:(?:variant|xml|st)\.)?"
    r"(?!(?:Exists|ListQuery|CallMethodViaReflection|TryReflect|ApplyFunctionExpression)\b)"
    r"(?!\w*(?:XPath|Subquery|UDF|UDAF|UserDefined|Window))\w+\$?"
)
_UNRESOLVED = {
    f"{_CATALYST}analysis.Unresolved{name}"
    for name in ("Attribute", "Function", "ExtractValue", "Star", "StarExceptOrReplace", "Alias")
}
_FUNCTION = f"{_CATALYST}analysis.UnresolvedFunction"
_HOW = {
    "sink": 'write Spark SQL expressions over the source\'s columns, such as "amount * 1.2 AS gross"',
    "view": "write Spark SQL over the collection's columns: SELECT … FROM a collection WHERE …",
    "source": "write a condition of Spark SQL over the letters' columns, such as \"reason LIKE 'id %'\"",
}
_MAX_TOLD = 1000  # characters of what Spark says
_STAR = f"{_CATALYST}analysis.UnresolvedStar"
# With more arguments than these they open a file or an address, which their options name; or call Java.
_MOST_ARGUMENTS = {
    "from_avro": 2,
    "from_protobuf": 0,
    "from_xml": 2,
    "java_method": 0,
    "reflect": 0,
    "schema_of_avro": 1,
    "schema_of_csv": 1,  # an option says how much memory it takes
    "schema_of_xml": 1,
    "to_avro": 2,
    "to_protobuf": 0,
    "try_reflect": 0,
    # They open what a document type in the text of XML names.
    **dict.fromkeys(XPATH, 0),
}


def read_by(query: ResolvedQuery) -> ResolvedQuery:
    """A query as one that reads a collection: a view as a sink would say what its SQL says, with the columns
    that it reads. Raises MzplanError MZ019 for SQL that no view may have."""
    source = query.description.input
    property_ = resource_kind(query.address.kind, query.description.type).query_property
    if source is None or property_ is None:
        return query
    parsed = parse_view(query.body[property_])
    if parsed.problem:
        raise _too_much(query, property_, f"{parsed.problem[0].upper()}{parsed.problem[1:]}.")
    columns = columns_of(source.type, source.body)
    keys = keys_of(source.type, source.body)
    return replace(query, body={**query.body, **parsed.body}, columns=columns, keys=keys)


def project(rows: DataFrame, query: ResolvedQuery, *, or_else: str = "") -> DataFrame:
    """The sink's columns, then `_position`: `where` sees the collection's columns, then `select` is taken.
    `or_else`: a condition in SQL by which rows are taken that `where` leaves out.

    Raises MzplanError MZ019 when Spark can't make sense of them, or would do more with them than may be.
    """
    looking = _looking(rows.sparkSession.sparkContext._gateway)
    nodes = ["Project"]
    items: list[str] = []
    try:
        for index, text in enumerate(query.body.get("select") or ["*"]):
            parsed = parse_select(text)
            item = _sql(parsed, f"select[{index}]", rows, query)
            # Spark's own star has mzplan's columns, too.
            star = [quoted(c.name) for c in query.columns if c.name.lower() not in parsed.without]
            items += star if parsed.star else [item]
        filtered = rows
        if "where" in query.body:
            nodes.append("Filter")
            condition = _sql(parse_where(query.body["where"]), "where", rows, query)
            filtered = rows.where(f"({condition}) OR {or_else}" if or_else else condition)
        projected = filtered.selectExpr(*items, POSITION)
    except MzplanError:
        raise
    except Exception as problem:
        names = [column.name for column in query.columns]
        raise _refused(query, problem, "select or where", names) from None
    if odd := looking.odd_plan(projected, rows, nodes):
        raise _too_much(query, "select or where", odd)
    return projected


def rows_where(rows: DataFrame, text: str, place: str, query: ResolvedQuery) -> DataFrame:
    """The rows that meet a condition over their columns; `place`: where it is written. Raises as `project`
    does."""
    try:
        met = rows.where(_sql(parse_where(text), place, rows, query))
    except MzplanError:
        raise
    except Exception as problem:
        raise _refused(query, problem, place, rows.columns) from None
    looking = _looking(rows.sparkSession.sparkContext._gateway)
    if odd := looking.odd_plan(met, rows, ["Filter"]):
        raise _too_much(query, place, odd)
    return met


def analysed_outputs(spark: SparkSession, query: ResolvedQuery, position: str) -> tuple[Output, ...]:
    """The columns that a sink or a view makes, as Spark sees them, without any table. Raises MzplanError
    MZ019."""
    query = read_by(query)
    fields = [f"CAST(NULL AS {spark_type(c.type)}) AS {quoted(c.name)}" for c in query.columns]
    empty = spark.range(0).selectExpr(*fields, f"CAST(NULL AS {position}) AS {POSITION}")
    return outputs_of(project(empty, query))


def ensure_columns(outputs: Sequence[Output], query: ResolvedQuery) -> None:
    """Raises MzplanError MZ230 where what comes out is not what the query's collection has: the plan has
    worked out the columns of a view without Spark, or its files say them."""
    by_name = {output.name.lower(): spark_type(output.type or "") for output in outputs}
    if [output.name.lower() for output in outputs] != [column.name.lower() for column in query.columns]:
        differing = f"Spark makes {', '.join(output.name for output in outputs)} of its query, in this order"
    else:
        differing = "; ".join(
            f"{column.name} is {by_name[column.name.lower()]} to Spark, and {column.type} in the plan"
            for column in query.columns
            if by_name[column.name.lower()] != spark_type(column.type)
        )
    if differing:
        raise error(
            "MZ230",
            f"The schema of {query.address} is not that of its query",
            f"{differing}.",
            "write a CAST in the query where the types differ, or say what Spark makes of it as `schema`.",
            address=query.address,
            kind="unfit",
        )


def outputs_of(rows: DataFrame) -> tuple[Output, ...]:
    """The columns of a projected stream, without mzplan's own, which come last."""
    names = rows.columns
    fields = rows.schema.fields[: names.index(POSITION)]
    return tuple(Output(name=field.name, type=canonical_type(ddl_of(field.dataType))) for field in fields)


def _sql(parsed: Parsed, place: str, rows: DataFrame, query: ResolvedQuery) -> str:
    """What Spark is given of an expression. Raises MzplanError MZ019 for what may not run, by mzplan's own
    reading or by that of Spark's parser; whatever that parser raises."""
    if parsed.problem:
        raise _too_much(query, place, f"{parsed.problem[0].upper()}{parsed.problem[1:]}.")
    # Without a bracket there is neither a query in it nor a call.
    if "(" in parsed.sql:
        columns = {name.lower() for name in rows.columns}
        for name, _ in parsed.columns:
            if name.lower() in VALUES - columns:
                raise _too_much(query, place, f"{name} is no column: write {name}() for Spark's function.")
        spark: Any = rows.sparkSession
        tree = spark._jsparkSession.sessionState().sqlParser().parseExpression(parsed.sql)
        if odd := _looking(spark.sparkContext._gateway).odd_tree(tree):
            raise _too_much(query, place, odd)
    return parsed.sql


@lru_cache(maxsize=1)
def _looking(gateway: Any) -> _Looking:
    return _Looking(gateway)


class _Looking:
    """Looks at trees of Catalyst, with few calls: Java walks a tree, and names the class of each node.

    (`toJSON` says more, and takes a hundred times as long: 300 ms for sixty columns.)
    """

    def __init__(self, gateway: Any):
        java = gateway.jvm.java.lang
        loader = java.Thread.currentThread().getContextClassLoader()

        def class_of(name: str) -> Any:
            return loader.loadClass(name)

        function, sequence = class_of("scala.Function1"), class_of("scala.collection.immutable.Seq")
        public = java.invoke.MethodHandles.publicLookup()

        def method(owner: str, name: str, result: Any, *takes: Any) -> Any:
            return public.findVirtual(
                class_of(owner), name, java.invoke.MethodType.methodType(result, *takes)
            )

        def as_function(handle: Any) -> Any:
            return java.invoke.MethodHandleProxies.asInterfaceInstance(function, handle)

        self._class = as_function(method("java.lang.Object", "getClass", class_of("java.lang.Class")))
        named = method(f"{_CATALYST}expressions.Expression", "prettyName", class_of("java.lang.String"))
        self._name = as_function(named)
        bound = gateway.new_array(java.Object, 1)
        bound[0] = self._class
        walk = method(f"{_CATALYST}trees.TreeNode", "map", sequence, function)
        self._classes = as_function(java.invoke.MethodHandles.insertArguments(walk, 1, bound))
        registry = getattr(gateway.jvm.org.apache.spark.sql.catalyst.analysis, "FunctionRegistry$")
        listed = registry.__getattr__("MODULE$").builtin().listFunction().mkString("\n").lower().split("\n")
        self._built_in = {name.rpartition(".")[2].strip("`") for name in listed}

    def odd_tree(self, tree: Any) -> str:
        """What is not allowed in an expression that is only parsed, in a sentence; "" where all of it is."""
        classes, names = _lines(tree.map(self._class)), _lines(tree.map(self._name))
        if len(classes) != len(names):
            return "There is a name with a line break in it."
        for number, (class_, name) in enumerate(zip(classes, names, strict=True)):
            if number and class_.startswith(_STAR):
                return "A star within a call stands for a column of mzplan's own, too."
            called = name.lower().removeprefix("system.").removeprefix("builtin.")
            if class_ == _FUNCTION and called not in self._built_in:
                return f"Spark has no function {name} of its own."
            if class_ == _FUNCTION and called in _MOST_ARGUMENTS and _has_options(tree, called):
                return f"With so many arguments, {name} can reach a file, an address or Java code."
            if class_ == _FUNCTION and called in TYPED and not _has_plain_types(tree, called):
                return f"{name} takes its types as DDL, written out, or from schema_of_…"
            if not _EXPRESSION.fullmatch(class_) and class_ not in _UNRESOLVED:
                return _shown(class_)
        return ""

    def odd_plan(self, projected: DataFrame, rows: DataFrame, made: Iterable[str]) -> str:
        """See odd_tree, for an analysed projection: nodes of these classes, then what the rows are
        themselves."""
        plan, base = (frame._jdf.queryExecution().analyzed() for frame in (projected, rows))
        for wanted in made:
            node = str(plan.getClass().getName())
            if node != f"{_CATALYST}plans.logical.{wanted}":
                return _shown(node)
            for class_ in _lines(plan.expressions().flatMap(self._classes).distinct()):
                if not _EXPRESSION.fullmatch(class_):
                    return _shown(class_)
            plan = plan.child()
        return "" if plan.fastEquals(base) else _shown(str(plan.getClass().getName()))


def _lines(sequence: Any) -> list[str]:
    text = str(sequence.mkString("\n"))
    return [line.removeprefix("class ") for line in text.split("\n")] if text else []


def _has_options(tree: Any, called: str) -> bool:
    """Whether a call of this function has more arguments than it may have."""
    return any(len(arguments) > _MOST_ARGUMENTS[called] for arguments in _calls(tree, called))


def _has_plain_types(tree: Any, called: str) -> bool:
    """Whether the types that calls of this function take are DDL, or made by Spark: in JSON they could name
    classes, which would be loaded."""
    place = TYPED[called]
    for types in (arguments[place] for arguments in _calls(tree, called) if len(arguments) > place):
        is_text = str(types["class"]).endswith(".Literal") and types.get("dataType") == "string"
        if not (is_text and is_ddl(str(types.get("value")))) and _called(types) not in SCHEMA_OF:
            return False
    return True


def _calls(tree: Any, called: str) -> list[list[Mapping[str, Any]]]:
    """The arguments of each call of a function. In Spark's JSON the nodes of a tree stand in a row, each
    before its children."""
    nodes = json.loads(tree.toJSON())
    after = [0] * len(nodes)  # where what belongs to a node ends
    calls = []
    for place in reversed(range(len(nodes))):
        arguments, following = [], place + 1
        for _ in range(nodes[place]["num-children"]):
            arguments.append(nodes[following])
            following = after[following]
        after[place] = following
        if _called(nodes[place]) == called:
            calls.append(arguments)
    return calls


def _called(node: Mapping[str, Any]) -> str:
    """The function that a node calls, without what it is qualified with; "" for another node."""
    if node["class"] != _FUNCTION:
        return ""
    return str(node["nameParts"]).strip("[]").lower().rpartition(", ")[2]


def _shown(class_: str) -> str:
    name = class_.rpartition(".")[2].rstrip("$")
    return f"Spark reads {name} in it, which is not of one row: it would run with the rights of the runner."


def _too_much(query: ResolvedQuery, place: str, odd: str) -> MzplanError:
    return error(
        "MZ019",
        f"{place} of {query.address} is not what a {query.address.kind} may compute",
        odd,
        "use functions of Spark SQL over the columns of one row.",
        address=query.address,
        kind="unfit",
    )


def _refused(query: ResolvedQuery, problem: Exception, place: str, columns: Sequence[str]) -> MzplanError:
    thrown = getattr(problem, "java_exception", None)  # of Java itself, such as a stack that is full
    told = str(thrown.toString()) if thrown is not None else str(problem)
    text = re.sub(r"\s*SQLSTATE: \w+.*", "", told.strip(), flags=re.S)
    return error(
        "MZ019",
        f"Spark does not accept {place} of {query.address}",
        shortened(" ".join(text.split()), _MAX_TOLD),
        f"{_HOW[query.address.kind]}; the columns are {', '.join(columns)}.",
        address=query.address,
        kind="unfit",
    )
