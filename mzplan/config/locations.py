"""Turns findings into diagnostics: looks up lines and columns, masks secrets, sorts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace

from mzplan.config.checks.query_files import as_block
from mzplan.config.findings import (
    HERE,
    LINE_BREAK,
    MAX_FINDINGS,
    Finding,
    Findings,
    Location,
    Path,
    SourceFile,
    Span,
)
from mzplan.config.masking import masked_broken, masked_lines, scrub
from mzplan.config.project import project_files
from mzplan.config.project_files import SECTION_OF, ReadError, project_file, read_bytes
from mzplan.config.yaml.parser import parse, read_text, span_at
from mzplan.config.yaml.positions import WrittenEntry, find, offset_span
from mzplan.model.diagnostics import Diagnostic, SourceRange

AnyPath = str | os.PathLike[str]
_SHOWN = 1000  # columns of a line that an excerpt shows after the start of the error


def diagnose(findings: Findings) -> list[Diagnostic]:
    """Return every finding as a diagnostic with its place, sorted by file and line."""
    secrets = sorted(findings.secrets, key=len, reverse=True)
    views = _views(findings, secrets)
    placed = [_diagnostic(finding, views, secrets) for finding in findings.items]
    # The parser replaces values that it can't use. Leave out other findings about the replacements.
    unusable = {
        _start(diagnostic)
        for diagnostic in placed
        if diagnostic.kind == "unparsed" and diagnostic.range is not None
    }
    placed = [
        diagnostic
        for diagnostic in placed
        if diagnostic.kind == "unparsed" or _start(diagnostic) not in unusable
    ]
    placed.sort(key=_order)
    if findings.has_more:
        summary = f"mzplan stopped after {MAX_FINDINGS} errors; there are more"
        placed.append(Diagnostic(severity="notice", code="MZ007", summary=summary))
    return placed


class _View:
    """The lines and places of one file that diagnostics show."""

    def __init__(self, file: SourceFile, findings: list[Finding], broken: bool):
        self.file = file
        text = read_text(file, Findings())
        self.text = as_block(text) if text is not None and file.is_sql else text
        self.well_formed = self.text is not None and not broken
        self.lines = self.text.splitlines() if self.text is not None else LINE_BREAK.split(_decode(file))
        self.entries: dict[Path, WrittenEntry] = {}
        self.excerpts: dict[int, str] = {}
        self.concealed = {f.location.path for f in findings if f.conceal and f.location is not None}

    def look_up(self, locations: list[Location], spans: list[Span], secrets: Iterable[str] = ()) -> None:
        """Find all these places in one pass, and their masked lines in another."""
        if self.text is not None and not self.file.is_sql and any(location.path for location in locations):
            self.entries = find(self.text, (location.path for location in locations))
        ends: dict[int, int] = {}  # a line may have millions of columns, so only its visible part is masked
        for span in (*spans, *(self.span(location) for location in locations)):
            ends[span.line] = max(ends.get(span.line, 0), span.column + _SHOWN)
        lines = {number: self.lines[number][:end] for number, end in ends.items() if number < len(self.lines)}
        if self.file.is_sql:
            self.excerpts = lines
        elif self.well_formed and self.text is not None:
            concealed: set[Path] = {()} if self.file.private else self.concealed
            self.excerpts = masked_lines(self.text, lines, concealed)
        else:
            self.excerpts = {
                number: masked_broken(self.lines, number, line, self.file.private)
                for number, line in lines.items()
            }
        self.excerpts = {
            number: scrub(line, secrets, same_length=True) for number, line in self.excerpts.items()
        }

    def span(self, location: Location) -> Span:
        """Return where a path is written, or the nearest path above it."""
        if self.file.is_sql:
            return span_at((self.text or "")[: location.offset or 0], location.length)
        path, exact = location.path, True
        while path not in self.entries:
            if not path:
                return Span(0, 0, 0, 1)
            path, exact = path[:-1], False
        place = self.entries[path]
        if exact and location.offset is not None and place.text is not None:
            return offset_span(self.lines, place, location.offset, location.length)
        # Point to the key of a mapping or list, also if a key is missing in it.
        use_key = place.key is not None and (location.at_key or not exact or place.text is None)
        return place.key if use_key and place.key is not None else place.value

    def range(self, span: Span) -> SourceRange:
        return SourceRange(
            path=self.file.path,
            line=span.line + 1,
            column=span.column + 1,
            end_line=span.end_line + 1,
            end_column=span.end_column + 1,
        )


def _decode(file: SourceFile) -> str:
    """Return the text of a file that isn't valid text, for its excerpt."""
    try:
        return read_bytes(file).decode("utf-8", "backslashreplace")
    except ReadError:
        return ""


def _views(findings: Findings, secrets: list[str]) -> dict[str, _View]:
    """Return a view of every file with a finding, with all its places looked up."""
    by_file: dict[str, tuple[SourceFile, list[Location], list[Span], list[Finding]]] = {}
    for finding in findings.items:
        for location in (finding.location, finding.related):
            if location is None:
                continue
            _, locations, spans, own = by_file.setdefault(
                location.file.full_path, (location.file, [], [], [])
            )
            own.append(finding)
            if location is finding.location and finding.span is not None:
                spans.append(finding.span)
            else:
                locations.append(location)
    views = {}
    for name, (file, locations, spans, own) in by_file.items():
        views[name] = view = _View(file, own, name in findings.broken_files)
        view.look_up(locations, spans, secrets)
    return views


def _diagnostic(finding: Finding, views: dict[str, _View], secrets: list[str]) -> Diagnostic:
    location, range_, excerpt = finding.location, None, None
    if location is not None:
        view = views[location.file.full_path]
        span = finding.span or view.span(location)
        range_ = view.range(span)
        excerpt = view.excerpts.get(span.line, "")
    related = ""
    if finding.related is not None:
        view = views[finding.related.file.full_path]
        related = str(view.range(view.span(finding.related)))
    return Diagnostic(
        code=finding.code,
        kind=finding.kind,
        summary=scrub(finding.summary, secrets),
        detail=scrub(finding.detail, secrets).replace(HERE, related),
        hint=scrub(finding.hint, secrets).replace(HERE, related),
        range=range_,
        address=finding.address,
        excerpt=excerpt,
    )


def _start(diagnostic: Diagnostic) -> tuple[str, int, int] | None:
    where = diagnostic.range
    return (where.path, where.line, where.column) if where is not None else None


def _order(diagnostic: Diagnostic) -> tuple[str, int, int, str, str, str]:
    return (*(_start(diagnostic) or ("", 0, 0)), diagnostic.code, diagnostic.summary, diagnostic.detail)


def locate(directory: AnyPath, diagnostic: Diagnostic, path: Path = ()) -> Diagnostic:
    """Return the diagnostic with the range and masked excerpt of its resource, or of a property at a path.

    Returns it unchanged if no file declares the resource. This reads the project's files again, so use it
    for single diagnostics.
    """
    assert diagnostic.address is not None, "the diagnostic is about a resource"
    kind, name = diagnostic.address
    ignored = Findings()
    wanted: Path = (SECTION_OF[kind], name)
    for file in project_files(os.fspath(directory)):
        text = read_text(file, ignored)
        # Most files don't even mention the name: no need to parse those.
        if text is None or name not in text or wanted not in find(text, [wanted]):
            continue
        location = Location(file, (*wanted, *path), at_key=not path)
        view = _View(file, [], parse(file, text, ignored) is None)
        view.look_up([location], [])
        return _placed(diagnostic, view, location)
    return diagnostic


def locate_setting(directory: AnyPath, diagnostic: Diagnostic, path: Path) -> Diagnostic:
    """Return the diagnostic with the range and masked excerpt of a setting in mzplan.yaml."""
    file = project_file(os.fspath(directory))
    location, view = Location(file, path), _View(file, [], broken=False)
    view.look_up([location], [])
    if path not in view.entries:
        return diagnostic
    return _placed(diagnostic, view, location)


def _placed(diagnostic: Diagnostic, view: _View, location: Location) -> Diagnostic:
    span = view.span(location)
    return replace(diagnostic, range=view.range(span), excerpt=view.excerpts.get(span.line, ""))
