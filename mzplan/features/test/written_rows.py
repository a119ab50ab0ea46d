"""Rows as a test has them, in YAML or in a file that it names, and their conversion to declared types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from mzplan.config.documents import Document
from mzplan.config.findings import Findings, Location, Path, SourceFile, Span
from mzplan.config.project_files import SUFFIXES, rows_file
from mzplan.config.yaml.parser import load, read_text
from mzplan.connectors.local.row_files import BadFileError, Mistake, csv_records, json_records
from mzplan.connectors.local.row_values import ValueFormError, converter
from mzplan.model.trials import GivenRow
from mzplan.model.words import did_you_mean
from mzplan.schema.columns import Column

OPERATION, DELETE = "_op", "delete"
FILE = "file"


@dataclass(frozen=True, slots=True)
class WrittenRow:
    """A row, its file, and its path in a YAML file or its line in another file.

    `is_text`: its values are fields of a CSV file.
    """

    values: Mapping[str, Any]
    file: SourceFile
    path: Path = ()
    line: int | None = None
    is_text: bool = False

    def report(
        self, findings: Findings, message: str, at: str = "", *, at_key: bool = False, **values: Any
    ) -> None:
        """Add a finding about the row, or about its value `at` a column (with `at_key`, about the column)."""
        if self.line is not None:
            span = Span(self.line - 1, 0, self.line - 1, 1)
            findings.add(message, Location(self.file), span=span, **values)
        else:
            path = (*self.path, at) if at in self.values else self.path
            findings.add(message, Location(self.file, path, at_key), **values)


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """Rows whose columns aren't checked yet. `columns`: the columns that some row has, as written."""

    rows: tuple[WrittenRow, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        names = (name for row in self.rows for name in row.values if name != OPERATION)
        return tuple(dict.fromkeys(names))


def read_rows(document: Document, value: Any, path: Path, findings: Findings) -> WrittenRows:
    """Return the rows at a path of a test file: a list of mappings, or the rows of `{file: PATH}`.

    Reports what is neither, and returns the rows without it.
    """
    if isinstance(value, dict):
        if list(value) == [FILE] and isinstance(value[FILE], str):
            return WrittenRows(tuple(_rows_of_file(document.file, value[FILE], (*path, FILE), findings)))
        _wrong_form(findings, document.file, path, value)
        return WrittenRows(())
    return WrittenRows(tuple(_rows_in_place(document.file, value, path, findings)))


def _rows_in_place(file: SourceFile, value: Any, path: Path, findings: Findings) -> Iterator[WrittenRow]:
    if not isinstance(value, list):
        _wrong_form(findings, file, path, value)
        return
    for index, row in enumerate(value):
        at = (*path, index)
        if isinstance(row, dict):
            yield WrittenRow(_with_decimals(row, file, at, findings), file, at)
        else:
            findings.add(
                "MZ350.form",
                Location(file, at),
                where="A row",
                value=row,
                how="write each row as `{COLUMN: VALUE, …}`.",
            )


def _wrong_form(findings: Findings, file: SourceFile, path: Path, value: Any) -> None:
    where = "The file"
    if path:
        where = f"`{path[-1]}`" if isinstance(path[-1], str) else f"Step {path[-1] + 1}"
    findings.add(
        "MZ350.form",
        Location(file, path),
        where=where,
        value=value,
        how="write `[{COLUMN: VALUE, …}, …]`, or `{file: PATH}` for a file in the folder of tests.",
    )


def _with_decimals(value: Any, file: SourceFile, path: Path, findings: Findings) -> Any:
    """Return a value with each number that has a point as a Decimal, with all its written digits."""
    if isinstance(value, dict):
        return {key: _with_decimals(v, file, (*path, key), findings) for key, v in value.items()}
    if isinstance(value, list):
        return [_with_decimals(v, file, (*path, index), findings) for index, v in enumerate(value)]
    if isinstance(value, float):
        return Decimal(findings.original_texts.get((file.full_path, path), str(value)))
    return value


def _rows_of_file(test_file: SourceFile, name: str, at: Path, findings: Findings) -> Iterator[WrittenRow]:
    file = rows_file(test_file, name)
    if name.endswith(SUFFIXES):
        document = load(file, findings)
        if document is not None:
            yield from _rows_in_place(file, document.data or [], (), findings)
        return
    text = read_text(file, findings, Location(test_file, at))
    if text is None:
        return
    findings.broken_files.add(file.full_path)  # it isn't YAML, so no key has a place in it
    is_csv = name.endswith(".csv")
    try:
        for line, record in csv_records(text) if is_csv else json_records(text):
            if isinstance(record, Mistake):
                _broken(findings, file, record)
            else:
                yield WrittenRow(record, file, line=line, is_text=is_csv)
    except BadFileError as bad:
        for mistake in bad.mistakes:
            _broken(findings, file, mistake)


def _broken(findings: Findings, file: SourceFile, mistake: Mistake) -> None:
    line = (mistake.line or 1) - 1
    findings.add(
        "MZ350.broken-rows",
        Location(file),
        span=Span(line, 0, line, 1),
        path=file.path,
        problem=mistake.text[:1].upper() + mistake.text[1:],
    )


def given_rows(
    written: WrittenRows, columns: Sequence[Column], keys: Sequence[str], findings: Findings, where: str
) -> tuple[GivenRow, ...]:
    """Return the rows of an input, with the types of its columns. Reports rows that don't fit.

    `where`: the input, for messages.
    """
    return tuple(_given_rows(written, columns, keys, findings, where))


def _given_rows(
    written: WrittenRows, columns: Sequence[Column], keys: Sequence[str], findings: Findings, where: str
) -> Iterator[GivenRow]:
    key_names = {key.lower() for key in keys}
    own = next((column for column in columns if column.name.lower() == OPERATION), None)
    for row in written.rows:
        values = dict(row.values)
        operation = values.pop(OPERATION, None) if own is None else None
        if operation is not None and (operation != DELETE or not keys):
            why = f"`_op` is {operation!r}." if operation != DELETE else "It has no key."
            row.report(findings, "MZ350.delete", OPERATION, where=where, why=why)
            continue
        is_deleted = operation == DELETE
        needed = [
            replace(c, nullable=is_deleted and c.name.lower() not in key_names) if is_deleted else c
            for c in columns
        ]
        typed = _typed(replace(row, values=values), needed, findings, where)
        if typed is not None:
            yield GivenRow({c.name: None for c in columns} | typed, is_deleted)


def expected_rows(
    written: WrittenRows, columns: Sequence[Column], findings: Findings, where: str
) -> list[dict[str, Any]]:
    """Return expected rows with the types of the columns. A row may have only some columns.

    Columns that no row has are left out; a row's other missing values are NULL.
    """
    named = {name.lower() for name in written.columns}
    compared = [replace(column, nullable=True) for column in columns if column.name.lower() in named]
    typed = (_typed(row, compared, findings, where, columns) for row in written.rows)
    return [row for row in typed if row is not None]


def _typed(
    row: WrittenRow,
    columns: Sequence[Column],
    findings: Findings,
    where: str,
    known: Sequence[Column] = (),
) -> dict[str, Any] | None:
    """Return a row's values by the declared names of the columns; None if it doesn't fit."""
    names = {column.name.lower() for column in columns}
    unknown = [name for name in row.values if name.lower() not in names]
    for name in unknown:
        listed = [column.name for column in known or columns]
        near = did_you_mean(name, listed)
        row.report(
            findings,
            "MZ350.unknown-column",
            name,
            at_key=True,
            where=where,
            name=name,
            columns=listed,
            near=near,
        )
    values: dict[str, Any] = {}
    for name, value in row.values.items():
        if name.lower() in values:
            row.report(findings, "MZ350.column-twice", name, at_key=True, name=name)
        values[name.lower()] = value
    typed: dict[str, Any] = {}
    fits = not unknown and len(values) == len(row.values)
    for column in columns:
        try:
            typed[column.name] = converter(column, text=row.is_text)(values.get(column.name.lower()))
        except ValueFormError as problem:
            fits = False
            written = next((name for name in row.values if name.lower() == column.name.lower()), column.name)
            row.report(
                findings,
                "MZ350.row",
                written,
                column=f"{column.name}{problem.path}",
                problem=problem,
                where=f"{column.name} of {where} is {column}.".replace(f"is {column.name} ", "is "),
            )
        except ValueError as problem:  # a type that CSV can't hold
            fits = False
            row.report(findings, "MZ350.row", column.name, column=column.name, problem=problem, where=where)
    return typed if fits else None
