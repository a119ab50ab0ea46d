"""The parsers of the formats. A parser turns a record into a struct of the user's columns."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mzplan.connectors.formats.exact import convert, raw_type, struct_of
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.types import ddl, ddl_of, quoted
from mzplan.schema.columns import Column, spark_type

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression

RECORD = "r"
BEFORE = f'{{"{RECORD}":'
BINARY = ("avro", "protobuf")
"""The formats that Python tasks decode."""
DECODED = "_mzplan_decoded"  # column: records that Python tasks have decoded
KEY_DECODED = "_mzplan_decoded_key"  # column: the decoded keys of these records
_MAX_BYTES = (1 << 31) - 1
_NULL = f"mzplan_null_{secrets.token_hex(8)}"
"""The text of NULL in Spark's CSV parser. No field of a file has this text."""
CORRUPT = "_mzplan_corrupt"  # column: a record that Spark's parser can't parse
# Options of Spark's JSON parser.
STRICT = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT, "allowSingleQuotes": "false"}


def _no_text(column: Column) -> Expression:
    return f.lit(None).cast("string")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRecord:
    """The Spark expressions that parse records of one format.

    - `record`: a struct with the columns, in its field `inner` if that is set.
    - `text`: the original record; None if an earlier parser has already checked the text.
    - `needs_value`: whether a record without a value, or with a blank one, is malformed.
    - `several`: whether a record isn't one whole line of CSV.
    - `raw_format`: json or csv if values still have the form in which they were written (see exact.py).

    The following fields are expressions over rows that have the parsed record as `j`. Spark evaluates
    `text_of` and `reasons` only for broken records:

    - `broken`: whether the record is broken.
    - `text_of`: a column's text before its conversion.
    - `reasons`: what can be wrong with a whole record, most specific first.
    """

    record: Expression
    broken: Expression
    text: Expression | None = None
    text_of: Callable[[Column], Expression] = _no_text
    inner: str = ""
    needs_value: bool = False
    raw_format: str = ""
    several: Expression | None = None
    reasons: tuple[tuple[Expression, str | Expression], ...] = ()


def parser_of(format_: Mapping[str, Any], columns: Sequence[Column]) -> ParsedRecord:
    """Return the parser of a format, for records in the column `value`. Records of the formats in BINARY must
    be decoded before (see decoder)."""
    value = f.col("value")
    match format_["type"]:
        case "json":
            return _json(columns, value.cast("string"), raw_format_of(format_))
        case type_ if type_ in BINARY:
            return _decoded(f.col(DECODED))
        case "csv":
            return _csv(columns, value.cast("string"), csv_options(format_), raw_format_of(format_))
        case "text":
            return _single(columns[0], value.cast("string"), is_text=True)
        case "raw":
            return _single(columns[0], value, is_text=False)
    raise AssertionError(f"no format {format_['type']!r}: the schema allows nothing else")


def raw_format_of(format_: Mapping[str, Any]) -> str:
    """Return `ParsedRecord.raw_format` of a format; "" if Spark's parser converts the values."""
    return str(format_["type"]) if format_.get("values") != "converted" else ""


def parsed_ddl(columns: Sequence[Column], raw_format: str) -> str:
    """Return the columns as DDL, with the types in which Spark's parser reads them."""
    types = ddl(columns)
    if not raw_format:
        return types
    fields = struct_of(types).fields
    read = [(x.name, raw_type(x.dataType, json=raw_format == "json")) for x in fields]
    return ", ".join(f"{quoted(name)} {ddl_of(type_)}" for name, type_ in read)


def exactly(value: Expression, column: Column, raw_format: str) -> Expression:
    """Convert a value from its type in `parsed_ddl` to its column's type; NULL if it doesn't fit exactly."""
    if not raw_format:
        return value
    (field,) = struct_of(ddl([column])).fields
    return convert(value, field.dataType, json=raw_format == "json")[0]


def unwrapped(text: Expression) -> Expression:
    """Return the JSON text of a record that was wrapped in an object, after BEFORE."""
    return f.substring(text, f.lit(len(BEFORE) + 1), f.length(text) - f.lit(len(BEFORE) + 1))


def without_frame(value: Expression) -> Expression:
    """Return JSON bytes without the prefix of a schema registry's serializer: a zero, which never starts
    JSON, and the schema's id in four bytes."""
    is_framed = f.substring(value, 1, 1) == f.lit(bytes(1))
    return f.when(is_framed, f.substring(value, 6, _MAX_BYTES)).otherwise(value)


def csv_options(format_: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of Spark's CSV parser."""
    quote = format_.get("quote", '"')
    options = {
        "sep": format_.get("delimiter", ","),
        "quote": quote,
        # RFC 4180: a quote within quotes is written twice. Spark's default is a backslash.
        "escape": quote,
        # Spark's default is U+0000, which would be dropped before a quote.
        "charToEscapeQuoteEscaping": quote,
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": CORRUPT,
    }
    if raw_format_of({"type": "csv", **format_}):
        # An unquoted empty field is NULL, and a quoted one is an empty text. With Spark's default, both are
        # NULL.
        options |= {"nullValue": _NULL, "emptyValue": ""}
    return options


def column_parser(columns: Sequence[Column]) -> ParsedRecord:
    """Return the parser of rows that Spark itself has read into columns."""
    return ParsedRecord(
        record=f.struct(*(f.col(quoted(column.name)) for column in columns)), broken=f.lit(False)
    )


def csv_column_parser(columns: Sequence[Column], options: Mapping[str, str], raw_format: str) -> ParsedRecord:
    """Return the parser of CSV that Spark itself has read into columns, and unreadable lines into CORRUPT."""
    fields = [f.col(quoted(column.name)) for column in columns]
    source = f.col(f"j.{CORRUPT}")
    text_of, reasons = _of_csv_text(columns, options, source)
    return ParsedRecord(
        record=f.struct(*fields, f.col(CORRUPT)),
        text=f.col(CORRUPT),
        broken=source.isNotNull(),
        text_of=text_of,
        reasons=reasons,
        raw_format=raw_format,
    )


def _json(columns: Sequence[Column], text: Expression, raw_format: str) -> ParsedRecord:
    """Return the parser of JSON. A missing field is NULL; a field without a column is ignored. Names are
    case-sensitive, as in JSON."""
    # Wrapped in another object, so that text after the record makes it broken JSON. Otherwise Spark's parser
    # would stop at the first closing brace and silently ignore the rest.
    parsed = f.from_json(
        f.concat(f.lit(BEFORE), text, f.lit("}")),
        f"{RECORD} STRUCT<{parsed_ddl(columns, raw_format)}>, {CORRUPT} STRING",
        STRICT,
    )
    wrapped = f.col(f"j.{CORRUPT}")
    source = unwrapped(wrapped)
    return ParsedRecord(
        record=parsed,
        text=text,
        broken=wrapped.isNotNull(),
        inner=RECORD,
        needs_value=True,
        raw_format=raw_format,
        text_of=lambda column: f.get_json_object(source, "$['" + column.name + "']"),
        reasons=(
            (wrapped.isNotNull() & f.get_json_object(source, "$").isNull(), "the record is not JSON"),
            (f.col(f"j.{RECORD}").isNull(), "the record is not one JSON object"),
        ),
    )


def _decoded(record: Expression) -> ParsedRecord:
    """Return the parser of records that are already decoded: a struct of columns, or a reason (see
    decoder)."""
    reason = f.col("j.e")
    return ParsedRecord(
        record=record,
        broken=reason.isNotNull(),
        inner=RECORD,
        reasons=((reason.isNotNull(), reason), (f.col(f"j.{RECORD}").isNull(), "the record has no value")),
    )


def _csv(
    columns: Sequence[Column], text: Expression, options: Mapping[str, str], raw_format: str
) -> ParsedRecord:
    """Return the parser of CSV. A record has as many fields as there are columns; an unquoted empty field is
    NULL."""
    parsed = f.from_csv(text, f"{parsed_ddl(columns, raw_format)}, {CORRUPT} STRING", dict(options))
    source = f.col(f"j.{CORRUPT}")
    text_of, reasons = _of_csv_text(columns, options, source)
    return ParsedRecord(
        record=parsed,
        text=text,
        broken=source.isNotNull(),
        text_of=text_of,
        reasons=reasons,
        needs_value=True,
        raw_format=raw_format,
        several=_not_one_line(text, options),
    )


def _not_one_line(text: Expression, options: Mapping[str, str]) -> Expression:
    """Return whether text follows a line break outside quotes, or a field's quote is never closed.

    Spark would silently drop the text, or take the rest of the record as the field."""
    delimiter, quote = re.escape(options["sep"]), re.escape(options["quote"])
    rest = f.regexp_replace(text, f"{quote}[^{quote}]*{quote}", "")
    is_doubtful = f.contains(text, f.lit("\n")) | f.contains(text, f.lit(options["quote"]))
    wrong = rest.rlike(f"\\n\\s*\\S|(?:^|{delimiter}){quote}")
    return f.when(is_doubtful, wrong).otherwise(f.lit(False))


def _of_csv_text(
    columns: Sequence[Column], options: Mapping[str, str], source: Expression
) -> tuple[Callable[[Column], Expression], tuple[tuple[Expression, str | Expression], ...]]:
    """Return `text_of` and `reasons` for lines. They parse the line again, but only malformed lines."""
    texts = ", ".join(f"{quoted(column.name)} STRING" for column in columns)
    reparsed = f.from_csv(source, f"{texts}, {CORRUPT} STRING", dict(options))
    count = len(columns)
    return (
        lambda column: reparsed.getField(column.name),
        (
            (
                reparsed.getField(CORRUPT).isNotNull(),
                f"the record doesn't have {count} field{'s' if count > 1 else ''}",
            ),
        ),
    )


def _single(column: Column, value: Expression, *, is_text: bool) -> ParsedRecord:
    """Return the parser that takes the whole record as the column. A record without a value is NULL."""
    return ParsedRecord(
        record=f.struct(value.cast(spark_type(column.type)).alias(column.name)),
        text=value if is_text else None,
        broken=f.lit(False),
    )
