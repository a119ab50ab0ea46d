"""Turns findings into diagnostics: looks up lines and columns, masks secrets, sorts.

No excerpt and no message shows a secret. An excerpt masks every value that is a secret, or may be one by its
name, whatever the error in its line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

from mzplan.config.checks.query_files import as_block
from mzplan.config.findings import (
    HERE,
    LIKE_A_REFERENCE,
    LINE_BREAK,
    MAX_FINDINGS,
    Finding,
    Findings,
    Location,
    Path,
    SourceFile,
    Span,
)
from mzplan.config.project import project_files
from mzplan.config.project_files import SECTION_OF, SECTIONS, ReadError, project_file, read_bytes
from mzplan.config.yaml.parser import parse, read_text, span_at
from mzplan.config.yaml.positions import WrittenEntry, find, offset_span, scalars_on
from mzplan.model.diagnostics import Diagnostic, SourceRange
from mzplan.schema.kinds import resource_kind
from mzplan.schema.loading import types_of
from mzplan.schema.properties import walk_properties
from mzplan.secrets.references import is_reference

_SOUNDS_SECRET = re.compile(r"(?i)pass|pwd|secret|token|jaas|credential|private|api.?key")
# For text that can't be parsed: a name with its colon anywhere, and one at the start of a line. The patterns
# are possessive, so they read a long word only once.
_KEY = re.compile(r"(?<![\w.-])([\w.-]++)[\"']?\s*+[:=]")
_SECRET_WORD = re.compile(_SOUNDS_SECRET.pattern + r"|\bkey\b")
_OWN_KEY = re.compile(r"\s*(?:- +)*[\"']?[\w.-]+[\"']?\s*:(?:\s|$)")
_BLOB = re.compile(r"[A-Za-z0-9+/=_-]{32,}")
_LINES_UP = 200  # lines above that may have the key of a line
_MIN_SCRUBBED = 4  # characters: scrubbing shorter secrets would make messages unreadable


def masked_lines(text: str, lines: dict[int, str], concealed: set[Path]) -> dict[int, str]:
    """Return these lines of a well-formed file, by number from 0, with secrets masked.

    `concealed`: paths whose values are also masked.
    """
    hidden: dict[int, list[tuple[int, int]]] = {}
    for path, span, value in scalars_on(text, {number: len(line) for number, line in lines.items()}):
        if is_reference(value) or LIKE_A_REFERENCE.fullmatch(value):
            continue
        if not may_be_secret(path) and not any(path[:end] in concealed for end in range(len(path) + 1)):
            continue
        for number in range(span.line, span.end_line + 1):
            if number in lines:
                start = span.column if number == span.line else 0
                end = span.end_column if number == span.end_line else len(lines[number])
                hidden.setdefault(number, []).append((start, end))
    return {number: _mask(line, hidden.get(number, [])) for number, line in lines.items()}


def masked_broken(lines: list[str], number: int, line: str, private: bool = False) -> str:
    """Return the visible part of a line in a file that can't be parsed, with secrets masked.

    Nothing shows where a value ends, so everything after a name that sounds secret is masked, and so is a
    line that may continue such a value.
    """
    if private:
        return _mask(line, [(line.find(":") + 1, len(line))])
    if at := _after_secret_key(line):
        return _mask(line, [(at, len(line))])
    if _continues_secret(lines, number):
        return _mask(line, [(_indent(line), len(line))])
    return _BLOB.sub(lambda match: "*" * len(match.group()), line)


def _continues_secret(lines: list[str], number: int) -> bool:
    """Return whether a line belongs to a key that sounds secret.

    That is the next key above with less indentation or, for a line without a key, the next key above.
    """
    line = lines[number]
    own_key = _OWN_KEY.match(line) is not None
    for above in reversed(lines[max(0, number - _LINES_UP) : number]):
        if not above.strip():
            continue
        if _indent(above) < _indent(line) or (not own_key and _OWN_KEY.match(above)):
            return _after_secret_key(above) is not None
    return False


def _after_secret_key(line: str) -> int | None:
    """Return where the value of the first name that sounds secret begins; None without such a name."""
    return next((key.end() for key in _KEY.finditer(line) if _SECRET_WORD.search(key[1])), None)


def scrub(text: str, secrets: Iterable[str], same_length: bool = False) -> str:
    """Return the text with these secrets replaced by asterisks."""
    for secret in secrets:
        if len(secret) >= _MIN_SCRUBBED and secret in text:
            text = text.replace(secret, "*" * len(secret) if same_length else "***")
    return text


def may_be_secret(path: Path) -> bool:
    """Return whether the value at a path of a file is a secret, by its schema or by its name."""
    section = SECTIONS.get(str(path[0])) if path else None
    below = path[2:] if section else path
    if any(isinstance(key, str) and _SOUNDS_SECRET.search(key) for key in below):
        return True
    if section is not None and section != "connection":
        return any(resource_kind(section, type_).is_sensitive(below) for type_ in types_of(section))
    return any(key in _secret_names() for key in below)


@cache
def _secret_names() -> frozenset[str]:
    """Return the name of every property that is a secret in some connection."""
    return frozenset(
        path[-1]
        for type_ in types_of("connection")
        for path, schema in walk_properties(resource_kind("connection", type_).schema)
        if schema.get("x-sensitive")
    )


def _mask(line: str, hidden: list[tuple[int, int]]) -> str:
    """Return the line with asterisks for these parts, given in order by start and end."""
    parts, at = [], 0
    for start, end in hidden:
        first, last = max(start, at), min(end, len(line))
        if last > first:
            parts += [line[at:first], "*" * (last - first)]
            at = last
    return "".join([*parts, line[at:]])


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


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
        placed.append(Diagnostic.of("MZ007.mzplan-stopped", max_findings=MAX_FINDINGS))
    return placed


def ranges_of(locations: Sequence[Location]) -> list[SourceRange]:
    """Return where values of well-formed YAML files are written, in the order of the locations."""
    views: dict[str, _View] = {}
    for file in {location.file.full_path: location.file for location in locations}.values():
        views[file.full_path] = view = _View(file, [], broken=False)
        view.look_up([location for location in locations if location.file == file], [])
    return [views[place.file.full_path].range(views[place.file.full_path].span(place)) for place in locations]


class _View:
    """The lines and places of one file that diagnostics show."""

    def __init__(self, file: SourceFile, findings: list[Finding], broken: bool):
        self.file = file
        text = read_text(file, Findings())
        self.text = as_block(text) if text is not None and file.suffix else text
        self.well_formed = self.text is not None and not broken
        self.lines = self.text.splitlines() if self.text is not None else LINE_BREAK.split(_decode(file))
        self.entries: dict[Path, WrittenEntry] = {}
        self.excerpts: dict[int, str] = {}
        self.concealed = {f.location.path for f in findings if f.conceal and f.location is not None}

    def look_up(self, locations: list[Location], spans: list[Span], secrets: Iterable[str] = ()) -> None:
        """Find all these places in one pass, and their masked lines in another."""
        if self.text is not None and not self.file.suffix and any(location.path for location in locations):
            self.entries = find(self.text, (location.path for location in locations))
        ends: dict[int, int] = {}  # a line may have millions of columns, so only its visible part is masked
        for span in (*spans, *(self.span(location) for location in locations)):
            ends[span.line] = max(ends.get(span.line, 0), span.column + _SHOWN)
        lines = {number: self.lines[number][:end] for number, end in ends.items() if number < len(self.lines)}
        if self.file.suffix:
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
        if self.file.suffix:
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
