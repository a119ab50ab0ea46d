"""Finds the parts of an expression that must not run, and those whose value changes each time.

Spark computes a call with constant arguments while it analyses the expression, and nothing can stop it. Most
calls are quick. The exceptions are large results (`repeat('a', 1000000000)`), and patterns that take hours to
match.
"""

from __future__ import annotations

import re
from math import inf, prod
from typing import Any

from mzplan.schema.sql.functions import is_aggregate
from mzplan.schema.sql.sql_text import arguments_of, function_name


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


_MOST = 10_000  # how many times as long as its arguments a constant may become
# Functions whose result grows with a number, and the index of that argument.
_SIZED = {
    "array_insert": 1,
    "array_repeat": 1,
    "bround": 1,
    "ceil": 1,
    "ceiling": 1,
    "floor": 1,
    "format_number": 1,
    "lpad": 1,
    "randstr": 0,
    "repeat": 1,
    "round": 1,
    "rpad": 1,
    "space": 0,
    "stack": 0,
}
_PLACES = frozenset(["bround", "ceil", "ceiling", "floor", "format_number", "round"])
# Functions whose result may be up to four times as long as their argument.
_LENGTHENING = frozenset(["base64", "encode", "hex", "quote", "to_csv", "to_json", "to_xml", "url_encode"])
# Functions with a regular expression, and the index of that argument.
_PATTERNS = {
    "RegexpLike": 1,
    "parse_url": 2,
    "regexp": 1,
    "regexp_count": 1,
    "regexp_extract": 1,
    "regexp_extract_all": 1,
    "regexp_instr": 1,
    "regexp_like": 1,
    "regexp_replace": 1,
    "regexp_substr": 1,
    "rlike": 1,
    "split": 1,
    "str_to_map": 1,
    "try_parse_url": 2,
}
_LIKES = frozenset(["ILike", "Like", "ilike", "like"])
_UNITS = frozenset(["DAY", "MONTH", "WEEK", "YEAR"])


def fault_of(tree: Any, text: str, prefix: int = 0) -> tuple[str, int] | None:
    """Return why an expression must not run, and its position in the text; None if it may run.

    Expressions must not call Java, compute constants that may take long, or use types that aren't DDL.
    `prefix`: how many characters sqlglot has read before the text.
    """
    return _java_fault(tree, text) or _constant_fault(tree, text, prefix) or _types_fault(tree, text)


def _java_fault(tree: Any, text: str) -> tuple[str, int] | None:
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


def _types_fault(tree: Any, text: str) -> tuple[str, int] | None:
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


def _constant_fault(tree: Any, text: str, prefix: int) -> tuple[str, int] | None:
    """Return why a constant call may take forever, and its position in the text; None without such a call."""
    from sqlglot import exp

    variable = _variable_nodes(tree)
    for node in reversed([*tree.find_all(exp.Func, exp.Like, exp.ILike)]):  # the innermost first
        if id(node) not in variable and _growth(node, text, prefix) > _MOST:
            written = node.sql(dialect="spark").partition("(")[0].lower()
            called = node.sql_name().lower() if isinstance(node, exp.Func) else "like"
            shown = written if written.isidentifier() else called
            why = f"{shown} computes a constant, which may take forever: write the value instead"
            return why, max(text.lower().find(shown), 0)
    return None


def _growth(node: Any, text: str, prefix: int) -> float:
    """Return how many times as long as its arguments the result of a constant call can be.

    The calls inside multiply. Returns infinity if no bound is known, also for the time that it takes.
    """
    inner = [_growth(part, text, prefix) for part in node.iter_expressions()]
    name, arguments = function_name(node, text, prefix), arguments_of(node)
    own = 1.0
    if name in _SIZED:
        at = _SIZED[name]
        size = _number(arguments[at]) if at < len(arguments) else 0
        own = inf if size is None or abs(size) > _MOST else 1 if name in _PLACES else max(abs(size), 1)
    elif name == "sequence":
        own = _length_of_sequence(arguments)
    elif name in ("format_string", "printf"):
        own = max([1, *map(int, re.findall(r"\d+", _text(arguments[0])))]) if _text(arguments[0]) else inf
    elif name in ("regexp_replace", "replace"):
        own = max(len(_text(arguments[2])), 1) if len(arguments) > 2 and _is_text(arguments[2]) else inf
    elif name in _LENGTHENING:
        own = 4
    elif name in ("aggregate", "reduce"):
        own = inf  # each repetition can double the result
    elif type(node).__name__ == "Lambda":
        own = 2 if node.this.find(type(node)) is None else inf
    if name in _PATTERNS or name in _LIKES:
        own = max(own, _time_of_pattern(name, arguments))
    return prod(inner, start=own)


def _time_of_pattern(name: str, arguments: list[Any]) -> float:
    """Return infinity for a pattern that might take long to match, because it repeats twice or more."""
    place = _PATTERNS.get(name, 1)
    if place >= len(arguments):
        return 1
    patterns = arguments[place:] if name == "str_to_map" else [arguments[place]]
    signs = "%" if name in _LIKES else "*+?{"
    if not all(_is_text(pattern) for pattern in patterns):
        return inf
    repeated = sum(pattern.name.count(sign) for pattern in patterns for sign in signs)
    return inf if repeated > (2 if name in _LIKES else 1) else 1


def _length_of_sequence(arguments: list[Any]) -> float:
    """Return the length of a sequence of numbers, or of dates by days; infinity for another sequence."""
    start, stop, step = [*map(_number, arguments), None, None, None][:3]
    if start is not None and stop is not None and (len(arguments) < 3 or step):
        return abs(stop - start) // abs(step or 1) + 1
    if len(arguments) == 3 and type(arguments[2]).__name__ == "Interval":
        years = [re.match(r"\d{4}-", _text(part.this)) for part in arguments[:2] if _is_date(part)]
        unit = str(arguments[2].args.get("unit") or "").upper().rstrip("S")
        if len(years) == 2 and all(years) and unit in _UNITS:
            first, last = (int(match[0][:4]) for match in years if match)
            return (abs(last - first) + 1) * 366
    return inf


def _is_date(node: Any) -> bool:
    return type(node).__name__ == "Cast" and str(node.to).upper() == "DATE" and _is_text(node.this)


def _is_text(node: Any) -> bool:
    return type(node).__name__ in ("Literal", "RawString") and (node.is_string or hasattr(node, "this"))


def _text(node: Any) -> str:
    """Return the text of a literal; "" for another expression."""
    return str(node.this) if _is_text(node) else ""


def _number(node: Any) -> int | None:
    """Return the value of a whole number; None for another expression."""
    minus = type(node).__name__ == "Neg"
    inner = node.this if minus else node
    if type(inner).__name__ == "Cast":  # sqlglot reads 1L as a cast
        inner = inner.this
    is_whole = type(inner).__name__ == "Literal" and not inner.is_string and inner.name.isdecimal()
    return int(inner.name) * (-1 if minus else 1) if is_whole else None


def _variable_nodes(tree: Any) -> set[int]:
    """Return the `id` of each node that contains a column, an aggregate, or a variable of a function.

    Each node is visited once.
    """
    from sqlglot import exp

    given: set[int] = set()

    def mark(node: Any, end: Any = None) -> None:
        while node is not None and node is not end and id(node) not in given:
            given.add(id(node))
            node = node.parent

    for node in tree.walk():
        if isinstance(node, exp.Column) or is_aggregate(node):
            mark(node)
    for function in tree.find_all(exp.Lambda):
        variables = {variable.name for variable in function.expressions}
        for word in function.this.find_all(exp.Identifier):
            if word.name in variables and _is_value(word):
                mark(word, function)
    return given


def _is_value(word: Any) -> bool:
    """Return whether an identifier stands for a value, and doesn't name a field, a type or a function."""
    from sqlglot import exp

    parent, place = word.parent, word.arg_key
    if isinstance(parent, exp.PropertyEQ | exp.Kwarg | exp.Column):
        return False
    if isinstance(parent, exp.Dot | exp.Collate):
        return bool(place == "this")
    if isinstance(parent, exp.Anonymous):
        return bool(place == "expressions")
    return isinstance(parent, exp.Condition | exp.Func) or (
        isinstance(parent, exp.Lambda) and place == "this"
    )
