"""Findings, which are errors without a line and column, and functions that format values for messages.

A check records where an error is as a path of keys. If there are any findings, mzplan.config.locations parses
the files again to find their lines and columns.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, ProblemKind
from mzplan.model.words import nearest, shown

# The line breaks of YAML's parser.
LINE_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
# Text that was meant as a reference, well-formed or not. It isn't a secret.
LIKE_A_REFERENCE = re.compile(r"\$\{(?:var|env|file|vault|aws-sm|each)\b[^{}]*\}")


Path = tuple[str | int, ...]
MAX_FINDINGS = 1000
MAX_COMPARED = 1_000_000  # comparisons of unknown names with known ones, in a run
# Placeholder in a text for the position of `Finding.related`. No value from a file can contain it.
HERE = "\x00here\x00"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A configuration file: its path, and its name in messages (relative to the project, with `/`).

    - `private`: any value in it may be a secret, so messages show none.
    - `root`: the folder that the file must be in, with links followed; "" for anywhere.
    - `content`: the content after an edit that isn't written yet; None for the content on the disk.
    - `suffix`: of a file that isn't YAML, but a text that a resource names by its path; "" for YAML.
    - `suffixes`: how the name of a file of rows may end, which a test names by its path; () for other files.
    """

    full_path: str
    path: str
    private: bool = False
    root: str = ""
    content: bytes | None = field(default=None, repr=False)
    suffix: str = ""
    suffixes: tuple[str, ...] = ()

    @classmethod
    def within(cls, directory: str, full_path: str) -> SourceFile:
        relative = os.path.relpath(full_path, directory)
        # File names are bytes; messages show bytes that aren't UTF-8 as escapes.
        shown = os.fsencode(relative).decode("utf-8", "backslashreplace").replace(os.sep, "/")
        return cls(full_path, shown, root=directory)

    def as_edited(self, edited: Mapping[str, bytes]) -> SourceFile:
        """Return this file with its edited content, if `edited` has one for its real path."""
        content = edited.get(os.path.realpath(self.full_path)) if edited else None
        return self if content is None else replace(self, content=content)


@dataclass(frozen=True, slots=True)
class Span:
    """Lines and columns from 0, as a parser counts them; the end is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, slots=True)
class Location:
    """A path of keys in a file, and the resource at that path.

    - `offset`, `length`: characters in the value's text.
    - `shared`: several resources share the text, so an error in it is reported once.
    - `note`: a sentence at the end of each detail.
    """

    file: SourceFile
    path: Path = ()
    at_key: bool = False
    offset: int | None = None
    length: int = 1
    address: Address | None = None
    shared: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One error. It has either a `location`, which is looked up later, or a `file` and `span`."""

    code: str
    summary: str
    detail: str = ""
    hint: str = ""
    address: Address | None = None
    location: Location | None = None
    span: Span | None = None
    related: Location | None = None
    kind: ProblemKind = ""
    # The value at `location` may be a secret, so excerpts mask it.
    conceal: bool = False


class EnoughError(Exception):
    """The list of findings is full, so the checks can stop."""


class Findings:
    """The findings of a run, up to a limit. With `stops`, `add` raises EnoughError at the limit.

    - `total`: the number of findings, including repeated ones.
    - `reported_shared`: code, summary, file and path of findings in text that several resources share.
    - `secrets`: secrets written out in files. No message may show them.
    - `unusable`: file and path of values with a reference that can't be filled in. They get no more findings.
    - `original_texts`: by file and path, the text of a number that Python prints differently, such as 010.
    - `broken_files`: files that could be read but not parsed.
    - `is_incomplete`: a file couldn't be read or parsed, so other resources may be declared.
    - `providers`: for each secret provider that was looked up, whether it exists.
    - `bytes`: the bytes read so far.
    - `nodes`: the keys and values of all files so far. An alias counts for each use.
    """

    def __init__(self, *, stops: bool = False) -> None:
        self.stops = stops
        self.items: list[Finding] = []
        self.has_more = False
        self.total = 0
        self.reported_shared: set[tuple[str, str, str, Path]] = set()
        self.comparisons = 0
        self.secrets: set[str] = set()
        self.unusable: set[tuple[str, Path]] = set()
        self.original_texts: dict[tuple[str, Path], str] = {}
        self.broken_files: set[str] = set()
        self.is_incomplete = False
        self.providers: dict[str, bool] = {}
        self.bytes = 0
        self.nodes = 0

    def __bool__(self) -> bool:
        return bool(self.items)

    def is_unusable_below(self, location: Location) -> bool:
        """Return whether a value at a location, or below it, has a reference that can't be filled in."""
        path = location.path
        return any(
            (file, inner[: len(path)]) == (location.file.full_path, path) for file, inner in self.unusable
        )

    def nearest(self, word: object, names: Collection[str]) -> str | None:
        """Return the name that `word` probably stands for; None also after too many comparisons."""
        self.comparisons += len(names)
        return nearest(word, names) if self.comparisons <= MAX_COMPARED else None

    def did_you_mean(self, word: object, names: Collection[str]) -> str:
        """Return `did you mean "kafka"?`; "" if no name is near."""
        near = self.nearest(word, names)
        return f"did you mean {shown(near)}?" if near is not None else ""

    def add(
        self,
        message: str,
        location: Location | None = None,
        *,
        address: Address | None = None,
        span: Span | None = None,
        related: Location | None = None,
        conceal: bool = False,
        **values: Any,
    ) -> None:
        """Add a finding with the texts of a message, such as `MZ002.tag` (see mzplan.model.messages).

        The texts may use the values, and also `address` and `here`, the place of `related`.
        """
        if location is not None:
            address = address or location.address
        diagnostic = Diagnostic.of(message, address=address, here=HERE, **values)
        self.report(diagnostic, location, span=span, related=related, conceal=conceal)

    def report(
        self,
        diagnostic: Diagnostic,
        location: Location | None = None,
        *,
        span: Span | None = None,
        related: Location | None = None,
        conceal: bool = False,
    ) -> None:
        """Add a finding with the texts of a diagnostic."""
        if (
            location is not None
            and not location.at_key
            and (location.file.full_path, location.path) in self.unusable
        ):
            return
        self.total += 1
        if location is not None and location.shared:
            same = (diagnostic.code, diagnostic.summary, location.file.full_path, location.path)
            if same in self.reported_shared:
                return
            self.reported_shared.add(same)
        if len(self.items) >= MAX_FINDINGS:
            self.has_more = True
            if self.stops:
                raise EnoughError
            return
        self.items.append(
            Finding(
                code=diagnostic.code,
                summary=diagnostic.summary,
                detail=f"{diagnostic.detail} {location.note}".strip() if location else diagnostic.detail,
                hint=diagnostic.hint,
                address=diagnostic.address,
                location=location,
                span=span,
                related=related,
                conceal=conceal,
                kind=diagnostic.kind,
            )
        )
