"""The types of the fields that an aggregate function keeps in Spark's state."""

from __future__ import annotations

from mzplan.schema.sql.type_rules import DECIMAL, INTEGRAL

_BINARY = frozenset(
    [
        "approx_percentile",
        "array_agg",
        "collect_list",
        "collect_set",
        "listagg",
        "median",
        "mode",
        "percentile",
        "percentile_approx",
        "percentile_cont",
        "percentile_disc",
        "string_agg",
    ]
)
_OF_ARGUMENT = frozenset(["bit_and", "bit_or", "bit_xor", "max", "min"])
_OF_MOMENTS = {"kurtosis": 5, "skewness": 4}
_VARIANCES = frozenset(["std", "stddev", "stddev_pop", "stddev_samp", "var_pop", "var_samp", "variance"])
_MAX_LONG_DIGITS, _MAX_DOUBLE_DIGITS, _MAX_DIGITS = 18, 15, 38


def buffer_types(function: str, arguments: list[str | None]) -> tuple[str, ...] | None:
    """Return the types of a function's fields in the state; None if only Spark knows them."""
    if function in ("count", "count_if", "regr_count"):
        return ("BIGINT NOT NULL",)
    if function in ("any", "bool_and", "bool_or", "every", "some"):
        return ("BOOLEAN",)
    if function in _BINARY:
        return ("BINARY",)
    if function in _VARIANCES or function in _OF_MOMENTS:
        return ("DOUBLE",) * _OF_MOMENTS.get(function, 3)
    first = arguments[0] if arguments else None
    if first is None:
        return None
    if function in _OF_ARGUMENT:
        return (first,)
    if function in ("any_value", "first", "first_value", "last", "last_value"):
        return (first, "BOOLEAN")
    if function in ("max_by", "min_by") and len(arguments) > 1 and arguments[1] is not None:
        return (first, arguments[1])
    return _of_number(function, first) if function in ("avg", "mean", "sum") else None


def _of_number(function: str, type_: str) -> tuple[str, ...] | None:
    """Return the fields of sum and avg. Spark adds small decimals as BIGINT and averages them as DOUBLE."""
    is_sum = function == "sum"
    decimal = DECIMAL.match(type_)
    if decimal is not None:
        digits, scale = int(decimal[1]), int(decimal[2])
        wide = f"DECIMAL({min(digits + 10, _MAX_DIGITS)},{scale})"
        if is_sum:
            return ("BIGINT",) if digits + 10 <= _MAX_LONG_DIGITS else (wide, "BOOLEAN")
        return ("DOUBLE" if digits + 4 <= _MAX_DOUBLE_DIGITS else wide, "BIGINT")
    if type_ in INTEGRAL:
        return ("BIGINT",) if is_sum else ("DOUBLE", "BIGINT")
    if type_ in ("DOUBLE", "FLOAT"):
        return ("DOUBLE",) if is_sum else ("DOUBLE", "BIGINT")
    return None
