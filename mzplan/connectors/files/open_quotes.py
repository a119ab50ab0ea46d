"""Finds quotes in CSV files that swallow rows.

If a quote is never closed, Spark reads the rest of the file as one long text, without an error. The same
happens up to the next quote, if that one doesn't end a field.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.files.named_folders import is_read
from mzplan.connectors.network.folders import chunks_of, folder_of, relative_path
from mzplan.model.diagnostics import error


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
            raise error(
                "MZ066",
                f"A quote in file {path} isn't closed",
                f"The quoted field that begins in line {line} would swallow the rows after it.",
                "close the quote in the file, and write a quote within a field twice; mzplan reads it again.",
                address=query.address,
            )


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
