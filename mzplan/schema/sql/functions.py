"""Spark's functions: their names, and which of them need other rows.

functions.tsv lists the functions of all supported lines of Spark, each with the first line that has it and a
rule for its result type. `python -m tools.spark_functions` compares it with the installed Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mzplan.schema.sql.sql_text import SqlTextError, bare, function_name, read_trees

NO_FUNCTION = "Spark 4.0, 4.1 and 4.2 have no function of this name"
_TABLE = Path(__file__).with_name("functions.tsv")
# Spark's parser reads these calls without a function of that name.
_SYNTAX = frozenset(["any_value", "exists", "identifier", "if", "struct", "try_cast", "typeof"])
# Words that can stand before a bracket without calling a function: `GROUP BY (a)`, `UNION (SELECT …)`.
_BEFORE_BRACKETS = frozenset(["by", "group", "offset", "row", "sets", "table", "union"])


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


AGGREGATES = _words(
    "any any_value approx_count_distinct approx_percentile approx_top_k approx_top_k_accumulate "
    "approx_top_k_combine array_agg avg bit_and bit_or bit_xor bitmap_and_agg bitmap_construct_agg "
    "bitmap_or_agg bool_and bool_or collect_list collect_set corr count count_if count_min_sketch "
    "covar_pop covar_samp every first first_value grouping grouping_id histogram_numeric hll_sketch_agg "
    "hll_union_agg kll_merge_agg_bigint kll_merge_agg_double kll_merge_agg_float kll_sketch_agg_bigint "
    "kll_sketch_agg_double kll_sketch_agg_float kurtosis last last_value listagg max max_by mean measure "
    "median min min_by mode percentile percentile_approx percentile_cont percentile_disc regr_avgx "
    "regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy "
    "schema_of_variant_agg skewness some std stddev stddev_pop stddev_samp string_agg sum "
    "theta_intersection_agg theta_sketch_agg theta_union_agg try_avg try_sum "
    "tuple_intersection_agg_double tuple_intersection_agg_integer tuple_sketch_agg_double "
    "tuple_sketch_agg_integer tuple_union_agg_double tuple_union_agg_integer var_pop var_samp variance "
    "vector_avg vector_sum"
)
# Functions that may be called without parentheses. A column comes before them; the name of an item doesn't.
BARE_CALLS = _words("current_date current_time current_timestamp current_user session_user user")
WINDOWS = _words("cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number")
GENERATORS = _words(
    "explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer session_window stack "
    "variant_explode variant_explode_outer window"
)


def is_aggregate(node: Any) -> bool:
    """Return whether a node of sqlglot's tree is an aggregate function."""
    from sqlglot import exp

    name = str(node.name).lower() if isinstance(node, exp.Anonymous) else ""
    return isinstance(node, exp.AggFunc) or name in AGGREGATES or _is_any(node)


def _is_any(node: Any) -> bool:
    """Return whether a node is the aggregate `any(x)`, and not `x LIKE ANY (…)`."""
    from sqlglot import exp

    return isinstance(node, exp.Any) and not isinstance(node.parent, exp.Like | exp.ILike)


@dataclass(frozen=True, slots=True)
class Function:
    """A function of Spark.

    - `since`: the first supported line that has it.
    - `result`: the rule for its result type, see `type_rules.result_type`; "" if another rule has the type.
    """

    since: str
    result: str


@cache
def functions() -> Mapping[str, Function]:
    """Return Spark's functions by name."""
    rows = (line.split("\t") for line in _TABLE.read_text(encoding="utf-8").splitlines())
    return {name: Function(since, result) for name, since, result in rows}


def bare_calls(tree: Any, text: str) -> list[tuple[str, int]]:
    """Return the functions that are called without parentheses, each with its first position in the text."""
    from sqlglot import exp

    names = (call.sql_name().lower() for call in tree.find_all(exp.Func) if "start" not in call.meta)
    called = sorted(BARE_CALLS.intersection(names))
    places = ((name, re.search(rf"(?i)\b{name}\b(?!\s*\()", text)) for name in called)
    return [(name, place.start() if place else 0) for name, place in places]


def function_or_column(name: str) -> str:
    """Return how to say which of the two a name stands for."""
    return f"write {name}() for the function, or `{name}` in backquotes for the column."


def is_reserved(name: str) -> bool:
    """Return whether a supported Spark has a function of this name, or reads a call of it in its own way."""
    return name in functions() or name in _SYNTAX


def reads_as_call(name: str) -> bool:
    """Return whether a name before a bracket is always a call of a function, and none that sqlglot knows."""

    def is_call(statements: list[Any]) -> bool:
        return [type(one).__name__ for one in statements[0].expressions] == ["Anonymous"]

    try:
        written = (bare(f"{name}({arguments})") for arguments in ("", "a", "a, b", "a, b, c"))
        is_called = all(read_trees("SELECT ", call, is_call) for call in written)
    except SqlTextError:
        return False
    return is_called and name not in _BEFORE_BRACKETS and not _is_type(name)


def _is_type(name: str) -> bool:
    try:
        read_trees("SELECT ", bare(f"CAST(a AS {name}(1))"), bool)
    except SqlTextError:
        return False
    return True


def unknown_functions(tree: Any, text: str, prefix: int = 0) -> list[tuple[str, int]]:
    """Return the calls of functions that no supported Spark has: their names, and where they are in the text.

    `prefix`: how many characters sqlglot has read before the text.
    """
    from sqlglot import exp

    known, unknown = functions(), []
    for node in tree.find_all(exp.Func):
        name = function_name(node, text, prefix)
        is_named = "start" in node.meta and not isinstance(node.parent, exp.Dot)
        if is_named and name not in known and name not in _SYNTAX:
            unknown.append((name, node.meta["start"] - prefix))
    return unknown
