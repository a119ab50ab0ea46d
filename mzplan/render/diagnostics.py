"""Diagnostics as text, JSON and SARIF. Text has the place, an excerpt with carets, the summary and the fix.

    sources.yaml:14:17: error[MZ012]: Unknown connection
       14 |     connection: kafka_prd
          |                 ^^^^^^^^^
      source.orders refers to "kafka_prd", which no file declares.
      Fix: did you mean "kafka_prod" (connections.yaml:3:3)?

Colours are plain ANSI codes, because importing a terminal library takes longer than most runs of mzplan.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Hashable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mzplan import __version__
from mzplan.model.diagnostics import Diagnostic, SourceRange
from mzplan.model.words import count, first_names
from mzplan.render.text import Paint, safe
from mzplan.secrets.resolved import scrub_diagnostic

_WIDTH = 100  # columns of an excerpt; a longer line is cut around its carets
_BEFORE = 40  # columns, at least, before the first caret
_TAB = 4
_MAX_NAMED = 8  # resources in one merged diagnostic
_COLOURS = {"error": "red", "warning": "yellow", "notice": "cyan"}


def render_diagnostics(diagnostics: Iterable[Diagnostic], color: bool, directory: str = "") -> str:
    """Format all diagnostics as text, separated by empty lines.

    Paths are relative to the current folder; `directory` is the project's folder.
    """
    paint = Paint(color)
    prefix = _prefix(directory)
    return "\n\n".join(_render(scrub_diagnostic(diagnostic), paint, prefix) for diagnostic in diagnostics)


def merge_equal(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Merge diagnostics that differ only in the resource. The merged one names the other resources."""
    groups: dict[Hashable, list[Diagnostic]] = {}
    for number, diagnostic in enumerate(diagnostics):
        address = str(diagnostic.address) if diagnostic.address is not None else ""
        texts = tuple(
            t.replace(address, "\0") if address else t
            for t in (diagnostic.summary, diagnostic.detail, diagnostic.hint)
        )
        groups.setdefault(
            (diagnostic.severity, diagnostic.code, texts, number if not address else -1), []
        ).append(diagnostic)
    return [_with_others(first, others) for first, *others in groups.values()]


def _with_others(first: Diagnostic, others: list[Diagnostic]) -> Diagnostic:
    if not others:
        return first
    names = first_names([other.address for other in others], _MAX_NAMED)
    detail = f"Also {count(len(others), 'other', 'others')}: {names}."
    return replace(first, detail=f"{first.detail}\n{detail}" if first.detail else detail)


def diagnostics_to_json(diagnostics: Iterable[Diagnostic]) -> list[dict[str, Any]]:
    """Return all diagnostics as JSON values."""
    return [scrub_diagnostic(diagnostic).to_json() for diagnostic in diagnostics]


def diagnostics_to_sarif(diagnostics: Iterable[Diagnostic], directory: str) -> dict[str, Any]:
    """Return all diagnostics as a SARIF 2.1.0 log with one run, for code scanning.

    Paths are relative to the current folder, which CI systems take as the repository's root.
    """
    results = [_sarif_result(scrub_diagnostic(diagnostic), _prefix(directory)) for diagnostic in diagnostics]
    rules = [{"id": code} for code in sorted({result["ruleId"] for result in results})]
    driver = {"name": "mzplan", "version": __version__, "rules": rules}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}],
    }


def _sarif_result(diagnostic: Diagnostic, prefix: str) -> dict[str, Any]:
    fix = f"Fix: {diagnostic.hint}" if diagnostic.hint else ""
    text = "\n".join(part for part in (diagnostic.summary, diagnostic.detail, fix) if part)
    level = "note" if diagnostic.severity == "notice" else diagnostic.severity
    result: dict[str, Any] = {"ruleId": diagnostic.code, "level": level, "message": {"text": text}}
    location: dict[str, Any] = {}
    if (where := diagnostic.range) is not None:
        location["physicalLocation"] = {
            "artifactLocation": {"uri": quote(Path(prefix, where.path).as_posix())},
            "region": {
                "startLine": where.line,
                "startColumn": where.column,
                "endLine": where.end_line,
                "endColumn": where.end_column,
            },
        }
    if diagnostic.address is not None:
        location["logicalLocations"] = [{"fullyQualifiedName": str(diagnostic.address)}]
    return result | ({"locations": [location]} if location else {})


def _render(diagnostic: Diagnostic, paint: Paint, prefix: str) -> str:
    colour = _COLOURS[diagnostic.severity]
    label = paint(f"{diagnostic.severity}[{safe(diagnostic.code)}]", colour, "bold")
    head = f"{label}: {paint(safe(diagnostic.summary), 'bold')}"
    lines = [head]
    where = diagnostic.range
    if where is not None:
        # `<statement>` isn't a file.
        path = safe(where.path if where.path[:1] == "<" else os.path.join(prefix, where.path))  # noqa: PTH118
        lines = [f"{path}:{where.line}:{where.column}: {head}"]
        if diagnostic.excerpt is not None:
            lines += _excerpt(diagnostic.excerpt, where, paint, colour)
    lines += [f"  {safe(line)}".rstrip() for line in diagnostic.detail.splitlines()]
    if diagnostic.hint:
        first, *rest = diagnostic.hint.splitlines()
        lines += [f"  {paint('Fix:', 'bold')} {safe(first)}", *(f"  {safe(line)}".rstrip() for line in rest)]
    return "\n".join(lines)


def _excerpt(text: str, where: SourceRange, paint: Paint, colour: str) -> list[str]:
    """Return the source line, and carets below the part of it that the range covers."""
    start = min(where.column - 1, len(text))
    end = where.end_column - 1 if where.end_line == where.line else len(text.rstrip())
    end = max(start + 1, min(end, max(len(text), start + 1)))
    # Process only the visible part, because a line can have millions of characters.
    first = max(0, start - _BEFORE) if len(text) > _WIDTH else 0
    shown, at, carets = "…" if first else "", 0, 0
    column = len(shown)
    for index in range(first, len(text)):
        cell, width = _cell(text[index], column)
        if column + width > _WIDTH:
            shown += "…"
            break
        if index == start:
            at = column
        shown += cell
        column += width
        if start <= index < end:
            carets += width
    if start >= len(text):
        at = column
    number = f"{where.line:>5}"
    bar = paint("|", "dim")
    under = paint("^" * max(1, carets), colour)
    return [
        f"{paint(number, 'dim')} {bar} {shown}".rstrip(),
        f"{' ' * len(number)} {bar} {' ' * at}{under}",
    ]


def _cell(char: str, column: int) -> tuple[str, int]:
    """Return a character as it is shown at a column, and its width in columns."""
    if char == "\t":
        width = _TAB - column % _TAB
        return " " * width, width
    if " " <= char <= "~":
        return char, 1
    text = safe(char)
    if text != char:
        return text, len(text)
    if unicodedata.combining(char):
        return char, 0
    return char, 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def _prefix(directory: str) -> str:
    """Return the project's folder relative to the current one; absolute if that is easier to read."""
    if not directory:
        return ""
    try:
        relative = os.path.relpath(directory)
    except (OSError, ValueError):  # the current folder was removed, or is on another drive
        return directory
    if relative == ".":
        return ""
    return os.path.abspath(directory) if relative.startswith(os.path.join("..", "..")) else relative  # noqa: PTH100, PTH118
