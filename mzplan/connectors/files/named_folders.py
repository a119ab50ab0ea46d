"""Folders that are named after a column's value, such as `day=2026-11-28/`, in the folder of a files source.

Spark's own discovery of such folders loses rows: once one exists, Spark doesn't read the files beside it, but
counts them as read. So mzplan lists all files, and takes the values from the paths itself.

The module also finds quotes in CSV files that swallow rows. If a quote is never closed, Spark reads the rest
of the file as one long text, without an error. The same happens up to the next quote, if that one doesn't end
a field.
"""

from __future__ import annotations

import codecs
import posixpath
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from mzplan.connectors.api.probes import with_time_limit
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.formats.exact import convert, raw_type
from mzplan.connectors.formats.records import MALFORMED, MARK
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.types import quoted, type_of_ddl
from mzplan.connectors.network.folders import chunks_of, folder_of, open_below, relative_path
from mzplan.model.diagnostics import error
from mzplan.schema.columns import POSITION, Column
from mzplan.warehouse.partitions import NULL

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

_MAX_FOLDERS = 40  # folders to search
_MAX_PER_KEYS = 4  # folders to search that are named after the same columns
_NO_VALUE = "{name} in the name of its folder isn't a {type}"
_MISSING = "{name} is missing (NOT NULL), in the file and in the names of its folders"
_NO_FOLDER = (
    "other files of the source are in folders that are named {name}=…, but this one isn't. "
    "A source of csv can't read both: move the file into such a folder"
)


def named_columns(query: ResolvedQuery, columns: Sequence[Column]) -> frozenset[str]:
    """Return the columns that folders are named after, as far as a short search finds them."""
    found: set[str] = set()
    visits: Counter[tuple[str, ...]] = Counter()
    queue: deque[tuple[str, tuple[str, ...]]] = deque([("", ())])
    while queue and visits.total() < _MAX_FOLDERS:
        inner, keys = queue.popleft()
        if visits[keys] >= _MAX_PER_KEYS:
            continue
        visits[keys] += 1
        names = _names_in(query, inner)
        found.update(keys if names else ())
        queue += [
            (f"{inner}/{name}", (*keys, unquote(name.partition("=")[0]).lower()))
            for name in names
            if "=" in name
        ]
    return frozenset(column.name for column in columns if column.name.lower() in found)


def depth_of(folder: str) -> int:
    """Return the number of folders in the path or URI of a folder. Hadoop resolves `..` as well."""
    path = posixpath.normpath(re.sub("^[^:/]+:", "", folder))
    return len([part for part in path.split("/") if part])


def _names_in(query: ResolvedQuery, inner: str) -> list[str]:
    """Return the names in a folder below the source's; none for a file, or if the storage doesn't answer."""
    try:
        return with_time_limit(lambda: open_below(query, folder_of(query), inner).names())
    except (OSError, TimeoutError, ValueError):
        return []


def is_read(name: str) -> bool:
    """Return whether the source reads a file, by its path in the folder. See `NamedFolders.is_read`."""
    folders = name.split("/")[:-1]
    return not folders or any("=" in folder for folder in folders)


def optional(columns: Sequence[Column], named: frozenset[str]) -> list[Column]:
    """Return the columns, without NOT NULL for columns whose value a folder's name may have."""
    return [replace(column, nullable=True) if column.name in named else column for column in columns]


class NamedFolders:
    """The paths of the files below a source's folder, as expressions over `path`, a file's URI."""

    def __init__(self, folder: str, path: Expression):
        depth = depth_of(folder)
        # Possessive, so that the scheme never counts as a folder.
        self._inside = rf"^(?:[^:/]+:)?+/*+(?:[^/]+/){{{depth}}}"
        self._path = path

    def is_read(self) -> Expression:
        """Return whether a file is directly in the folder, or in a folder that is named after a value."""
        return self._path.rlike(f"{self._inside}(?:[^/]*|(?:.*/)?[^/]*=[^/]*/.*)$")

    def value(self, column: Column, values: str, otherwise: Expression) -> Expression:
        """Return a column's value in the name of a folder, or `otherwise` if no folder is named after it.

        A value that isn't of the column's type raises an error. `values`: see format.json."""
        type_ = type_of_ddl(column.type)
        if raw_type(type_, json=False).simpleString() != "string":
            return otherwise
        pattern = f"{self._inside}(?:[^/]+/)*?(?i:{re.escape(column.name)})=([^/]*)/"
        name_part = f.regexp_extract(self._path, pattern, 1)
        text = f.nullif(_unquoted(_unquoted(name_part)), f.lit(NULL))
        value, is_inexact = convert(text, type_, json=False)
        if values == "converted" or is_inexact is None:
            is_inexact = f.lit(False)
        if not column.nullable:
            is_inexact = is_inexact | value.isNull()
        value = f.when(is_inexact, self.error(column, _NO_VALUE)).otherwise(value)
        is_named = f.contains(self._path, f.lit("=")) & (name_part != "")
        return f.when(is_named, value).otherwise(otherwise)

    def error(self, column: Column, reason: str) -> Expression:
        """Return an expression that raises an error which names the file, and has the column's type."""
        message = f.lit(f": {reason.format(name=column.name, type=column.type)}")
        failure = f.raise_error(f.concat(f.lit(f"{MARK}[{MALFORMED}]: file "), self._path, message))
        return failure.cast(type_of_ddl(column.type))


def _unquoted(text: Expression) -> Expression:
    """Return the text with percent-encoded characters decoded; unchanged if that isn't possible."""
    return f.coalesce(f.try_url_decode(f.replace(text, f.lit("+"), f.lit("%2B"))), text)


def with_folder_values(rows: DataFrame, folder: str, columns: Sequence[Column], values: str) -> DataFrame:
    """Return the rows with all columns: their values are in the rows, or in the names of folders."""
    folders = NamedFolders(folder, f.col(f"{POSITION}.path"))
    in_rows, places = {name.lower() for name in rows.columns}, []
    for column in columns:
        value = f.col(quoted(column.name))
        if column.name.lower() not in in_rows:
            value = folders.error(column, _NO_FOLDER)
        elif not column.nullable:
            value = f.coalesce(value, folders.error(column, _MISSING))
        places.append(folders.value(column, values, value).alias(column.name))
    names = {column.name.lower() for column in columns}
    return rows.select(*places, *(quoted(name) for name in rows.columns if name.lower() not in names))


def check_quotes(query: ResolvedQuery, paths: Iterable[str]) -> None:
    """Raise MzplanError MZ066 for the first file with a quote that swallows rows. Raises OSError."""
    folder = folder_of(query)
    for path in paths:
        name = relative_path(path, folder)
        if name is None or not is_read(name):
            continue
        line = None
        with suppress(FileNotFoundError):  # Spark reports it
            line = open_quote(chunks_of(query, folder, name), query.body["format"])
        if line is not None:
            raise error("MZ066.quote-file", address=query.address, path=path, line=line)


def open_quote(chunks: Iterable[bytes], format_: Mapping[str, Any]) -> int | None:
    """Return the line in which a quoted field begins that swallows rows; None if there is no such field.

    A quote opens a field only at its begin, and a doubled quote is a part of the field. A field that
    contains a line break must end with its closing quote."""
    quote, delimiter = format_.get("quote", '"'), format_.get("delimiter", ",")
    ends = (delimiter, "\n", "\r")
    line = first_line = 1
    is_open = has_closed = is_multiline = False
    is_start = True
    for text, is_after_quote in _parts(chunks, quote):
        if is_after_quote and is_open:
            is_open, has_closed, is_start = False, True, False
        elif is_after_quote and has_closed:  # a doubled quote
            is_open, has_closed = True, False
        elif is_after_quote and is_start:
            is_open, is_multiline, first_line = True, False, line
        if not text:
            continue
        line_breaks = text.count("\n")
        line += line_breaks
        if is_open:
            is_multiline = is_multiline or line_breaks > 0
            continue
        if has_closed and is_multiline and not text.lstrip(" \t").startswith(ends):
            return first_line
        has_closed, is_start = False, text.endswith((*ends, "\ufeff"))
    return first_line if is_open else None


def _parts(chunks: Iterable[bytes], quote: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of the text between quotes, and whether a quote is before the part."""
    for chunk in codecs.iterdecode(chunks, "utf-8", errors="replace"):
        first, *others = chunk.split(quote)
        yield first, False
        yield from ((part, True) for part in others)
