"""The previews of a plan's changes (`plan --preview`), as text, JSON or a part of a review comment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any

from mzplan.model.address import Address
from mzplan.model.previews import ChangePreview, PreviewedRows
from mzplan.model.row_comparison import RowsOfBoth
from mzplan.model.words import count, listed
from mzplan.render.html import code, fence, many, shorten
from mzplan.render.row_comparison import (
    compared_to_json,
    previewed_to_json,
    table_of_both,
    table_of_rows,
)
from mzplan.render.text import Paint, brief, safe

Previews = Mapping[Address, ChangePreview]
NO_PREVIEWS: Previews = MappingProxyType({})
ROOM = 16_000  # characters of all previews in a comment
_MOST = 20  # previews in a comment
_LEAST = 600  # characters of one
_REASON = 400


def preview_to_json(preview: ChangePreview) -> dict[str, Any]:
    """Return the value of a change's `preview`."""
    document: dict[str, Any] = {}
    if preview.problem:
        document["problem"] = preview.problem
    if isinstance(preview.rows, RowsOfBoth):
        document |= compared_to_json(preview.rows)
    elif isinstance(preview.rows, PreviewedRows):
        document |= previewed_to_json(preview.rows)
    if preview.masked:
        document["masked"] = list(preview.masked)
    if preview.violations:
        document |= {"violations": dict(preview.violations), "checked": preview.checked}
    return document


def preview_lines(previews: Previews, paint: Paint) -> Iterator[str]:
    """Yield the previews as text for people, each below the name of its query."""
    for address, preview in previews.items():
        yield paint(f"Preview of {address}", "bold")
        yield from (f"    {line}".rstrip() for line in _lines(preview, paint))
        yield ""


def preview_sections(previews: Previews) -> Iterator[str]:
    """Yield the previews as parts of a comment, as far as there is room."""
    each = max(_LEAST, ROOM // max(1, len(previews)))
    for address, preview in islice(previews.items(), _MOST):
        text = "\n".join(_lines(preview, Paint(False), changed="!"))
        yield f"**Preview** of {code(str(address))}\n\n{fence('diff', [shorten(text, each)])}"
    if len(previews) > _MOST:
        more = many(len(previews) - _MOST, "more preview")
        yield f"{more} didn't fit: `mzplan plan --preview` shows them."


def _lines(preview: ChangePreview, paint: Paint, changed: str = "~") -> Iterator[str]:
    if preview.problem:
        yield brief(preview.problem, _REASON)
    if isinstance(preview.rows, RowsOfBoth):
        yield from table_of_both(preview.rows, paint, changed=changed).split("\n")
    elif isinstance(preview.rows, PreviewedRows):
        yield from table_of_rows(preview.rows, paint).split("\n")
    if preview.masked:
        yield f"Masked, because of the label `sensitive`: {listed([safe(name) for name in preview.masked])}."
    for name, rows in preview.violations.items():
        verb = "violates" if rows == 1 else "violate"
        yield f"{name}: {rows} of {count(preview.checked, 'row')} {verb} it."
