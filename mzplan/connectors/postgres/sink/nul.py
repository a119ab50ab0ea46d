"""Finds texts with U+0000, which PostgreSQL can't store, in a refused batch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import Output
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.types import quoted
from mzplan.connectors.postgres.types import TargetColumn
from mzplan.schema.columns import POSITION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The server's messages for the byte in text, and for its escape in jsonb.
_SIGNS = ('for encoding "UTF8": 0x00', "unsupported Unicode escape sequence", "\\u0000 cannot be converted")


def is_nul_error(problem: BaseException) -> bool:
    """Return whether PostgreSQL refused rows because of U+0000."""
    return any(sign in str(problem) for sign in _SIGNS)


def nul_columns(batch: DataFrame, written: Sequence[tuple[Output, TargetColumn]]) -> tuple[list[str], str]:
    """Return the columns with U+0000 in a batch's first such row, and the row's origin as JSON.

    The origin is "" if the batch doesn't record it.
    """
    conditions = {}
    for output, target in written:
        if "STRING" not in (output.type or "") and "CHAR" not in (output.type or ""):
            continue
        column = f.col(quoted(output.name))
        is_nested = "<" in (output.type or "")
        contains_nul = f.contains(f.to_json(f.struct(column)), f.lit("\\u0000"))
        if not is_nested:
            contains_nul = f.contains(column, f.lit("\0"))
            if target.type in ("json", "jsonb"):
                contains_nul = contains_nul | f.contains(column, f.lit("\\u0000"))
        conditions[output.name] = f.coalesce(contains_nul, f.lit(False))
    if not conditions:
        return [], ""
    place = f.to_json(POSITION) if POSITION in batch.columns else f.lit("")
    names = f.array_compact(
        f.array(*(f.when(contains_nul, f.lit(name)) for name, contains_nul in conditions.items()))
    )
    row = (
        batch.where(reduce(or_, conditions.values()))
        .select(names.alias("names"), place.alias("place"))
        .first()
    )
    return (list(row["names"]), str(row["place"])) if row is not None else ([], "")
