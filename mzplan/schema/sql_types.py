"""Finds the types of the expressions that `schema.expressions` accepts, by Spark 4's rules, without Spark.

The type is None unless it is certain, because a wrong type would lead to a wrong table. It is also None if it
depends on `spark.sql.ansi.enabled` (text with numbers, FLOAT with other types) or on
`spark.sql.decimalOperations.allowPrecisionLoss` (decimals of more than 38 digits).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, reduce
from typing import Any

from mzplan.schema.columns import (
    MAX_LENGTH,
    Column,
    DdlError,
    canonical_type,
    map_types,
    parse_columns,
    spark_type,
)
from mzplan.schema.sql_text import DIALECTS, BareText, bare, trees

INTEGRAL = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 20}  # with their digits as decimals
_BITS = {"INT": 31, "BIGINT": 63}  # types of literals
_MAX_DIGITS = 38
TIMES = ("TIMESTAMP", "TIMESTAMP_NTZ")
DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_CASTS = ("Cast", "TryCast")  # classes of sqlglot
_NULL = "VOID"  # the type of NULL: never a result
_PREFIX = "SELECT "
_ALIASED = re.compile(r".*\sAS\s+\w+", re.IGNORECASE | re.DOTALL)
# Types that don't depend on the operands, by Spark's names of functions and sqlglot's classes of other nodes.
_FIXED: Mapping[str, str] = {
    name: type_
    for type_, names in {
        "BOOLEAN": "array_contains arrays_overlap boolean contains endswith exists forall ilike isnan "
        "isnotnull isnull like map_contains_key regexp regexp_like rlike startswith And Between "
        "Boolean EQ GT GTE ILike In Is LT LTE Like NEQ Not NullSafeEQ NullSafeNEQ Or RegexpLike",
        "TINYINT": "tinyint",
        "SMALLINT": "smallint",
        "INT": "array_size ascii bit_length cardinality char_length character_length day dayofmonth "
        "dayofweek dayofyear find_in_set hash hour instr int json_array_length length "
        "levenshtein locate minute month octet_length position quarter regexp_count regexp_instr "
        "second size unix_date StrPosition weekday weekofyear year",
        "BIGINT": "array_position bigint crc32 to_unix_timestamp unix_micros unix_millis unix_seconds "
        "unix_timestamp xxhash64",
        "FLOAT": "float",
        "DOUBLE": "acos asin atan atan2 cbrt cos cosh degrees double e exp expm1 hypot ln log log10 log1p "
        "log2 months_between pi pow power radians sin sinh sqrt tan tanh",
        "DECIMAL(10,0)": "decimal",
        "STRING": "array_join base64 concat_ws date_format format_number format_string from_unixtime "
        "get_json_object hex lcase lower ltrim md5 printf regexp_extract regexp_replace "
        "regexp_substr repeat replace rtrim sha sha1 sha2 soundex space string substring_index "
        "to_json translate trim ucase upper url_decode url_encode Initcap RawString Trim",
        "BINARY": "binary unbase64 unhex HexString",
        "DATE": "add_months curdate current_date date date_from_unix_date last_day make_date next_day "
        "to_date trunc",
        # Some depend on spark.sql.timestampType, like TIMESTAMP in a schema.
        "TIMESTAMP": "current_timestamp date_trunc now timestamp timestamp_micros timestamp_millis "
        "timestamp_seconds to_timestamp to_timestamp_ltz try_to_timestamp",
        "TIMESTAMP_NTZ": "localtimestamp to_timestamp_ntz",
        "ARRAY<STRING>": "json_object_keys regexp_extract_all split",
        "MAP<STRING,STRING>": "str_to_map",
        _NULL: "Null",
    }.items()
    for name in names.split()
}


def type_of(text: str, columns: Sequence[Column]) -> str | None:
    """Return the type of an item of `select` over a collection's columns, in canonical Spark DDL.

    `text`: an item that `parse_select` has accepted. Returns None if the type isn't certain.
    """
    written = bare(text)
    for dialect in DIALECTS:
        with suppress(Exception):  # sqlglot raises any error, and text may be nested too deep
            (query,) = trees(_PREFIX, written, dialect)
            (item,) = query.expressions
            tree = item.unalias()
            types = {column.name.lower(): column.type for column in columns}
            typed = ExpressionTypes(written, len(_PREFIX), types)
            type_ = typed.of(tree) if typed.has_every_plus(tree) else None
            return canonical_type(type_) if type_ else None
    return None


class ExpressionTypes:
    """Finds the types of sqlglot's nodes. Types are canonical DDL without NOT NULL and CHAR, or _NULL.

    - `prefix`: how many characters sqlglot has read before the text.
    - `columns`: the type of each column, by its name in lower case.
    """

    def __init__(self, text: BareText, prefix: int, columns: Mapping[str, str]):
        self._text, self._prefix, self._columns = text, prefix, columns
        self._quoted = {at for start, end in text.quoted for at in range(start, end)}

    def has_every_plus(self, tree: Any) -> bool:
        """Return whether sqlglot's tree has every `+` of the text; it leaves out a unary `+`."""
        from sqlglot import exp

        written = (at for at, sign in enumerate(self._text.sql) if sign == "+" and at not in self._quoted)
        return len(list(written)) == len(list(tree.find_all(exp.Add)))

    def of(self, node: Any) -> str | None:
        node = node.unnest()
        name = self.function_name(node)
        rule = _RULES.get(name)
        return rule(self, node) if rule else _FIXED.get(name)

    def function_name(self, node: Any) -> str:
        """Return the Spark name of the function that a node calls.

        If the node isn't a function call, return its sqlglot class name. sqlglot uses one class for several
        functions, so the name is read from the SQL text, at the position that sqlglot records.
        """
        from sqlglot import exp

        if not isinstance(node, exp.Func) or "start" not in node.meta:
            return type(node).__name__
        start, end = (node.meta[at] - self._prefix for at in ("start", "end"))
        return self._text.sql[start : end + 1].lower()

    # ── values

    def _column(self, node: Any) -> str | None:
        return self.column(node)

    def column(self, node: Any) -> str | None:
        """Return the type of a column, or of a field of one."""
        first, *fields = [part.name.lower() if _is_name(part) else "" for part in node.parts]
        return reduce(field_type, fields, plain_type(self._columns.get(first)))

    def _dot(self, node: Any) -> str | None:
        return field_type(self.of(node.this), node.expression.name) if _is_name(node.expression) else None

    def _number(self, node: Any) -> str | None:
        if type(node).__name__ == "Literal" and node.is_string:
            return "STRING"
        number = _literal(node)
        if number is None:  # `-x`
            return if_number(self.of(node.this))
        if "e" in number.lower():
            return "DOUBLE"
        whole, _, fraction = number.lstrip("-").partition(".")
        if fraction:
            digits = (whole + fraction).lstrip("0")
            return _decimal(max(len(digits), len(fraction)), len(fraction))
        value = int(number)
        types = (name for name, bits in _BITS.items() if -(2**bits) <= value < 2**bits)
        return next(types, None) or _decimal(len(whole.lstrip("0")), 0)

    def _cast(self, node: Any) -> str | None:
        to = str(node.to.sql(dialect="spark"))
        # sqlglot also reads 1.2BD as a cast, in some versions without the digits, and nests the casts of
        # DATE '…'::STRING in the wrong order.
        is_literal = to == "DECIMAL" and _literal(node.this) is not None
        if is_literal or (type(node).__name__ == "Cast" and type(node.this).__name__ in _CASTS):
            return None
        return plain_type(canonical_type(to))

    # ── operators and functions

    def _arithmetic(self, node: Any) -> str | None:
        operator = type(node).__name__
        operands = [operand.unnest() for operand in (node.this, node.expression)]
        if type(operands[1]).__name__ == "Interval" and operator in ("Add", "Sub"):
            moved = self.of(operands[0])
            return moved if moved in TIMES else None
        left, right = (if_number(self.of(operand)) for operand in operands)
        if left is None or right is None:
            return None
        if operator == "IntDiv":
            return None if {"FLOAT", "DOUBLE"} & {left, right} else "BIGINT"
        if not any(DECIMAL.match(type_) for type_ in (left, right)):
            return "DOUBLE" if operator == "Div" else wider(left, right)
        if {"FLOAT", "DOUBLE"} & {left, right}:
            return "DOUBLE"
        sizes = _size(operands[0], left), _size(operands[1], right)
        return _decimal_of(operator, *sizes[0], *sizes[1]) if sizes[0] and sizes[1] else None

    def _first(self, node: Any) -> str | None:
        return self.of(next(node.iter_expressions()))

    def _first_number(self, node: Any) -> str | None:
        return if_number(self._first(node))

    def _first_text(self, node: Any) -> str | None:
        """Return STRING if the first argument is a STRING; otherwise the result may be BINARY, so None."""
        return "STRING" if self._first(node) == "STRING" else None

    def _common(self, node: Any) -> str | None:
        return self._common_of(node.iter_expressions())

    def _choice(self, node: Any) -> str | None:
        _, *values = node.iter_expressions()
        return self._common_of(values) if len(values) == 2 else None

    def _case(self, node: Any) -> str | None:
        default = node.args.get("default")
        values = [branch.args["true"] for branch in node.args["ifs"]]
        return self._common_of([*values, default] if default is not None else values)

    def _common_of(self, values: Iterable[Any]) -> str | None:
        return reduce(wider, (self.of(value) for value in values))

    def _concat(self, node: Any) -> str | None:
        from sqlglot import exp

        if isinstance(node, exp.DPipe):  # with other operators, sqlglot's precedence differs from Spark's
            operands = (node.this, node.expression)
            if any(isinstance(x, exp.Binary) and not isinstance(x, exp.DPipe | exp.Dot) for x in operands):
                return None
        types = {self.of(operand) for operand in node.iter_expressions()}
        certain = "STRING" in types and not any(type_ is None or "<" in type_ for type_ in types)
        return "STRING" if certain else None

    def _rounded(self, node: Any) -> str | None:
        type_, places = self._first_number(node), "0"
        for argument in list(node.iter_expressions())[1:]:
            places = _literal(argument) or ""
        decimal = DECIMAL.match(type_ or "")
        if decimal is None:
            return type_
        if not places.isdecimal():
            return None
        digits, kept = int(decimal[1]) - int(decimal[2]), min(int(decimal[2]), int(places))
        return _decimal(digits + 1 + kept, kept)

    def _integral(self, node: Any) -> str | None:
        """Return the type of floor and ceil."""
        type_ = self._first_number(node)
        if type_ is None or node.args.get("decimals") is not None:
            return None
        if decimal := DECIMAL.match(type_):
            digits, scale = int(decimal[1]), int(decimal[2])
            return _decimal(digits - scale + 1, 0) if scale else type_
        return "BIGINT"

    def _days(self, node: Any) -> str | None:
        """Return the type of date_add, date_sub and datediff; None if they are called with a unit."""
        if type(node).__name__ == "TsOrDsAdd":
            return "DATE"
        return "INT" if type(node).__name__ == "DateDiff" and not node.args.get("unit") else None

    # ── nested types

    def _array(self, node: Any) -> str | None:
        element = self._common_of(node.expressions) if node.expressions else None
        return f"ARRAY<{element}>" if element else None

    def _map(self, node: Any) -> str | None:
        key, value = (self._array(node.args[side]) for side in ("keys", "values"))
        return f"MAP<{inside(key, 'ARRAY')},{inside(value, 'ARRAY')}>" if key and value else None

    def _struct(self, node: Any) -> str | None:
        """Return the type of a struct; None if the names of its fields aren't certain.

        sqlglot reads `struct(a = b)` as `struct(b AS a)`, has no name for `(a)`, and uses the 'a' in
        upper('a') as a name.
        """
        written = self._argument_texts(node)
        if self.function_name(node) == "named_struct":
            certain = all(re.fullmatch(r"'\w+'|\"\w+\"", name) for name in written[::2])
        else:
            certain = all(_ALIASED.fullmatch(value) or not re.search(r"^\(|=", value) for value in written)
        types = [(field.name, self.of(field.expression)) for field in node.expressions]
        fields = [Column(name, type_) for name, type_ in types if type_]
        is_long = sum(len(field.type) for field in fields) > MAX_LENGTH
        return struct_of(fields) if certain and len(fields) == len(types) and not is_long else None

    def _argument_texts(self, node: Any) -> list[str]:
        """Return the arguments of a call as written."""
        start = node.meta["end"] + 1 - self._prefix
        depth, ends = 0, []
        for at in range(start, len(self._text.sql)):
            sign = "" if at in self._quoted else self._text.sql[at]
            depth += (sign in ("(", "[")) - (sign in (")", "]"))
            if (sign == "," and depth == 1) or (depth == 0 and sign == ")"):
                ends.append(at)
            if depth == 0 and sign == ")":
                break
        opened = self._text.sql.index("(", start)
        return [self._text.sql[a + 1 : b].strip() for a, b in zip([opened, *ends], ends, strict=False)]

    def _from_json(self, node: Any) -> str | None:
        types = node.expression.this
        try:
            return plain_type(canonical_type(types) or struct_of(parse_columns(types)))
        except DdlError:
            return None

    def _element(self, node: Any) -> str | None:
        whole, *keys = node.iter_expressions()
        type_ = self.of(whole)
        if len(keys) == 1 and keys[0].is_string and (type_ or "").startswith("STRUCT<"):
            return field_type(type_, keys[0].name)
        pair = pair_of(type_)
        return pair[1] if pair else inside(type_, "ARRAY")


_RULES: Mapping[str, Callable[[ExpressionTypes, Any], str | None]] = {
    name: rule
    for names, rule in (
        ("Column", ExpressionTypes._column),
        ("Dot", ExpressionTypes._dot),
        ("Literal Neg", ExpressionTypes._number),
        ("Cast TryCast", ExpressionTypes._cast),
        ("Add Sub Mul Div Mod mod IntDiv", ExpressionTypes._arithmetic),
        ("Case", ExpressionTypes._case),
        ("Bracket get", ExpressionTypes._element),
        ("abs negative", ExpressionTypes._first_number),
        ("bround round", ExpressionTypes._rounded),
        ("ceil ceiling floor Ceil Floor", ExpressionTypes._integral),
        ("coalesce greatest ifnull least nvl", ExpressionTypes._common),
        ("if nvl2 If", ExpressionTypes._choice),
        ("nullif filter array_compact array_distinct slice sort_array map_filter", ExpressionTypes._first),
        ("left lpad reverse right rpad substr substring Substring", ExpressionTypes._first_text),
        ("concat Concat DPipe", ExpressionTypes._concat),
        ("date_add date_diff date_sub dateadd datediff", ExpressionTypes._days),
        ("array", ExpressionTypes._array),
        ("map", ExpressionTypes._map),
        ("named_struct struct", ExpressionTypes._struct),
        ("from_json", ExpressionTypes._from_json),
    )
    for name in names.split()
}


# ── types


def _decimal(precision: int, scale: int) -> str | None:
    return f"DECIMAL({precision},{scale})" if 1 <= precision <= _MAX_DIGITS else None


def _decimal_of(operator: str, p: int, s: int, q: int, t: int) -> str | None:
    """Return the type of an operation on DECIMAL(p,s) and DECIMAL(q,t).

    Returns None for more than 38 digits, where the type depends on a setting.
    """
    whole, scale = max(p - s, q - t), max(s, t)
    match operator:
        case "Add" | "Sub":
            return _decimal(whole + 1 + scale, scale)
        case "Mul":
            return _decimal(p + q + 1, s + t)
        case "Div":
            scale = max(6, s + q + 1)
            return _decimal(p - s + t + scale, scale)
        case "Mod":
            return _decimal(min(p - s, q - t) + scale, scale)
    return None


def _size(operand: Any, type_: str) -> tuple[int, int] | None:
    """Return the precision and scale of an operand of an operation with a decimal; None if uncertain.

    A literal integer counts with its own digits. The tree doesn't tell CAST(1 AS BIGINT) from the literal 1L.
    """
    if match := DECIMAL.match(type_):
        return int(match[1]), int(match[2])
    number = _literal(operand)
    if number is not None:
        return len(str(abs(int(number)))), 0
    cast = operand.this if type(operand).__name__ == "Neg" else operand
    is_doubtful = type(cast).__name__ in _CASTS and _literal(cast.this) is not None
    return None if is_doubtful else (INTEGRAL[type_], 0)


def wider(one: str | None, other: str | None) -> str | None:
    """Return the common type of two types; None if it isn't certain."""
    if one == other or one is None or other == _NULL:
        return one
    if other is None or one == _NULL:
        return other
    pair = {one, other}
    if pair <= INTEGRAL.keys():
        return max(pair, key=lambda type_: INTEGRAL[type_])
    if pair == {"DATE", "TIMESTAMP"}:
        return "TIMESTAMP"
    if not all(map(if_number, pair)) or "FLOAT" in pair:
        return None
    if "DOUBLE" in pair:
        return "DOUBLE"
    (p, s), (q, t) = (_size(None, type_) or (0, 0) for type_ in pair)
    return _decimal(max(p - s, q - t) + max(s, t), max(s, t))


def if_number(type_: str | None) -> str | None:
    is_number = type_ in (*INTEGRAL, "FLOAT", "DOUBLE") or DECIMAL.match(type_ or "")
    return type_ if is_number else None


@lru_cache(maxsize=8192)
def plain_type(type_: str | None) -> str | None:
    """Return the type that Spark computes with; None if a field's name might look like a type."""
    plain = spark_type(type_ or "")
    return None if not type_ or (plain != type_ and "`" in type_) else plain


def struct_of(fields: Iterable[Column]) -> str:
    return f"STRUCT<{','.join(field.as_field for field in fields)}>"


def inside(type_: str | None, kind: str) -> str | None:
    return type_[len(kind) + 1 : -1] if type_ and type_.startswith(f"{kind}<") else None


def pair_of(type_: str | None) -> tuple[str, str] | None:
    """Return the types of a map's keys and values."""
    return map_types(type_) if type_ and type_.startswith("MAP<") else None


def field_type(type_: str | None, name: str) -> str | None:
    """Return the type of `x.name`, where `x` has this type."""
    if element := inside(type_, "ARRAY"):
        field = field_type(element, name) if element.startswith("STRUCT<") else None
        return f"ARRAY<{field}>" if field else None
    if pair := pair_of(type_):
        return pair[1] if pair[0] == "STRING" else None
    struct = inside(type_, "STRUCT")
    fields = parse_columns(struct) if struct else ()
    return next((field.type for field in fields if field.name.lower() == name.lower()), None)


# ── nodes


def _is_name(node: Any) -> bool:
    return type(node).__name__ == "Identifier"


def _literal(node: Any) -> str | None:
    """Return the text of a numeric literal, with its minus sign; None for other nodes."""
    minus = "-" if type(node).__name__ == "Neg" else ""
    inner = node.this if minus else node
    return f"{minus}{inner.this}" if type(inner).__name__ == "Literal" and not inner.is_string else None
