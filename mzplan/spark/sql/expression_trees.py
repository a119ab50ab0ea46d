"""Check Catalyst's expression trees, as parsed by Spark and as analysed by Spark.

Only listed kinds of nodes may be in a tree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, Literal

from mzplan.schema.sql.faults import SCHEMA_OF, TYPED, XPATH, is_ddl
from mzplan.schema.sql.functions import functions

CATALYST = "org.apache.spark.sql.catalyst."
_ROW = r"expressions\.(?:(?:variant|xml|st)\.)?"
_NOT_OF_ROW = (
    r"(?!(?:Exists|ListQuery|CallMethodViaReflection|TryReflect|ApplyFunctionExpression)\b)"
    r"(?!\w*(?:XPath|Subquery|UDF|UDAF|UDTF|UserDefined|Window))\w+\$?"
)
# Catalyst's expressions over one row, except for subqueries, calls of foreign code and views of other rows.
_EXPRESSION = re.compile(re.escape(CATALYST) + _ROW + _NOT_OF_ROW)
# A query over several rows may also use aggregates and time windows.
_EXPRESSION_OF_ROWS = re.compile(
    re.escape(CATALYST) + r"(?!expressions\.(?:Cube|Rollup|GroupingSets)\b)(?:"
    r"expressions\.(?:TimeWindow|SessionWindow|WindowTime)|"
    r"expressions\.aggregate\.(?!\w*(?:UDAF|UserDefined|ScalaAggregator|V2Aggregator))\w+\$?|"
    rf"{_ROW}{_NOT_OF_ROW})"
)
# A query over tables may also have window functions and subqueries, whose plans are checked by themselves.
_WINDOW = (
    r"Window(?:Expression|SpecDefinition)|UnresolvedWindowExpression|"
    r"(?:Specified|Unspecified)(?:Window)?Frame"
)
_EXPRESSION_OF_TABLES = re.compile(
    rf"{_EXPRESSION_OF_ROWS.pattern}|{re.escape(CATALYST)}expressions\."
    rf"(?:Exists|ListQuery|ScalarSubquery|InSubquery|{_WINDOW})\$?"
)
Scope = Literal["row", "streams", "tables"]
"""What an expression belongs to: one row, or a query over streams or tables. Inputs of such a query have no
columns reserved by mzplan."""
_PATTERNS: Mapping[Scope, re.Pattern[str]] = {
    "row": _EXPRESSION,
    "streams": _EXPRESSION_OF_ROWS,
    "tables": _EXPRESSION_OF_TABLES,
}
_UNRESOLVED = {
    f"{CATALYST}analysis.Unresolved{name}"
    for name in ("Attribute", "Function", "ExtractValue", "Star", "StarExceptOrReplace", "Alias")
}
_OF_PROJECTION = {f"{CATALYST}plans.logical.{name}" for name in ("Filter", "Project")}
_FUNCTION = f"{CATALYST}analysis.UnresolvedFunction"
_GENERATOR = f"{CATALYST}analysis.UnresolvedGenerator"
_UNRESOLVED_OF_ROWS = _UNRESOLVED | {
    _GENERATOR,
    f"{CATALYST}analysis.MultiAlias",
    f"{CATALYST}analysis.UnresolvedOrdinal",
}
_PYTHON = f"{CATALYST}expressions.PythonUDF"
_STAR = f"{CATALYST}analysis.UnresolvedStar"
# The functions that LATERAL VIEW may call.
_GENERATORS = frozenset(
    f"{name}{outer}" for name in ("explode", "inline", "posexplode") for outer in ("", "_outer")
) | {"json_tuple", "stack"}
# With more arguments than these, the functions open a file or an address named in their options, or call
# Java.
_MOST_ARGUMENTS = {
    "from_avro": 2,
    "from_protobuf": 0,
    "from_xml": 2,
    "java_method": 0,
    "reflect": 0,
    "schema_of_avro": 1,
    "schema_of_csv": 1,  # an option sets how much memory it takes
    "schema_of_xml": 1,
    "to_avro": 2,
    "to_protobuf": 0,
    "try_reflect": 0,
    # They open the files that a document type in the XML text names.
    **dict.fromkeys(XPATH, 0),
}


_TIMES = r"\(\s*(?:now|today|tomorrow|yesterday)\b"
# A text that becomes a time. A column has a number: `cast(today#3 as date)`.
_TIME = re.compile(
    rf"(?:cast(?={_TIMES}[^#()]* as (?:date|timestamp))|to_(?:date|timestamp)\w*(?={_TIMES}(?!#)))\(\s*(\w+)",
    re.IGNORECASE,
)


def time_in(expression: Any) -> str:
    """Return the first text that Spark reads as a time that changes, such as `today`; "" without one.

    Searches the tree, because the expression's SQL doesn't show the cast in to_date.
    """
    found = _TIME.search(str(expression.treeString()))
    return found[1] if found else ""


@lru_cache(maxsize=1)
def expression_check(gateway: Any) -> ExpressionCheck:
    """Return the check for the JVM of a gateway."""
    return ExpressionCheck(gateway)


class ExpressionCheck:
    """Inspects Catalyst trees in few calls: Java walks a tree and lists the class of each node.

    `toJSON` says more but takes a hundred times as long: 300 ms for sixty columns.
    """

    def __init__(self, gateway: Any):
        java = gateway.jvm.java.lang
        loader = java.Thread.currentThread().getContextClassLoader()

        load = loader.loadClass
        function, sequence = load("scala.Function1"), load("scala.collection.immutable.Seq")
        public = java.invoke.MethodHandles.publicLookup()

        def method(owner: str, name: str, result: Any, *takes: Any) -> Any:
            return public.findVirtual(load(owner), name, java.invoke.MethodType.methodType(result, *takes))

        def as_function(handle: Any) -> Any:
            return java.invoke.MethodHandleProxies.asInterfaceInstance(function, handle)

        self._class = as_function(method("java.lang.Object", "getClass", load("java.lang.Class")))
        named = method(f"{CATALYST}expressions.Expression", "prettyName", load("java.lang.String"))
        self._name = as_function(named)
        bound = gateway.new_array(java.Object, 1)
        bound[0] = self._class
        walk = method(f"{CATALYST}trees.TreeNode", "map", sequence, function)
        self._classes = as_function(java.invoke.MethodHandles.insertArguments(walk, 1, bound))
        registry = getattr(gateway.jvm.org.apache.spark.sql.catalyst.analysis, "FunctionRegistry$")
        listed = registry.__getattr__("MODULE$").builtin().listFunction().mkString("\n").lower().split("\n")
        names = {name.rpartition(".")[2].strip("`") for name in listed}
        self._built_in = {name for name in names if not name.startswith("mzplan_")}

    def classes(self, tree: Any) -> list[str]:
        """Return the class of each node of a tree, parents first."""
        return _lines(tree.map(self._class))

    def problem_of_parsed(self, tree: Any, scope: Scope = "row", functions: Collection[str] = ()) -> str:
        """Return a sentence about the first forbidden part of a parsed expression; "" without one.

        `functions`: the names of the user's functions that it may call.
        """
        allowed = _UNRESOLVED if scope == "row" else _UNRESOLVED_OF_ROWS
        pattern = _PATTERNS[scope]
        classes, names = self.classes(tree), _lines(tree.map(self._name))
        if len(classes) != len(names):
            return "It has a name with a line break."
        for number, (class_, name) in enumerate(zip(classes, names, strict=True)):
            if number and class_.startswith(_STAR) and scope == "row":
                return "A star in a call would include mzplan's own columns."
            is_call = class_ == _FUNCTION and name.lower() not in functions
            if is_call and (problem := self._problem_of_call(tree, name)):
                return problem
            if class_ == _GENERATOR and name.lower() not in _GENERATORS:
                return f"LATERAL VIEW can't call {name}."
            if not pattern.fullmatch(class_) and class_ not in allowed:
                return _not_allowed(class_)
        return ""

    def _problem_of_call(self, tree: Any, name: str) -> str:
        called = name.lower().removeprefix("system.").removeprefix("builtin.")
        if called not in self._built_in:
            function = functions().get(called)
            spark = f"this Spark, but of {function.since}" if function is not None else "Spark"
            return f"{name} isn't a function of {spark}."
        most = _MOST_ARGUMENTS.get(called)
        if most is not None and any(len(arguments) > most for arguments in _calls(tree, called)):
            return f"With so many arguments, {name} could access a file, an address or Java code."
        if called in TYPED and not _has_plain_types(tree, called):
            return f"{name} takes its types as DDL text, or from schema_of_…"
        return ""

    def problem_of_analysed(self, node: Any, scope: Scope = "row", functions: Collection[str] = ()) -> str:
        """Like problem_of_parsed, for the expressions of one node of an analysed plan.

        Only calls that problem_of_parsed has checked can be Python functions.
        """
        pattern, own = _PATTERNS[scope], {_PYTHON} if functions else ()
        classes = _lines(node.expressions().flatMap(self._classes).distinct())
        refused = next((c for c in classes if not pattern.fullmatch(c) and c not in own), None)
        return _not_allowed(refused) if refused is not None else ""

    def problem_of_projection(self, plan: Any, base: Any, functions: Collection[str] = ()) -> str:
        """Return a sentence about the first forbidden part of an analysed projection; "" without one.

        On top of `base`, the plan may only select columns and leave out rows.
        """
        while not plan.fastEquals(base):
            class_ = class_of(plan)
            if class_ not in _OF_PROJECTION:
                return _not_allowed(class_)
            if problem := self.problem_of_analysed(plan, functions=functions):
                return problem
            plan = plan.child()
        return ""


def _not_allowed(class_: str) -> str:
    return (
        f"Spark reads {short_name(class_)} in it, which isn't allowed: it would run with the runner's rights."
    )


def class_of(node: Any) -> str:
    """Return the full name of a Catalyst node's class."""
    return str(node.getClass().getName())


def short_name(class_: str) -> str:
    """Return the name of a Scala class or object without its package, such as `Join`."""
    return class_.rpartition(".")[2].rstrip("$")


def _lines(sequence: Any) -> list[str]:
    text = str(sequence.mkString("\n"))
    return [line.removeprefix("class ") for line in text.split("\n")] if text else []


def _has_plain_types(tree: Any, called: str) -> bool:
    """Return whether the type arguments of all calls of a function are plain DDL or made by Spark.

    Types in JSON could name classes, which would be loaded.
    """
    place = TYPED[called]
    for types in (arguments[place] for arguments in _calls(tree, called) if len(arguments) > place):
        is_text = str(types["class"]).endswith(".Literal") and types.get("dataType") == "string"
        if not (is_text and is_ddl(str(types.get("value")))) and _called(types) not in SCHEMA_OF:
            return False
    return True


def _calls(tree: Any, called: str) -> list[list[Mapping[str, Any]]]:
    """Return the arguments of each call of a function.

    Spark's JSON lists the nodes of a tree in one array, each before its children.
    """
    nodes = json.loads(tree.toJSON())
    ends = [0] * len(nodes)  # the end of each node's subtree
    calls = []
    for place in reversed(range(len(nodes))):
        arguments, following = [], place + 1
        for _ in range(nodes[place]["num-children"]):
            arguments.append(nodes[following])
            following = ends[following]
        ends[place] = following
        if _called(nodes[place]) == called:
            calls.append(arguments)
    return calls


def _called(node: Mapping[str, Any]) -> str:
    """Return the unqualified name of the function that a node calls; "" for another node."""
    if node["class"] != _FUNCTION:
        return ""
    return str(node["nameParts"]).strip("[]").lower().rpartition(", ")[2]
