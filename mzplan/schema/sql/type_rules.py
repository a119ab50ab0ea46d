"""Spark's rules for types: the common type of two, the parts of one, and the results of functions.

functions.tsv says for each function which rule gives its type (`result_type`). Types are canonical DDL
without NOT NULL and CHAR. Types that no collection can have, such as INTERVAL DAY, are as Spark writes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, reduce

from mzplan.schema.columns import Column, map_types, parse_columns, spark_type

INTEGRAL = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 20}  # with their digits as decimals
MAX_DIGITS = 38
TIMES = ("TIMESTAMP", "TIMESTAMP_NTZ")
DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
NULL = "VOID"  # the type of NULL: never a result
_PLACE = re.compile(r"\{(\d)(?:\.(element|key|value))?\}")


def result_type(rule: str, types: Sequence[str | None]) -> str | None:
    """Return the type of a call by its arguments' types; None if the rule doesn't say.

    A rule is a type, in which `{1}` is the type of the first argument and `{1.element}`, `{1.key}` and
    `{1.value}` the types in it; or a name in _NAMED; or such rules by the kind of an argument:
    `1 INTEGRAL,DOUBLE={1} | DECIMAL=DOUBLE`.
    """
    if "=" not in rule:
        return _NAMED[rule](types) if rule in _NAMED else _filled(rule, types)
    place, _, cases = rule.partition(" ")
    argument = types[int(place) - 1] if len(types) >= int(place) else None
    for case in cases.split(" | "):
        kinds, _, inner = case.partition("=")
        if kind_of(argument) in kinds.split(","):
            return result_type(inner, types)
    return None


def kind_of(type_: str | None) -> str:
    """Return the kind of a type in rules: INTEGRAL, DECIMAL, ARRAY, …; "" for an unknown type."""
    word = re.split(r"[(< ]", type_ or "")[0]
    return "INTEGRAL" if word in INTEGRAL else word


def _filled(rule: str, types: Sequence[str | None]) -> str | None:
    certain = True

    def part(match: re.Match[str]) -> str:
        nonlocal certain
        number = int(match[1]) - 1
        type_ = _part(types[number] if number < len(types) else None, match[2])
        certain = certain and type_ not in (None, NULL)
        return str(type_)

    filled = _PLACE.sub(part, rule)
    return filled if certain else None


def _part(type_: str | None, name: str | None) -> str | None:
    if name is None:
        return type_
    if name == "element":
        return inside(type_, "ARRAY")
    pair = pair_of(type_)
    return pair[name == "value"] if pair else None


def _common(types: Sequence[str | None]) -> str | None:
    return reduce(wider, types) if types else None


def _sum(types: Sequence[str | None]) -> str | None:
    type_ = if_number(types[0])
    if match := DECIMAL.match(type_ or ""):
        return f"DECIMAL({min(int(match[1]) + 10, MAX_DIGITS)},{match[2]})"
    return "BIGINT" if type_ in INTEGRAL else "DOUBLE" if type_ else None


def _average(types: Sequence[str | None]) -> str | None:
    type_ = if_number(types[0])
    if match := DECIMAL.match(type_ or ""):
        digits, scale = int(match[1]) + 4, int(match[2]) + 4
        return f"DECIMAL({digits},{scale})" if digits <= MAX_DIGITS else None
    return "DOUBLE" if type_ else None


def _appended(types: Sequence[str | None]) -> str | None:
    """Return the type of an array with a value of the last type in it."""
    element = inside(types[0], "ARRAY")
    common = wider(element, types[-1]) if element and types[-1] else None
    return f"ARRAY<{common}>" if common else None


def _united(types: Sequence[str | None]) -> str | None:
    elements = [inside(type_, "ARRAY") for type_ in types]
    common = _common(elements) if all(elements) else None
    return f"ARRAY<{common}>" if common else None


def _element(types: Sequence[str | None]) -> str | None:
    return _part(types[0], "element") or _part(types[0], "value")


def _sequence(types: Sequence[str | None]) -> str | None:
    common = wider(types[0], types[1]) if all(types[:2]) else None
    if common in INTEGRAL:
        common = common if len(types) < 3 or wider(common, types[2]) == common else None
    return f"ARRAY<{common}>" if common in (*INTEGRAL, "DATE", *TIMES) else None


def _quantile(types: Sequence[str | None], result: str | None) -> str | None:
    several = len(types) > 1 and (types[1] or "").startswith("ARRAY<")
    if result is None or len(types) < 2 or types[1] is None:
        return None
    return f"ARRAY<{result}>" if several else result


def _percentile(types: Sequence[str | None]) -> str | None:
    return _quantile(types, "DOUBLE" if if_number(types[0]) else None)


def _percentile_approx(types: Sequence[str | None]) -> str | None:
    is_value = if_number(types[0]) or types[0] in ("DATE", *TIMES)
    return _quantile(types, types[0] if is_value else None)


def _from_entries(types: Sequence[str | None]) -> str | None:
    struct = inside(inside(types[0], "ARRAY"), "STRUCT")
    fields = parse_columns(struct) if struct else ()
    return f"MAP<{fields[0].type},{fields[1].type}>" if len(fields) == 2 else None


def _text(types: Sequence[str | None]) -> str | None:
    """Return STRING if the first argument becomes one; for BINARY, the result may be BINARY."""
    is_text = types[0] in ("STRING", "BOOLEAN", "DATE", *TIMES) or if_number(types[0])
    return "STRING" if is_text else None


def _by(types: Sequence[str | None]) -> str | None:
    """Return the type of max_by(x, y), or of max_by(x, y, k): the k values of x."""
    return types[0] if len(types) < 3 else f"ARRAY<{types[0]}>" if types[0] else None


def _padded(types: Sequence[str | None]) -> str | None:
    if types[0] != "BINARY":
        return _text(types)
    return "BINARY" if set(types[2:]) <= {"BINARY"} else _text(types[2:])


def _uniform(types: Sequence[str | None]) -> str | None:
    """Return the type of uniform(min, max): a DECIMAL keeps its digits beside a whole number."""
    pair = {if_number(type_) for type_ in types[:2]}
    if len(types) < 2 or None in pair:
        return None
    if floating := {"DOUBLE", "FLOAT"} & pair:
        return min(floating)
    decimals = pair - INTEGRAL.keys()
    return _common(types[:2]) if not decimals else decimals.pop() if len(decimals) == 1 else None


_NAMED: Mapping[str, Callable[[Sequence[str | None]], str | None]] = {
    "appended": _appended,
    "average": _average,
    "average of 2": lambda types: _average(types[1:]) if len(types) > 1 else None,
    "by": _by,
    "common": _common,
    "common of 2": lambda types: _common(types[1:]),
    "element": _element,
    "from entries": _from_entries,
    "number": lambda types: if_number(types[0]),
    "padded": _padded,
    "percentile": _percentile,
    "percentile_approx": _percentile_approx,
    "sequence": _sequence,
    "sum": _sum,
    "text": _text,
    "texts of 2": lambda types: _text(types[1:]) and _text(types[-1:]) if len(types) > 1 else None,
    "uniform": _uniform,
    "united": _united,
    "zeroifnull": lambda types: wider(types[0], "INT") if if_number(types[0]) or types[0] == NULL else None,
}


def digits_of(type_: str) -> tuple[int, int]:
    """Return the precision and scale of a number that isn't floating-point."""
    match = DECIMAL.match(type_)
    return (int(match[1]), int(match[2])) if match else (INTEGRAL[type_], 0)


def decimal_type(precision: int, scale: int) -> str | None:
    return f"DECIMAL({precision},{scale})" if 1 <= precision <= MAX_DIGITS else None


def decimal_of(operator: str, p: int, s: int, q: int, t: int) -> str | None:
    """Return the type of an operation on DECIMAL(p,s) and DECIMAL(q,t).

    Returns None for more than 38 digits, where the type depends on a setting.
    """
    whole, scale = max(p - s, q - t), max(s, t)
    match operator:
        case "Add" | "Sub":
            return decimal_type(whole + 1 + scale, scale)
        case "Mul":
            return decimal_type(p + q + 1, s + t)
        case "Div":
            scale = max(6, s + q + 1)
            return decimal_type(p - s + t + scale, scale)
        case "Mod":
            return decimal_type(min(p - s, q - t) + scale, scale)
    return None


def wider(one: str | None, other: str | None) -> str | None:
    """Return the common type of two types; None if it isn't certain."""
    if one == other or one is None or other == NULL:
        return one
    if other is None or one == NULL:
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
    (p, s), (q, t) = map(digits_of, pair)
    return decimal_type(max(p - s, q - t) + max(s, t), max(s, t))


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
