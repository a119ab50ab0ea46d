"""Reads a YAML file, checks that it is text, and parses it; explains the parser's errors in plain words."""

from __future__ import annotations

import re

import yaml

from mzplan.config.documents import Document
from mzplan.config.findings import LINE_BREAK, Findings, Location, SourceFile, Span
from mzplan.config.project_files import MAX_TOTAL_BYTES, ReadError, read_bytes
from mzplan.config.yaml.builder import Builder, StopError

_TOO_MUCH = (
    f"The files of a project may have {MAX_TOTAL_BYTES // 1024**2} MiB in total; this file exceeds that.",
    "split the project, or move files that aren't configuration out of it.",
)
# Characters that YAML forbids, except three that would make the pattern slow to compile.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]")
_FORBIDDEN_SIGNS = "\ufeff\ufffe\uffff"


def load(file: SourceFile, findings: Findings) -> Document | None:
    """Read and parse a file. Returns None if that isn't possible, after reporting why."""
    text = read_text(file, findings)
    if text is None:
        findings.is_incomplete = True
        return None
    return parse(file, text, findings)


def read_text(file: SourceFile, findings: Findings, named: Location | None = None) -> str | None:
    """Return the file's text, checked to be UTF-8 without control characters.

    `named`: the location of the file's path in another file. If the file can't be read, the error is reported
    at this location.
    """
    try:
        data = read_bytes(file)
        findings.bytes += len(data)
        if findings.bytes > MAX_TOTAL_BYTES:
            raise ReadError(*_TOO_MUCH, "MZ007")
        if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise ReadError("It is UTF-16.", "save it as UTF-8.")
    except ReadError as failure:
        words = (failure.code, f"Can't read {file.path}", failure.detail, failure.hint)
        findings.add(*words, location=named)
        return None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as failure:
        before = data[: failure.start]
        span = span_at(before.decode("utf-8-sig", "replace"))
        findings.add(
            "MZ002",
            "Not UTF-8",
            f"The byte 0x{data[failure.start]:02x} is not UTF-8 text.",
            "save the file as UTF-8.",
            location=Location(file),
            span=span,
            kind="unparsed",
        )
        return None
    at = _forbidden(text)
    if at is not None:
        findings.add(
            "MZ002",
            "Control character",
            f"The character U+{ord(text[at]):04X} may not be in a project's files.",
            'remove it; inside double quotes write it as an escape, such as "\\t".',
            location=Location(file),
            span=span_at(text[:at]),
            kind="unparsed",
        )
        return None
    return text


def _forbidden(text: str) -> int | None:
    """Return the offset of the first character that YAML forbids."""
    offsets = [text.find(sign) for sign in _FORBIDDEN_SIGNS if sign in text]
    if bad := _FORBIDDEN.search(text):
        offsets.append(bad.start())
    return min(offsets, default=None)


def parse(file: SourceFile, text: str, findings: Findings) -> Document | None:
    """Parse a file's text. Returns None if it is broken, but not for a repeated key or an invalid scalar."""
    builder = Builder(file, findings)
    try:
        builder.build(text)
    except yaml.YAMLError as failure:
        words, span = _explain(failure)
        findings.add("MZ002", *words, location=Location(file), span=span, kind="unparsed")
    except StopError:
        pass
    else:
        return builder.document
    findings.is_incomplete = True
    findings.broken_files.add(file.full_path)
    return None


def span_at(before: str, length: int = 1) -> Span:
    """Return the span of `length` characters on one line, after the text `before`."""
    lines = LINE_BREAK.split(before)
    return Span(len(lines) - 1, len(lines[-1]), len(lines) - 1, len(lines[-1]) + length)


# A part of the parser's message, and the detail and hint for it. The first part that matches counts. With
# True, the error points to the start of the broken value, not to where the parser stopped. Both of PyYAML's
# parsers use these words.
_PROBLEMS: tuple[tuple[str, bool, str, str], ...] = (
    ("quoted scalar", True, "A quote is opened here and never closed.", "close the quote."),
    ("tab character", False, "Lines may not be indented with tabs.", "indent with spaces."),
    (
        "character that cannot start any token",
        False,
        "No value may begin with this character.",
        "put the value in quotes; indent with spaces, not tabs.",
    ),
    (
        "mapping values are not allowed",
        False,
        "A colon is not allowed here.",
        "put the value in quotes if the colon belongs to it; otherwise check the indentation.",
    ),
    (
        "could not find expected ':'",
        True,
        "This line looks like a key, but no colon follows it.",
        "write `key: value`, with a space after the colon.",
    ),
    (
        "block sequence entries are not allowed",
        False,
        "A list item is not allowed here.",
        "begin the list on a line of its own, below its key.",
    ),
    (
        "flow sequence",
        True,
        "The list that begins here is not closed, or a comma is missing in it.",
        "close it with `]`, and separate its items with commas.",
    ),
    (
        "flow mapping",
        True,
        "The mapping that begins here is not closed, or a comma is missing in it.",
        "close it with `}`, and separate its keys with commas.",
    ),
    (
        "flow node",
        False,
        "A value is missing here, or a bracket above is not closed.",
        "write the value, or close the bracket.",
    ),
    (
        "unknown escape character",
        False,
        "YAML doesn't have this escape.",
        "write a backslash as \\\\ inside double quotes, or use single quotes.",
    ),
    (
        "block mapping",
        False,
        "A key was expected here.",
        "indent all keys of a mapping equally, and close open brackets above.",
    ),
    (
        "block collection",
        False,
        "A list item (`- …`) was expected here.",
        "indent all items of a list equally.",
    ),
    (
        "did not find expected <document start>",
        False,
        "There is text after the end of the document.",
        "check the indentation, or remove this text.",
    ),
)


def _explain(failure: yaml.YAMLError) -> tuple[tuple[str, str, str], Span]:
    """Return the summary, detail and hint for a parser's error, and the place to point to."""
    marked = (
        failure if isinstance(failure, yaml.MarkedYAMLError) else yaml.MarkedYAMLError(problem=str(failure))
    )
    mark = marked.problem_mark or marked.context_mark
    wording = f"{marked.context} {marked.problem}"
    detail = f"The YAML parser reports: {marked.problem or 'not YAML'}."
    hint = "check the indentation, quotes and brackets here and on the lines above."
    for part, at_start, plain, fix in _PROBLEMS:
        if part in wording:
            detail, hint = plain, fix
            if at_start and marked.context_mark is not None:
                mark = marked.context_mark
            break
    line, column = (mark.line, mark.column) if mark is not None else (0, 0)
    return ("Broken YAML", detail, hint), Span(line, column, line, column + 1)
