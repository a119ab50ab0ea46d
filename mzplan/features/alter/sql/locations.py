"""Locations in a statement, in the same form of diagnostic as for a file, with possible secrets masked."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from mzplan.features.alter.sql.statements import At
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, ExitCode, SourceRange
from mzplan.schema.kinds import resource_kind, types_of
from mzplan.secrets.references import is_reference

PATH = "<statement>"
"""In place of a file's path in a diagnostic."""
# A comment; or a text in single or double quotes, closed or not.
_TEXT = re.compile(r"""--[^\n]*|/\*.*?(?:\*/|\Z)|'(?:[^']|'')*(?:'|\Z)|"[^"]*(?:"|\Z)""", re.S)
# What stands behind an option with a secret's name, or behind SECRET, up to the next action.
_BEHIND = re.compile(r"(?i)\b(?:PASSWORD|SECRET|TOKEN|KEY)\b[^,;]*")
_UNSURE = re.compile(r"(?i)['\"]|--|/\*|\bSECRET\b")
_QUOTED = re.compile(r"""('[^']*'|"[^"]*")""")
_WORD = re.compile(r"[^\s,()=\[\];'\"]+")
_KEYWORDS = (
    "ALTER AS CONNECTION DROP EXISTS FALSE IF KEYS RENAME RESET ROTATE SECRET SET SINK SOURCE TO TRUE "
    "VALIDATE WITH"
)


def point(
    text: str,
    at: At,
    code: str,
    summary: str,
    detail: str = "",
    hint: str = "",
    *,
    shown: Iterable[At] | None = (),
    hidden: Iterable[At] = (),
    address: Address | None = None,
    exit_code: ExitCode = ExitCode.ERROR,
) -> Diagnostic:
    """An error at a location in the statement. Texts in quotes are masked, except references and those at the
    locations `shown`: any other may be a secret. `shown` is None for a statement that can't be parsed.
    `hidden`: other parts that are masked, too."""
    excerpt, range_ = excerpt_of(text, at, shown, hidden)
    return Diagnostic(
        code=code,
        summary=summary,
        detail=detail,
        hint=hint,
        range=range_,
        excerpt=excerpt,
        address=address,
        exit_code=exit_code,
    )


def excerpt_of(
    text: str, at: At, shown: Iterable[At] | None = (), hidden: Iterable[At] = ()
) -> tuple[str, SourceRange]:
    """The line of the statement that contains a location, masked, and the location as a range."""
    start = min(at.start, len(text))
    line, column = _line_and_column(text, start)
    end_line, end_column = _line_and_column(text, max(start, min(at.end, len(text))))
    whole = masked_broken(text) if shown is None else masked(text, shown)
    for part in hidden:
        whole = whole[: part.start] + re.sub(r"\S", "*", whole[part.start : part.end]) + whole[part.end :]
    lines = whole.split("\n")
    return lines[line], SourceRange(
        path=PATH, line=line + 1, column=column + 1, end_line=end_line + 1, end_column=end_column + 1
    )


def masked(text: str, shown: Iterable[At] = ()) -> str:
    """The statement with asterisks for every text in quotes that may be a secret; its length stays."""
    clear = [(at.start, at.end) for at in shown]

    def star(match: re.Match[str]) -> str:
        inner = match.group()[1:-1]
        within = any(start <= match.start() and match.end() <= end for start, end in clear)
        if within or is_reference(inner):
            return match.group()
        return "".join(char if char in "'\"\n" else "*" for char in match.group())

    return _without_words(_TEXT.sub(star, text))


def masked_broken(text: str) -> str:
    """The same for a statement that can't be parsed, so that it is unknown what its quotes enclose: from the
    first quote, comment or SECRET on, only keywords, words of options and references are shown."""
    found = _UNSURE.search(text)
    first = found.start() if found is not None else len(text)
    return _without_words(text[:first]) + _WORD.sub(_unknown, text[first:])


def _without_words(shown: str) -> str:
    """What is shown of a text, without words (not in quotes) that stand where a secret does."""

    def star(match: re.Match[str]) -> str:
        behind = match.group()
        return "".join(
            part if index % 2 else _WORD.sub(_unknown, part)
            for index, part in enumerate(_QUOTED.split(behind))
        )

    return _BEHIND.sub(star, shown)


def _unknown(match: re.Match[str]) -> str:
    word = match.group()
    return word if word.upper() in _known_words() or is_reference(word) else "*" * len(word)


@cache
def _known_words() -> frozenset[str]:
    words = set(_KEYWORDS.split())
    for type_ in types_of("connection"):
        kind = resource_kind("connection", type_)
        for name in (*kind.sql_options, *kind.sql_entries):
            words.update(name.split())
    return frozenset(words)


def _line_and_column(text: str, offset: int) -> tuple[int, int]:
    before = text[:offset]
    return before.count("\n"), offset - (before.rfind("\n") + 1)
