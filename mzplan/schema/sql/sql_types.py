"""Finds the types of expressions (schema.sql.expressions) by Spark 4's rules, without Spark.

The type is None unless it is certain, because a wrong type would lead to a wrong table. It is also None if it
depends on `spark.sql.ansi.enabled` (text with numbers, FLOAT with other types) or on
`spark.sql.decimalOperations.allowPrecisionLoss` (decimals of more than 38 digits).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from types import MappingProxyType
from typing import Any

from mzplan.schema.columns import MAX_LENGTH, Column, DdlError, canonical_type, parse_columns
from mzplan.schema.sql.functions import functions
from mzplan.schema.sql.sql_text import DIALECTS, BareText, arguments_of, bare, function_name, trees
from mzplan.schema.sql.type_rules import (
    DECIMAL,
    INTEGRAL,
    NULL,
    TIMES,
    decimal_of,
    decimal_type,
    digits_of,
    field_type,
    if_number,
    inside,
    pair_of,
    plain_type,
    result_type,
    struct_of,
    wider,
)

_BITS = {"INT": 31, "BIGINT": 63}  # types of literals
_CASTS = ("Cast", "TryCast")  # classes of sqlglot
_PREFIX = "SELECT "
_ALIASED = re.compile(r".*\sAS\s+\w+", re.IGNORECASE | re.DOTALL)
# The types of nodes that aren't calls of functions, by sqlglot's classes.
_FIXED: Mapping[str, str] = {
    **{
        name: "BOOLEAN"
        for names in ("And Between Boolean EQ Escape GT GTE ILike In Is LT LTE", "Like NEQ Not NullSafeEQ Or")
        for name in names.split()
    },
    "HexString": "BINARY",
    "Null": NULL,
    "NullSafeNEQ": "BOOLEAN",
    "RawString": "STRING",
    "RegexpLike": "BOOLEAN",
}
_DATE_UNITS = frozenset(["YEAR", "QUARTER", "MONTH", "WEEK", "DAY"])
_PARTS = re.compile(
    r"(?:YEAR|MONTH|WEEK|DAY|HOUR|MINUTE)S?|YEAROFWEEK|QUARTER|(?:DAYOFWEEK|DOW)(?:_ISO)?|DOY", re.IGNORECASE
)
_NO_TYPES: Mapping[str, str] = MappingProxyType({})
_DIGIT = re.compile("[09]")  # in the format of a number
# The operators that functions compute as.
_OPERATORS = {
    "mod": "Mod",
    "pmod": "Mod",
    "try_add": "Add",
    "try_divide": "Div",
    "try_mod": "Mod",
    "try_multiply": "Mul",
    "try_subtract": "Sub",
}
_HIGHER_ORDER = (
    "aggregate array_sort exists filter forall map_filter map_zip_with reduce transform transform_keys "
    "transform_values zip_with"
)


def type_of(text: str, columns: Sequence[Column], returned: Mapping[str, str] = _NO_TYPES) -> str | None:
    """Return the type of an item of `select` over a collection's columns, in canonical Spark DDL.

    `text`: an item that `parse_select` has accepted. `returned`: see ExpressionTypes. Returns None if the
    type isn't certain.
    """
    written = bare(text)
    for dialect in DIALECTS:
        with suppress(Exception):  # sqlglot raises any error, and text may be nested too deep
            (query,) = trees(_PREFIX, written, dialect)
            (item,) = query.expressions
            tree = item.unalias()
            types = {column.name.lower(): column.type for column in columns}
            typed = ExpressionTypes(written, len(_PREFIX), types, returned)
            type_ = typed.of(tree) if typed.has_every_plus(tree) else None
            return canonical_type(type_) if type_ else None
    return None


class ExpressionTypes:
    """Finds the types of sqlglot's nodes. Types are canonical DDL without NOT NULL and CHAR, or NULL.

    - `prefix`: how many characters sqlglot has read before the text.
    - `columns`: the type of each column, by its name in lower case.
    - `returned`: the type of each function of the user, by its name.
    """

    def __init__(
        self,
        text: BareText,
        prefix: int,
        columns: Mapping[str, str],
        returned: Mapping[str, str] = _NO_TYPES,
    ):
        self._text, self._prefix, self._columns = text, prefix, columns
        self._returned = returned
        self._variables: Mapping[str, str | None] = {}  # of the functions around
        self._quoted = {at for start, end in text.quoted for at in range(start, end)}

    def has_every_plus(self, tree: Any) -> bool:
        """Return whether sqlglot's tree has every `+` of the text; it leaves out a unary `+`."""
        from sqlglot import exp

        written = (at for at, sign in enumerate(self._text.sql) if sign == "+" and at not in self._quoted)
        return len(list(written)) == len(list(tree.find_all(exp.Add)))

    def of(self, node: Any) -> str | None:
        node = node.unnest()
        name = self.function_name(node)
        if (rule := _RULES.get(name)) is not None:
            return rule(self, node)
        if type(node).__name__ == "Anonymous" and (type_ := self._returned.get(name)) is not None:
            return type_
        function = functions().get(name)
        if function is not None and function.result:
            return self._result(function.result, node)
        by_class = _RULES.get(type(node).__name__)
        return by_class(self, node) if by_class is not None else _FIXED.get(name)

    def _result(self, rule: str, node: Any) -> str | None:
        """Return the type of a call by a rule of functions.tsv."""
        needs_types = "{" in rule or not rule[0].isupper()
        return result_type(rule, [self.of(one) for one in self.arguments(node)] if needs_types else ())

    def arguments(self, node: Any) -> list[Any]:
        """Return the arguments of a call as written, without DISTINCT."""
        from sqlglot import exp

        arguments = arguments_of(node)
        if arguments and isinstance(arguments[0], exp.Distinct):
            return [*arguments[0].expressions, *arguments[1:]]
        return [one for one in arguments if not isinstance(one, exp.Order)]

    def function_name(self, node: Any) -> str:
        """Return Spark's name of the function that a node calls; sqlglot's class for another node."""
        return function_name(node, self._text.sql, self._prefix)

    # ── values

    def _column(self, node: Any) -> str | None:
        first, *fields = node.parts
        if (name := first.name.lower()) in self._variables:  # a call's own arguments still have columns here
            return reduce(field_type, (part.name for part in fields), self._variables[name])
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
            return decimal_type(max(len(digits), len(fraction)), len(fraction))
        value = int(number)
        types = (name for name, bits in _BITS.items() if -(2**bits) <= value < 2**bits)
        return next(types, None) or decimal_type(len(whole.lstrip("0")), 0)

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
        name = self.function_name(node)
        operator = _OPERATORS.get(name, type(node).__name__)
        operands = [operand.unnest() for operand in arguments_of(node)]
        if len(operands) != 2:
            return None
        if operator in ("Add", "Sub") and (moved := self._moved(operator, operands)) is not None:
            return moved
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
        return decimal_of(operator, *sizes[0], *sizes[1]) if sizes[0] and sizes[1] else None

    def _moved(self, operator: str, operands: Sequence[Any]) -> str | None:
        """Return the type of a time plus or minus an interval or days, or of a difference of times."""
        left, right = (self.of(operand) for operand in operands)
        if operator == "Add" and left is not None and left.startswith("INTERVAL"):
            left, right, operands = right, left, [*reversed(operands)]
        if left not in ("DATE", *TIMES) or right is None:
            return None
        if right.startswith("INTERVAL"):
            units = set(right.split()[1:]) - {"TO"}
            return left if left != "DATE" or units <= _DATE_UNITS else "TIMESTAMP"
        if operator == "Sub" and right in ("DATE", *TIMES):
            return "INTERVAL DAY" if {left, right} == {"DATE"} else "INTERVAL DAY TO SECOND"
        return "DATE" if left == "DATE" and right in ("TINYINT", "SMALLINT", "INT") else None

    def _interval(self, node: Any) -> str | None:
        """Return the type of an interval with one unit, or a span of units."""
        unit = node.args.get("unit")
        words = str(unit.sql() if unit is not None else "").upper().replace("WEEK", "DAY").split()
        units = [word.removesuffix("S") for word in words if word != "TO"]
        known = (*_DATE_UNITS, "HOUR", "MINUTE", "SECOND")
        return f"INTERVAL {' TO '.join(units)}" if units and set(units) <= {*known} else None

    def _bits(self, node: Any) -> str | None:
        types = [self.of(operand) for operand in arguments_of(node)]
        whole = all(type_ in INTEGRAL for type_ in types)
        return reduce(wider, types) if whole else None

    def _shifted(self, node: Any) -> str | None:
        first = self.of(arguments_of(node)[0])
        return ("BIGINT" if first == "BIGINT" else "INT") if first in INTEGRAL else None

    def _extracted(self, node: Any) -> str | None:
        """Return the type of EXTRACT(part FROM time), and of date_part('part', time)."""
        part, time = arguments_of(node)
        name, of = str(part.name).upper(), self.of(time)
        if of not in ("DATE", *TIMES):
            return None
        if name in ("SECOND", "SECONDS"):
            return "DECIMAL(8,6)"
        return "INT" if _PARTS.fullmatch(name) else None

    def _inner(self, node: Any) -> str | None:
        return self.of(node.this)

    def _window(self, node: Any) -> str | None:
        type_ = self._first(node)
        return struct_of([Column("start", type_), Column("end", type_)]) if type_ in TIMES else None

    def _window_time(self, node: Any) -> str | None:
        return field_type(self._first(node), "end")

    def _variable(self, node: Any) -> str | None:
        return self._variables.get(node.name.lower())

    def _higher_order(self, node: Any) -> str | None:
        """Return the type of a call with functions as arguments, such as transform."""
        name, (whole, *more) = self.function_name(node), arguments_of(node)
        first = self.of(whole)
        if name in ("exists", "forall"):
            return "BOOLEAN"
        if first is None or name in ("array_sort", "filter", "map_filter"):
            return first
        element, pair = inside(first, "ARRAY"), pair_of(first)
        if name in ("aggregate", "reduce") and len(more) > 1:
            state = self.of(more[0])
            if self._body(more[1], state, element) != state:
                return None
            return self._body(more[2], state) if len(more) > 2 else state
        if name == "transform":
            body = self._body(more[0], element, "INT")
        elif name == "zip_with":
            body = self._body(more[1], element, inside(self.of(more[0]), "ARRAY"))
        elif pair is None:
            return None
        elif name == "map_zip_with":
            other = pair_of(self.of(more[0]))
            key = wider(pair[0], other[0]) if other else None
            if other is None or key is None:
                return None
            pair = key, pair[1]
            body = self._body(more[1], *pair, other[1])
        else:
            body = self._body(more[0], *pair)
        if body in (None, NULL):
            return None
        if pair is None:
            return f"ARRAY<{body}>"
        return f"MAP<{body},{pair[1]}>" if name == "transform_keys" else f"MAP<{pair[0]},{body}>"

    def _body(self, function: Any, *types: str | None) -> str | None:
        """Return the type of a function's result. `types`: its variables' types."""
        if type(function).__name__ != "Lambda":
            return self.of(function)
        names = [variable.name.lower() for variable in function.expressions]
        around = self._variables
        self._variables = {**around, **dict(zip(names, types, strict=False))}
        try:
            return self.of(function.this)
        finally:
            self._variables = around

    def _first(self, node: Any) -> str | None:
        return self.of(arguments_of(node)[0])

    def _first_number(self, node: Any) -> str | None:
        return if_number(self._first(node))

    def _common(self, node: Any) -> str | None:
        return self._common_of(arguments_of(node))

    def _choice(self, node: Any) -> str | None:
        _, *values = arguments_of(node)
        return self._common_of(values) if len(values) == 2 else None

    def _decoded(self, node: Any) -> str | None:
        """Return the type of decode(binary, charset), or of decode(value, search, result, …)."""
        arguments = arguments_of(node)
        if len(arguments) == 2:
            return "STRING"
        return self._common_of([*arguments[2::2], *(arguments[-1:] if len(arguments) % 2 == 0 else ())])

    def _ordered(self, node: Any) -> str | None:
        """Return the type of `… WITHIN GROUP (ORDER BY x)`."""
        name, order = self.function_name(node.this), node.expression.expressions[0].this
        if name in ("percentile_cont", "percentile_disc"):
            given = self.of(arguments_of(node.this)[0])
            return result_type("percentile", (self.of(order), given))
        return self.of(order) if name == "mode" else self.of(node.this)

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
        listed = [self.of(operand) for operand in arguments_of(node)]
        types = set(listed)
        if listed and all(inside(type_, "ARRAY") for type_ in listed):
            return result_type("united", listed)
        certain = "STRING" in types and not any(type_ is None or "<" in type_ for type_ in types)
        return "STRING" if certain else None

    def _rounded(self, node: Any) -> str | None:
        type_, places = self._first_number(node), "0"
        for argument in arguments_of(node)[1:]:
            places = _literal(argument) or ""
        decimal = DECIMAL.match(type_ or "")
        if decimal is None:
            return type_
        if not places.isdecimal():
            return None
        digits, kept = int(decimal[1]) - int(decimal[2]), min(int(decimal[2]), int(places))
        return decimal_type(digits + 1 + kept, kept)

    def _integral(self, node: Any) -> str | None:
        """Return the type of floor and ceil."""
        type_ = self._first_number(node)
        if type_ is None or len(arguments_of(node)) > 1:
            return self._rounded(node) if DECIMAL.match(type_ or "") else None
        if decimal := DECIMAL.match(type_):
            digits, scale = int(decimal[1]), int(decimal[2])
            return decimal_type(digits - scale + 1, 0) if scale else type_
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

    def _zipped(self, node: Any) -> str | None:
        """Return the type of arrays_zip: a field has the name of its column, or else its number."""
        from sqlglot import exp

        fields = {}
        for number, argument in enumerate(written.unnest() for written in arguments_of(node)):
            element = inside(self.of(argument), "ARRAY")
            if element is None or isinstance(argument, exp.Bracket | exp.Identifier):
                return None
            is_column = isinstance(argument, exp.Column | exp.Dot)
            name = argument.name if is_column else str(number)
            fields[name.lower()] = Column(name, element)
        named = struct_of(fields.values())
        return f"ARRAY<{named}>" if fields and len(fields) == len(arguments_of(node)) else None

    def _to_number(self, node: Any) -> str | None:
        """Return the type of to_number(text, format), whose digits follow from the format."""
        arguments = arguments_of(node)
        if len(arguments) != 2 or not arguments[1].is_string:
            return None
        whole, _, fraction = arguments[1].name.upper().replace("D", ".").partition(".")
        scale = len(_DIGIT.findall(fraction))
        return decimal_type(len(_DIGIT.findall(whole)) + scale, scale)

    def _from_json(self, node: Any) -> str | None:
        types = arguments_of(node)[1].name
        try:
            return plain_type(canonical_type(types) or struct_of(parse_columns(types)))
        except DdlError:
            return None

    def _of_variant(self, node: Any) -> str | None:
        """Return the type that variant_get names."""
        arguments = arguments_of(node)
        return plain_type(canonical_type(arguments[2].name)) if len(arguments) > 2 else None

    def _element(self, node: Any) -> str | None:
        whole, *keys = arguments_of(node)
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
        ("Identifier", ExpressionTypes._variable),
        ("Literal Neg", ExpressionTypes._number),
        ("Interval", ExpressionTypes._interval),
        ("Cast TryCast", ExpressionTypes._cast),
        ("Add Sub Mul Div Mod IntDiv", ExpressionTypes._arithmetic),
        (" ".join(_OPERATORS), ExpressionTypes._arithmetic),
        ("BitwiseAnd BitwiseOr BitwiseXor BitwiseNot", ExpressionTypes._bits),
        (
            "BitwiseLeftShift BitwiseRightShift shiftleft shiftright shiftrightunsigned",
            ExpressionTypes._shifted,
        ),
        ("Case", ExpressionTypes._case),
        ("Bracket", ExpressionTypes._element),
        ("Extract date_part datepart", ExpressionTypes._extracted),
        ("bround round", ExpressionTypes._rounded),
        ("ceil ceiling floor", ExpressionTypes._integral),
        ("if nvl2", ExpressionTypes._choice),
        ("decode", ExpressionTypes._decoded),
        ("concat DPipe", ExpressionTypes._concat),
        ("date_add date_diff date_sub dateadd datediff", ExpressionTypes._days),
        ("array", ExpressionTypes._array),
        ("map", ExpressionTypes._map),
        ("named_struct struct", ExpressionTypes._struct),
        ("from_csv from_json from_xml", ExpressionTypes._from_json),
        ("arrays_zip", ExpressionTypes._zipped),
        ("to_number try_to_number", ExpressionTypes._to_number),
        ("variant_get try_variant_get", ExpressionTypes._of_variant),
        ("WithinGroup", ExpressionTypes._ordered),
        ("Filter", ExpressionTypes._inner),
        ("session_window window", ExpressionTypes._window),
        ("window_time", ExpressionTypes._window_time),
        (_HIGHER_ORDER, ExpressionTypes._higher_order),
    )
    for name in names.split()
}


# ── nodes


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
    return None if is_doubtful else digits_of(type_)


def _is_name(node: Any) -> bool:
    return type(node).__name__ == "Identifier"


def _literal(node: Any) -> str | None:
    """Return the text of a numeric literal, with its minus sign; None for other nodes."""
    minus = "-" if type(node).__name__ == "Neg" else ""
    inner = node.this if minus else node
    return f"{minus}{inner.this}" if type(inner).__name__ == "Literal" and not inner.is_string else None
