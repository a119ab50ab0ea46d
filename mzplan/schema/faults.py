"""Finds the parts of an expression that must not run, and those whose value changes each time."""

from __future__ import annotations

import re
from typing import Any

from mzplan.schema.constants import constant_fault


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Calls whose value changes each time: sqlglot's classes, and names of functions. See also _VARYING_TEXT.
_VARYING_NODES = _words(
    "CurrentDate CurrentDatetime CurrentTime CurrentTimestamp Localtime Localtimestamp Rand Randn Randstr "
    "Shuffle Systimestamp Uniform Uuid"
)
_VARYING = _words(
    "curdate current_date current_time current_timestamp getdate input_file_block_length "
    "input_file_block_start input_file_name localtimestamp monotonically_increasing_id now rand randn random "
    "randstr shuffle spark_partition_id sysdate uniform uuid"
)
# Functions that call any method of any Java class, with the rights of the runner.
JAVA = _words("java_method reflect try_reflect")
# Functions that read the files and addresses that an XML document type names.
XPATH = _words(
    "xpath xpath_boolean xpath_double xpath_float xpath_int xpath_long xpath_number xpath_short xpath_string"
)
# Functions that read types from a text, and the index of that argument. As JSON, the text could name classes.
TYPED = {"from_json": 1, "from_csv": 1, "from_xml": 1, "variant_get": 2, "try_variant_get": 2}
SCHEMA_OF = _words("schema_of_csv schema_of_json schema_of_xml")
_VARYING_TEXT = re.compile(r"\s*(?:now|today|tomorrow|yesterday)\b", re.IGNORECASE)
# Functions that read a text as a time: sqlglot's classes, and names of functions.
_OF_TIMES = _words(
    "AddMonths AtTimeZone Cast DateTrunc Dayname Extract Hour LastDay Minute Monthname MonthsBetween NextDay "
    "Quarter Second StrToUnix TimeStrToTime TimestampAdd TimestampDiff TimestampTrunc TryCast TsOrDsAdd "
    "TsOrDsToDate UnixDate UnixMicros UnixMillis UnixSeconds date_part datepart to_timestamp_ltz "
    "to_timestamp_ntz try_to_date try_to_timestamp weekday"
)


def fault_of(tree: Any, text: str) -> tuple[str, int] | None:
    """Return why an expression must not run, and the position in the query's text; None if it may run.

    Expressions must not call Java, compute constants that may take long, or use types that aren't DDL.
    """
    return java_fault(tree, text) or constant_fault(tree, text) or types_fault(tree, text)


def java_fault(tree: Any, text: str) -> tuple[str, int] | None:
    """Return the fault of the first call of Java or XPath, also by a quoted or qualified name."""
    from sqlglot import exp

    for node in tree.find_all(exp.Anonymous):
        name = str(node.name)
        if name.lower() in JAVA:
            why = f"{name} calls Java code with the rights of the runner; use functions of Spark SQL"
            return why, max(text.find(name), 0)
        if name.lower() in XPATH:
            why = f"{name} opens any file or address that a document type in the text names; use from_xml"
            return why, max(text.find(name), 0)
    return None


def types_fault(tree: Any, text: str) -> tuple[str, int] | None:
    """Return the fault of the first call that reads types from text that isn't plain DDL."""
    from sqlglot import exp

    for node in tree.find_all(exp.Func):
        is_named = isinstance(node, exp.Anonymous)
        name = str(node.name if is_named else node.sql_name()).lower()
        if name in TYPED:
            given = node.expressions if is_named else [node.this, node.args.get("expression")]
            types = given[TYPED[name]] if len(given) > TYPED[name] else None
            inferred = isinstance(types, exp.Anonymous) and str(types.name).lower() in SCHEMA_OF
            plain = isinstance(types, exp.Literal) and is_ddl(types.this) and "\\" not in types.this
            if types is not None and not (inferred or plain):
                why = f"{name} takes its types as DDL, such as 'a INT, b STRING', or from schema_of_…"
                return why, max(text.lower().find(name), 0)
    return None


def varying_in(tree: Any, text: str) -> tuple[str, int] | None:
    """Return the first part of an expression whose value changes each time, as SQL, and its position.

    Returns None for an expression without such a part.
    """
    from sqlglot import exp

    for node in tree.walk(bfs=False):
        if isinstance(node, exp.Cast) and node.this is None:  # made from a call without arguments
            raise ValueError("a cast of nothing")
        called = str(node.name).lower() if isinstance(node, exp.Anonymous) else ""
        times = type(node).__name__ in _OF_TIMES or called in _OF_TIMES
        parts = (part.unnest() for part in node.iter_expressions()) if times else ()
        time = next((part.name for part in parts if _is_varying_text(part)), "")
        is_random = called == "aes_encrypt" and not _has_vector(node.expressions)
        if called in _VARYING or is_random or time or type(node).__name__ in _VARYING_NODES:
            shown = f"'{time}'" if time and not isinstance(node, exp.Cast) else node.sql(dialect="spark")
            word = time or shown.partition("(")[0]
            return shown, max(text.lower().find(word.lower()), 0)
    return None


def _is_varying_text(node: Any) -> bool:
    return bool(node.is_string and _VARYING_TEXT.match(node.name))


def _has_vector(arguments: list[Any]) -> bool:
    """Return whether aes_encrypt with these arguments uses no random vector."""
    return len(arguments) > 4 or (len(arguments) > 2 and arguments[2].name.upper() == "ECB")


def is_ddl(types: str) -> bool:
    """Return whether Spark reads a text with types as DDL rather than as JSON."""
    return not types.lstrip().startswith(("{", "[", '"'))
