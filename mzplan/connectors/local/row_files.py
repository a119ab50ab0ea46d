"""Reads files of rows into Arrow tables: JSON lines, CSV with a header, or Parquet. Mistakes in a file are
reported with line and column."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args

from mzplan.connectors.local.row_values import ValueFormError, converter
from mzplan.endpoints.arrow import FitError, arrow_schema, build_array, fit
from mzplan.model.words import did_you_mean
from mzplan.schema.columns import Column

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Table

Format = Literal["jsonl", "csv", "parquet"]
FORMATS: tuple[Format, ...] = get_args(Format)
MAX_MISTAKES = 20
_BATCH_ROWS = 20_000
_SUFFIXES: dict[str, Format] = {
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "json": "jsonl",
    "csv": "csv",
    "parquet": "parquet",
}


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake in a record. `line` counts from 1 (for Parquet, it's the row); None for the whole file."""

    line: int | None
    text: str


class BadFileError(Exception):
    """Raised for a file that doesn't fit the columns. `mistakes`: the first mistakes; `more`: how many follow
    them."""

    def __init__(self, mistakes: Sequence[Mistake], more: int = 0):
        super().__init__(mistakes[0].text)
        self.mistakes = tuple(mistakes)
        self.more = more


def format_of(name: str) -> Format | None:
    """Return the format of a file by its extension, or None for an unknown one."""
    return _SUFFIXES.get(name.rpartition(".")[2].lower()) if "." in name else None


def read_rows(data: bytes, format_: Format, columns: Sequence[Column]) -> Table:
    """Return the rows of a file, with exactly these columns. Raises BadFileError with the first mistakes."""
    import pyarrow as pa

    if format_ == "parquet":
        batches = _parquet_batches(data, columns)
    else:
        text = _text(data)
        records = json_records(text, columns) if format_ == "jsonl" else csv_records(text, columns)
        batches = _batches(records, columns, is_text=format_ == "csv")
    return pa.Table.from_batches(batches, schema=arrow_schema(columns))


Record = tuple[int, dict[str, Any] | Mistake]


def _batches(records: Iterator[Record], columns: Sequence[Column], *, is_text: bool) -> list[RecordBatch]:
    """Return the records as batches. A record is a line number, with its values or its mistake. Raises
    BadFileError."""
    try:
        converters = [(column.name, converter(column, text=is_text)) for column in columns]
    except ValueError as problem:
        raise BadFileError([Mistake(None, str(problem))]) from None
    schema = arrow_schema(columns)
    mistakes: list[Mistake] = []
    mistake_count = 0
    batches: list[RecordBatch] = []
    rows: list[list[Any]] = []
    for line, record in records:
        row_mistakes = [record] if isinstance(record, Mistake) else []
        row: list[Any] = []
        if not isinstance(record, Mistake):
            for name, convert in converters:
                try:
                    row.append(convert(record.get(name)))
                except ValueFormError as problem:
                    row_mistakes.append(Mistake(line, f"{name}{problem.path} {problem}"))
        mistake_count += len(row_mistakes)
        mistakes += row_mistakes[: MAX_MISTAKES - len(mistakes)]
        rows.append(row)
        if len(rows) == _BATCH_ROWS:
            if not mistake_count:
                batches.append(_batch(rows, schema))
            rows = []
    if mistake_count:
        raise BadFileError(mistakes, mistake_count - len(mistakes))
    return [*batches, _batch(rows, schema)] if rows else batches


def _batch(rows: list[list[Any]], schema: Any) -> RecordBatch:
    import pyarrow as pa

    values = zip(*rows, strict=True)
    arrays = [build_array(column, field.type) for column, field in zip(values, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = data[: problem.start].count(b"\n") + 1
        raise BadFileError([Mistake(line, "the file is not UTF-8")]) from None


def json_records(text: str, columns: Sequence[Column] | None = None) -> Iterator[Record]:
    """Yield the objects of JSON lines. Without `columns`, an object may have any keys."""
    known = [column.name for column in columns] if columns is not None else None
    for line, record in enumerate(io.StringIO(text), 1):
        if not record.strip():
            continue
        try:
            parsed = json.loads(record.rstrip("\r\n"), parse_float=Decimal, parse_constant=_no_constant)
        except (ValueError, RecursionError) as problem:
            why = problem.msg if isinstance(problem, json.JSONDecodeError) else str(problem)
            at = f" at character {problem.colno}" if isinstance(problem, json.JSONDecodeError) else ""
            yield line, Mistake(line, f"the line is not JSON: {why}{at}")
            continue
        unknown = _unknown_names(parsed, known) if isinstance(parsed, dict) else []
        if not isinstance(parsed, dict):
            yield line, Mistake(line, "the line is not one JSON object")
        elif unknown:
            yield line, Mistake(line, _unknown(unknown[0], known or []))
        else:
            yield line, parsed


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f'{word} is not JSON (a DOUBLE takes it as text: "{word}")')


def csv_records(text: str, columns: Sequence[Column] | None = None) -> Iterator[Record]:
    """Yield the records. The first line names the columns, in any order; an empty field is NULL.

    Without `columns`, it may have any names.
    """
    known = [column.name for column in columns] if columns is not None else None
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, None)
        if header is None:
            return
        if unknown := _unknown_names(header, known):
            raise BadFileError(
                [Mistake(1, f"{_unknown(unknown[0], known or [])} (the first line names the columns)")]
            )
        if len(set(header)) < len(header):
            raise BadFileError([Mistake(1, "the first line names a column twice")])
        line = reader.line_num + 1
        for fields in reader:
            if fields and len(fields) != len(header):
                message = f"the record has {len(fields)} fields, but the first line has {len(header)}"
                yield line, Mistake(line, message)
            elif fields:
                yield line, {n: v if v != "" else None for n, v in zip(header, fields, strict=True)}
            line = reader.line_num + 1
    except csv.Error as problem:
        raise BadFileError([Mistake(reader.line_num, f"the record is not CSV: {problem}")]) from None


def _unknown_names(names: Iterable[str], known: Sequence[str] | None) -> list[str]:
    return [name for name in names if name not in known] if known is not None else []


def _unknown(name: str, known: Iterable[str]) -> str:
    suggestion = did_you_mean(name, known, repr) or f"columns are {', '.join(known)}"
    return f"{name[:60]!r} is not a column: {suggestion}"


def _parquet_batches(data: bytes, columns: Sequence[Column]) -> list[RecordBatch]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(pa.BufferReader(data))
        known = {column.name.lower() for column in columns}
        unknown = [name for name in file.schema_arrow.names if name.lower() not in known]
        if unknown:
            raise BadFileError([Mistake(None, _unknown(unknown[0], [column.name for column in columns]))])
        batches: list[RecordBatch] = []
        before = 0
        for batch in file.iter_batches(batch_size=_BATCH_ROWS):
            try:
                batch.validate(full=True)  # the reader of the step does the same
                batches.append(fit(batch, columns))
            except pa.ArrowInvalid as problem:
                raise BadFileError([Mistake(None, f"after row {before}: {problem}")]) from None
            except FitError as problem:
                row = None if problem.row is None else before + problem.row + 1
                raise BadFileError([Mistake(row, str(problem))]) from None
            before += batch.num_rows
        return batches
    except pa.ArrowException as problem:
        message = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise BadFileError([Mistake(None, f"the file is not Parquet: {message}")]) from None
