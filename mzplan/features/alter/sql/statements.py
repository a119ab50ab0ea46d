"""Statements as data, and diagnostics that point into their text and mask its secrets.

Locations are character offsets into the statement's text, from 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, NamedTuple

from mzplan.model.address import Address, Kind
from mzplan.model.diagnostics import Diagnostic, ExitCode, SourceRange
from mzplan.schema.kinds import resource_kind
from mzplan.schema.loading import types_of
from mzplan.schema.statement_options import StatementOptions
from mzplan.secrets.references import is_reference


class At(NamedTuple):
    """A part of the statement's text; the end is exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """The name of a resource, as written."""

    text: str
    at: At


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option's words in upper case, separated by single spaces: `SSH KEY`.

    `key`: the entry of a mapping, as in `CLIENT OPTION "fetch.max.bytes"`.
    """

    text: str
    at: At
    key: str | None = None

    @property
    def name(self) -> str:
        return self.text if self.key is None else f'{self.text} "{self.key}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A literal: text, a number, true or false, or a list of texts and numbers.

    - `secret`: written as SECRET '…'.
    - `word`: an identifier, without quotes or in double quotes (`quoted`).

    The repr leaves the value out, because it may be a secret.
    """

    value: Any = field(repr=False)
    at: At
    secret: bool = False
    word: bool = False
    quoted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionChange:
    """One option that is set, dropped or reset. Only `SET` has a `value`."""

    verb: Literal["SET", "DROP", "RESET"]
    option: Option
    value: Value | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfResource:
    """A statement about a resource. `names`: the names, with kinds, that must exist."""

    kind: Kind
    name: Name
    if_exists: bool

    @property
    def names(self) -> tuple[tuple[Kind, Name], ...]:
        return ((self.kind, self.name),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alter(_OfResource):
    """Changes options of a resource. `validate`: the value of WITH (VALIDATE …), or None."""

    as_type: Option | None = None
    actions: tuple[OptionChange, ...]
    validate: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RotateKeys(_OfResource):
    kind: Kind = "connection"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename(_OfResource):
    """`ALTER … RENAME TO`."""

    new: Name


@dataclass(frozen=True, slots=True, kw_only=True)
class SetConnection(_OfResource):
    """Gives a source or sink another connection."""

    connection: Name
    validate: bool | None

    @property
    def names(self) -> tuple[tuple[Kind, Name], ...]:
        return ((self.kind, self.name), ("connection", self.connection))


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateConnection:
    name: Name


Edit = Alter | RotateKeys | Rename | SetConnection
Statement = Edit | ValidateConnection


PATH = "<statement>"
"""Stands for a file's path in a diagnostic."""
# A comment, or a text in single or double quotes, closed or not.
_TEXT = re.compile(r"""--[^\n]*|/\*.*?(?:\*/|\Z)|'(?:[^']|'')*(?:'|\Z)|"[^"]*(?:"|\Z)""", re.S)
# The text after an option with a secret's name, or after SECRET, up to the next action.
_AFTER_SECRET = re.compile(r"(?i)\b(?:PASSWORD|SECRET|TOKEN|KEY)\b[^,;]*")
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
    """Return an error at a location in the statement.

    The excerpt masks quoted texts, because any text may be a secret. It shows references, and the locations
    in `shown`. `shown` is None for a statement that can't be parsed. `hidden`: other parts to mask.
    """
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
    """Return the masked line of the statement at a location, and the location's range."""
    start = min(at.start, len(text))
    line, column = _line_and_column(text, start)
    end_line, end_column = _line_and_column(text, max(start, min(at.end, len(text))))
    result = masked_unparsable(text) if shown is None else masked(text, shown)
    for part in hidden:
        result = result[: part.start] + re.sub(r"\S", "*", result[part.start : part.end]) + result[part.end :]
    lines = result.split("\n")
    return lines[line], SourceRange(
        path=PATH, line=line + 1, column=column + 1, end_line=end_line + 1, end_column=end_column + 1
    )


def masked(text: str, shown: Iterable[At] = ()) -> str:
    """Return the statement with possible secrets in quotes masked. Keeps its length."""
    clear = [(at.start, at.end) for at in shown]

    def star(match: re.Match[str]) -> str:
        inner = match.group()[1:-1]
        within = any(start <= match.start() and match.end() <= end for start, end in clear)
        if within or is_reference(inner):
            return match.group()
        return "".join(char if char in "'\"\n" else "*" for char in match.group())

    return _without_words(_TEXT.sub(star, text))


def masked_unparsable(text: str) -> str:
    """Return an unparsable statement with its values masked, at the same length.

    Its quotes may be unbalanced and enclose any part. So after the first quote, comment or SECRET, everything
    is masked except keywords, option names and references.
    """
    match = _UNSURE.search(text)
    first = match.start() if match is not None else len(text)
    return _without_words(text[:first]) + _WORD.sub(_mask_unknown, text[first:])


def _without_words(shown: str) -> str:
    """Mask unquoted words in places where a secret may be."""

    def star(match: re.Match[str]) -> str:
        secret_text = match.group()
        return "".join(
            part if index % 2 else _WORD.sub(_mask_unknown, part)
            for index, part in enumerate(_QUOTED.split(secret_text))
        )

    return _AFTER_SECRET.sub(star, shown)


def _mask_unknown(match: re.Match[str]) -> str:
    word = match.group()
    return word if word.upper() in _known_words() or is_reference(word) else "*" * len(word)


@cache
def _known_words() -> frozenset[str]:
    words = set(_KEYWORDS.split())
    for type_ in types_of("connection"):
        options = StatementOptions(resource_kind("connection", type_))
        for name in (*options.single, *options.entries):
            words.update(name.split())
    return frozenset(words)


def _line_and_column(text: str, offset: int) -> tuple[int, int]:
    before = text[:offset]
    return before.count("\n"), offset - (before.rfind("\n") + 1)
