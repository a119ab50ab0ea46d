"""Rows of a collection cast to other columns: strictly, so that no value becomes another one, or none.

A cast that Spark does (ANSI) may still round, cut off, or take a half from a number. So a number or a time
has to come back as it was when it is cast back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.types import ddl_of, longest, quoted
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, ExitCode
from mzplan.schema.columns import POSITION, Column, spark_type

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

_SHOWN = 80  # characters of a value


def cast_rows(rows: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """The rows with these columns, by name, whatever its case, and `_position`. A column that they lack is
    NULL; others are left out. What can't be cast fails the job."""
    types = _types(rows)
    casts = []
    for column in columns:
        type_ = spark_type(column.type)
        name = types[column.name.lower()][0] if column.name.lower() in types else None
        value = f"CAST({quoted(name) if name is not None else 'NULL'} AS {type_})"
        casts.append(f.expr(value).alias(column.name))
    return rows.select(*casts, f.col(POSITION))


def find_uncastable(
    rows: DataFrame,
    address: Address,
    columns: Sequence[Column],
    before: Sequence[Column],
    keys: Sequence[str],
) -> Diagnostic | None:
    """MZ294 for the first row that `cast_rows` could not take as it is; None where it takes all. `before`:
    the columns as they were declared. Raises what Spark raises."""
    from pyspark.errors import AnalysisException

    checks = list(_checks(_types(rows), columns, before, keys))
    for check in checks:
        try:
            rows.select(check.fails)
        except AnalysisException:
            return _diagnostic(address, check.column, f"Spark casts no {check.before} to {check.after}")
    if not checks:
        return _nested_problem(rows, address, columns)
    first = f.coalesce(*(f.when(check.fails, f.lit(at)) for at, check in enumerate(checks)))
    values = [f.expr(check.value).cast("string") for check in checks]
    marked = rows.select(f.col(POSITION), first.alias("check"), f.array(*values).alias("values"))
    failing = marked.where("check IS NOT NULL").orderBy(POSITION).limit(1).collect()
    if failing:
        check = checks[failing[0]["check"]]
        position = failing[0][POSITION].asDict() if failing[0][POSITION] is not None else {}
        place = ", ".join(f"{name} {value}" for name, value in position.items()) or "an unknown place"
        return _diagnostic(
            address, check.column, check.text(failing[0]["values"][failing[0]["check"]], place)
        )
    return _nested_problem(rows, address, columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Check:
    """Of one column: `fails` holds for a row that can't be taken. `value`: in Spark SQL."""

    column: Column
    before: str
    after: str
    value: str
    fails: Expression
    why: str

    def text(self, value: str | None, place: str) -> str:
        shown = "NULL" if value is None else repr(value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…")
        return f"The row at {place} has {shown}, {self.why}"


def _checks(
    there: dict[str, tuple[str, DataType]],
    columns: Sequence[Column],
    before: Sequence[Column],
    keys: Sequence[str],
) -> Iterator[_Check]:
    from pyspark.sql import types as t

    exact = (t.NumericType, t.BooleanType, t.DatetimeType)
    required = {former.name.lower() for former in before if former.nullable}
    for column in columns:
        name, old = there.get(column.name.lower(), (None, None))
        type_ = spark_type(column.type)
        value = quoted(name) if name is not None else "NULL"
        is_key = column.name.lower() in {key.lower() for key in keys}
        common: dict[str, Any] = {"column": column, "before": _text(old), "after": type_, "value": value}
        if is_key or (not column.nullable and name is not None and column.name.lower() in required):
            fails, why = f.expr(f"{value} IS NULL"), "where the column must have a value"
            yield _Check(**common, fails=fails, why=why)
        if name is None or old is None:
            continue
        cast = f"try_cast({value} AS {type_})"
        if _is_plain(old) and _differs(old, type_):
            fails, why = f.expr(f"{value} IS NOT NULL AND {cast} IS NULL"), f"which is no {column.type}"
            yield _Check(**common, fails=fails, why=why)
            new = _parsed(type_)
            if isinstance(old, exact) and isinstance(new, exact):
                back = f.expr(f"NOT (try_cast({cast} AS {_text(old)}) <=> {value})")
                yield _Check(**common, fails=back, why=f"which {column.type} can't hold exactly")
        if (most := longest(column.type)) is not None:
            fails = f.expr(f"length({cast}) > {most}")
            yield _Check(**common, fails=fails, why=f"which is longer than {column.type}")


def _nested_problem(rows: DataFrame, address: Address, columns: Sequence[Column]) -> Diagnostic | None:
    """Within structs, arrays and maps only the cast itself finds what it can't take: it is made once."""
    from mzplan.spark import failures

    types = _types(rows)
    for column in columns:
        name, old = types.get(column.name.lower(), (None, None))
        type_ = spark_type(column.type)
        if name is None or old is None or _is_plain(old) or not _differs(old, type_):
            continue
        try:
            rows.selectExpr(f"max(length(to_json(struct(CAST({quoted(name)} AS {type_})))))").collect()
        except Exception as problem:
            return _diagnostic(address, column, failures.of_exception(problem).text)
    return None


def _diagnostic(address: Address, column: Column, why: str) -> Diagnostic:
    return Diagnostic(
        code="MZ294",
        summary=f"Rows of {address} can't be cast: column {column.name} to {column.type}",
        detail=f"{why.rstrip('.')}. So its new generation could not begin with the rows of its collection.",
        hint="give the column a type that holds its values; or let the source read everything again: "
        "lifecycle: {replace: in-place}.",
        address=address,
        exit_code=ExitCode.REFUSED,
    )


def _types(rows: DataFrame) -> dict[str, tuple[str, DataType]]:
    return {field.name.lower(): (field.name, field.dataType) for field in rows.schema.fields}


def _is_plain(type_: DataType) -> bool:
    from pyspark.sql import types as t

    return not isinstance(type_, t.StructType | t.ArrayType | t.MapType)


def _parsed(type_: str) -> DataType:
    from pyspark.sql import types as t

    struct = t.DataType.fromDDL(f"`one` {type_}")
    assert isinstance(struct, t.StructType)
    return struct.fields[0].dataType


def _differs(old: DataType, type_: str) -> bool:
    return _text(old).upper() != _text(_parsed(type_)).upper()


def _text(type_: DataType | None) -> str:
    return ddl_of(type_) if type_ is not None else "NULL"
