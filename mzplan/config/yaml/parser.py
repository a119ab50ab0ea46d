"""Reads a YAML file, checks that it is text, and parses it; explains the parser's errors in plain words."""

from __future__ import annotations

import re

import yaml

from mzplan.config.documents import Document
from mzplan.config.findings import LINE_BREAK, Findings, Location, SourceFile, Span
from mzplan.config.project_files import MAX_TOTAL_BYTES, ReadError, read_bytes
from mzplan.config.yaml.builder import Builder, StopError
from mzplan.model.diagnostics import Diagnostic

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
            most = MAX_TOTAL_BYTES // 1024**2
            raise ReadError(Diagnostic.of("MZ007.files", path=file.path, most=most))
        if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise ReadError(Diagnostic.of("MZ001.utf-16", action="read", path=file.path))
    except ReadError as failure:
        findings.report(failure.diagnostics[0], named)
        return None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as failure:
        before = data[: failure.start]
        span = span_at(before.decode("utf-8-sig", "replace"))
        findings.add("MZ002.not-utf", Location(file), span=span, byte=data[failure.start])
        return None
    at = _forbidden(text)
    if at is not None:
        findings.add("MZ002.control-character", Location(file), span=span_at(text[:at]), ord=ord(text[at]))
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
        diagnostic, span = _explain(failure)
        findings.report(diagnostic, Location(file), span=span)
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


# A part of the parser's message, and the message for it. The first part that matches counts. With True, the
# error points to the start of the broken value, not to where the parser stopped. Both of PyYAML's parsers use
# these words.
_PROBLEMS: tuple[tuple[str, bool, str], ...] = (
    ("quoted scalar", True, "MZ002.open-quote"),
    ("tab character", False, "MZ002.tab"),
    ("character that cannot start any token", False, "MZ002.first-character"),
    ("mapping values are not allowed", False, "MZ002.second-colon"),
    ("could not find expected ':'", True, "MZ002.no-colon"),
    ("block sequence entries are not allowed", False, "MZ002.misplaced-item"),
    ("flow sequence", True, "MZ002.open-list"),
    ("flow mapping", True, "MZ002.open-mapping"),
    ("flow node", False, "MZ002.no-value"),
    ("unknown escape character", False, "MZ002.escape"),
    ("block mapping", False, "MZ002.no-key"),
    ("block collection", False, "MZ002.no-item"),
    ("did not find expected <document start>", False, "MZ002.after-end"),
)


def _explain(failure: yaml.YAMLError) -> tuple[Diagnostic, Span]:
    """Return the message for a parser's error, and the place to point to."""
    marked = (
        failure if isinstance(failure, yaml.MarkedYAMLError) else yaml.MarkedYAMLError(problem=str(failure))
    )
    mark = marked.problem_mark or marked.context_mark
    wording = f"{marked.context} {marked.problem}"
    known = next((problem for problem in _PROBLEMS if problem[0] in wording), None)
    if known is None:
        diagnostic = Diagnostic.of("MZ002.broken", reason=marked.problem or "not YAML")
    else:
        diagnostic = Diagnostic.of(known[2])
        if known[1] and marked.context_mark is not None:
            mark = marked.context_mark
    line, column = (mark.line, mark.column) if mark is not None else (0, 0)
    return diagnostic, Span(line, column, line, column + 1)
