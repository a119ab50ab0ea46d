"""Compare mzplan's table of Spark's functions with the installed Spark: `python -m tools.spark_functions`.

Spark's analyzer types calls of each function, without running them. The calls are the examples of Spark's
documentation; with --varied, each of their arguments also gets other types. The output lists the calls that
have another type in mzplan, and the functions that mzplan has no type for.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mzplan.schema.columns import canonical_type, spark_type
from mzplan.schema.sql.functions import functions
from mzplan.schema.sql.sql_text import DIALECTS, arguments_of, bare, function_name, trees
from mzplan.schema.sql.sql_types import ExpressionTypes

_NUMBERS = ("SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(10,2)")
# An expression of each type. Spark computes it early, where a function needs a constant.
VALUES = {
    **{name: f"CAST('1' AS {name})" for name in (*_NUMBERS, "STRING", "BINARY")},
    "BOOLEAN": "CAST('true' AS BOOLEAN)",
    "DATE": "CAST('2026-01-01' AS DATE)",
    "TIMESTAMP": "CAST('2026-01-01 00:00:00' AS TIMESTAMP)",
    "INTERVAL HOUR": "INTERVAL 1 HOUR",
    "ARRAY<STRING>": "array(CAST('a' AS STRING))",
    "ARRAY<STRUCT<a: INT,b: STRING>>": "array(named_struct('a', 1, 'b', 'c'))",
    "MAP<STRING,INT>": "map('a', CAST('1' AS INT))",
}
_DEFAULT = VALUES["INT"]  # in place of a column in an example
_MOST_SEEDS = 3  # calls of a function to begin with
_PRECISION = "spark.sql.decimalOperations.allowPrecisionLoss"
_SETTINGS = {"spark.sql.ansi.enabled": "false", _PRECISION: "false"}  # other values than the defaults
_EXAMPLE = re.compile(r"^\s*> (SELECT .*?);\s*$", re.MULTILINE)
# Operators and syntax, functions that mzplan refuses, and those that make several rows or need a window.
_OTHER = re.compile(
    r"\W|^(?:and|between|case|cast|div|in|not|or|when|collations|java_method|json_tuple|measure|python_worker_logs|"
    r"range|reflect|sql_keywords|try_reflect|(?:from|to)_(?:avro|protobuf)|schema_of_avro|xpath\w*)$"
)
_OTHER_GROUPS = frozenset(["generator_funcs", "window_funcs", "table_funcs"])
VARIES = "varies"  # the type depends on a setting


@dataclass(slots=True)
class Report:
    """The comparison of the functions' types.

    - `right`: the functions whose first calls have the same type in mzplan.
    - `wrong`: the calls that have another type in mzplan, with Spark's type and mzplan's.
    - `untyped`: the functions without a type in mzplan, each with Spark's types of its calls.
    - `unstored`: the functions whose result no collection can have.
    """

    right: list[str] = field(default_factory=list)
    wrong: list[tuple[str, str, str]] = field(default_factory=list)
    untyped: dict[str, list[str]] = field(default_factory=dict)
    unstored: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        return len(self.right) / max(len(self.right) + len(self.untyped), 1)


class Analyzer:
    """Types expressions with the analyzer of a Spark session."""

    def __init__(self, session: Any):
        self._conf = session.conf
        state = session._jsparkSession.sessionState()
        self._parser, self._analyzer = state.sqlParser(), state.analyzer()

    def types(self, expressions: Sequence[str]) -> list[str | None]:
        """Return the type of each expression; None for one that Spark refuses."""
        if not expressions:
            return []
        items = ", ".join(f"{text} AS x{number}" for number, text in enumerate(expressions))
        try:
            output = self._analyzer.execute(self._parser.parsePlan(f"SELECT {items}")).output()
            names = str(output.mkString("\n")).split("\n")
        except Exception as refusal:
            if len(expressions) == 1 or "WRONG_NUM_ARGS" in str(refusal):
                return [None] * len(expressions)
            half = len(expressions) // 2
            return self.types(expressions[:half]) + self.types(expressions[half:])
        return [
            None if name.startswith("'") else plain(str(output.apply(number).dataType().sql()))
            for number, name in enumerate(names)
        ]

    def certain_types(self, expressions: Sequence[str]) -> list[str | None]:
        """Like `types`, but VARIES for a type that depends on a setting."""
        found = [self.types(expressions)]
        for name, value in _SETTINGS.items():
            if name == _PRECISION and not any("DECIMAL" in (type_ or "") for type_ in found[0]):
                continue
            before = self._conf.get(name)
            self._conf.set(name, value)
            found.append(self.types(expressions))
            self._conf.set(name, before)
        return [_agreed(types) for types in zip(*found, strict=True)]


def _agreed(types: Iterable[str | None]) -> str | None:
    different = {type_ for type_ in types if type_ is not None}
    return different.pop() if len(different) == 1 else VARIES if different else None


def plain(type_: str) -> str:
    """Return a type in mzplan's form; as Spark writes it, if no collection can have it."""
    stored = canonical_type(type_)
    return spark_type(stored) if stored is not None else type_.replace(", ", ",").replace(" NOT NULL", "")


def functions_of(session: Any) -> dict[str, tuple[str, list[str]]]:
    """Return Spark's functions by name, each with its group, such as `agg_funcs`, and its examples."""
    catalyst = session._jvm.org.apache.spark.sql.catalyst
    found: dict[str, tuple[str, list[str]]] = {}
    for registry in ("FunctionRegistry$", "TableFunctionRegistry$"):
        built_in = getattr(catalyst.analysis, registry).__getattr__("MODULE$").builtin()
        listed = built_in.listFunction()
        for place in range(listed.size()):
            identifier = listed.apply(place)
            info = built_in.lookupFunction(identifier).get()
            name = str(identifier.funcName()).lower()
            found.setdefault(name, (str(info.getGroup()), _EXAMPLE.findall(info.getExamples())))
    return found


def calls_in(name: str, examples: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Yield the arguments of the calls of a function in its examples."""
    for sql in examples:
        for dialect in DIALECTS:
            try:
                (tree,) = trees("", bare(sql), dialect)
            except Exception:
                continue
            for node in tree.find_all(object):
                if function_name(node, sql) == name:
                    yield tuple(argument.sql(dialect="spark") for argument in arguments_of(node))
            break


def type_by_mzplan(text: str) -> str | None:
    """Return the type of an expression without columns; None if mzplan doesn't know it."""
    written = bare(text)
    for dialect in DIALECTS:
        try:
            (query,) = trees("SELECT ", written, dialect)
            return ExpressionTypes(written, len("SELECT "), {}).of(query.expressions[0])
        except Exception:
            continue
    return None


def compare(session: Any, *, varied: bool = False) -> Report:
    """Compare the types of all functions in the table that this Spark has."""
    analyzer, report = Analyzer(session), Report()
    for name, (group, examples) in sorted(functions_of(session).items()):
        if not _OTHER.search(name) and group not in _OTHER_GROUPS and name in functions():
            _compare(analyzer, name, examples, report, varied)
    return report


def _compare(analyzer: Analyzer, name: str, examples: Sequence[str], report: Report, varied: bool) -> None:
    accepted = []
    for seed in dict.fromkeys([*calls_in(name, examples), *((_DEFAULT,) * number for number in range(3))]):
        types = analyzer.types(seed)
        filled = tuple(text if type_ else _DEFAULT for text, type_ in zip(seed, types, strict=True))
        accepted += [
            given for given in dict.fromkeys([seed, filled]) if analyzer.types([_call(name, given)])[0]
        ]
    first = list(dict.fromkeys(_call(name, seed) for seed in accepted[:_MOST_SEEDS]))
    others = (
        _call(name, (*seed[:place], value, *seed[place + 1 :]))
        for seed in accepted[:_MOST_SEEDS]
        for place in range(len(seed))
        for value in (VALUES.values() if varied else ())
    )
    calls = list(dict.fromkeys([*first, *others]))
    by_call = {call: type_ for call, type_ in zip(calls, analyzer.certain_types(calls), strict=True) if type_}
    ours = {call: type_by_mzplan(call) for call in by_call}
    report.wrong += [
        (call, by_call[call], mine) for call, mine in ours.items() if mine not in (None, by_call[call])
    ]
    stored = [call for call in first if canonical_type(by_call.get(call, VARIES))]
    if not stored:
        report.unstored.append(name)
    elif all(ours[call] for call in stored):
        report.right.append(name)
    else:
        report.untyped[name] = sorted(set(by_call.values()))


def _call(name: str, arguments: Iterable[str]) -> str:
    return f"{name}({', '.join(arguments)})"


def main() -> None:
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    logging.disable()
    report = compare(session, varied="--varied" in sys.argv)
    for call, type_, mine in report.wrong:
        print(f"wrong: {call} is {type_}, in mzplan {mine}")
    for name, types in report.untyped.items():
        print(f"untyped: {name}: {', '.join(types)}")
    print(f"unstored: {' '.join(report.unstored)}")
    print(f"missing: {' '.join(sorted(functions_of(session).keys() - functions().keys()))}")
    print(
        f"{len(report.right)} functions are typed right ({report.share:.1%}), {len(report.wrong)} calls wrong"
    )


if __name__ == "__main__":
    main()
