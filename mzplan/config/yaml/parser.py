"""A YAML file → plain data: read, checked to be text, parsed."""

from __future__ import annotations

import re

from mzplan.config.files import MAX_TOTAL_BYTES, ReadError, read_bytes
from mzplan.config.findings import LINE_BREAK, Findings, Location, SourceFile, Span
from mzplan.config.yaml.builder import Builder, Document, StopError
from mzplan.config.yaml.events import YamlError, explain

_TOO_MUCH = (
    f"The files of a project may have {MAX_TOTAL_BYTES // 1024**2} MiB together; this one goes beyond that.",
    "make several projects of this one, or move out what is not configuration.",
)
# What YAML forbids in a file, but for three signs that would make the pattern slow to compile.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]")
_FORBIDDEN_SIGNS = "\ufeff\ufffe\uffff"


def load(file: SourceFile, findings: Findings) -> Document | None:
    """Read and parse a file. None when it can't be: then `findings` says why."""
    text = read_text(file, findings)
    if text is None:
        findings.unread = True
        return None
    return parse(file, text, findings)


def read_text(file: SourceFile, findings: Findings) -> str | None:
    """The file's text, checked to be UTF-8 without control characters."""
    try:
        data = read_bytes(file)
        findings.bytes += len(data)
        if findings.bytes > MAX_TOTAL_BYTES:
            raise ReadError(*_TOO_MUCH, "MZ007")
    except ReadError as failure:
        findings.add(failure.code, f"Can't read {file.path}", failure.detail, failure.hint)
        return None
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        findings.add("MZ001", f"Can't read {file.path}", "It is UTF-16.", "save it as UTF-8.")
        return None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as failure:
        before = data[: failure.start]
        span = _span_at(before.decode("utf-8-sig", "replace"))
        findings.add(
            "MZ002",
            "Not UTF-8",
            f"The byte 0x{data[failure.start]:02x} is not UTF-8 text.",
            "save the file as UTF-8.",
            location=Location(file),
            span=span,
        )
        return None
    at = _forbidden(text)
    if at is not None:
        findings.add(
            "MZ002",
            "Control character",
            f"The character U+{ord(text[at]):04X} may not be in a YAML file.",
            'remove it; inside double quotes write it as an escape, such as "\\t".',
            location=Location(file),
            span=_span_at(text[:at]),
        )
        return None
    return text


def _forbidden(text: str) -> int | None:
    """The place of the first character that YAML forbids."""
    found = [text.find(sign) for sign in _FORBIDDEN_SIGNS if sign in text]
    if bad := _FORBIDDEN.search(text):
        found.append(bad.start())
    return min(found, default=None)


def parse(file: SourceFile, text: str, findings: Findings) -> Document | None:
    """Parse a file's text. None when it is broken; a key twice, or a bad scalar, is only reported."""
    builder = Builder(file, findings)
    try:
        builder.build(text)
    except YamlError as failure:
        problem = explain(failure)
        findings.add("MZ002", *problem.words, location=Location(file), span=problem.span)
    except StopError:
        pass
    else:
        return builder.document
    findings.unread = True
    findings.broken.add(file.full_path)
    return None


def _span_at(before: str) -> Span:
    """The span of the one character that follows this text."""
    lines = LINE_BREAK.split(before)
    return Span(len(lines) - 1, len(lines[-1]), len(lines) - 1, len(lines[-1]) + 1)
