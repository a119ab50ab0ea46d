"""Columns as Spark DDL, parsed without Spark: `"id BIGINT, amount DECIMAL(10,2), tags ARRAY<STRING>"`.

This module doesn't use an SQL library. Every plan parses every schema, and importing a library takes longer
than a small plan. A library's errors also don't say which column is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

POSITION = "_position"  # the reserved struct column that orders the changes of one key
CHANGE = "_change"  # the effect of a row on a keyed collection: UPSERT or DELETE. It is never stored
UPSERT, DELETE = "upsert", "delete"

_SIMPLE = {
    "BOOLEAN": "BOOLEAN",
    "TINYINT": "TINYINT",
    "BYTE": "TINYINT",
    "SMALLINT": "SMALLINT",
    "SHORT": "SMALLINT",
    "INT": "INT",
    "INTEGER": "INT",
    "BIGINT": "BIGINT",
    "LONG": "BIGINT",
    "FLOAT": "FLOAT",
    "REAL": "FLOAT",
    "DOUBLE": "DOUBLE",
    "STRING": "STRING",
    "BINARY": "BINARY",
    "DATE": "DATE",
    "TIMESTAMP": "TIMESTAMP",
    "TIMESTAMP_LTZ": "TIMESTAMP",
    "TIMESTAMP_NTZ": "TIMESTAMP_NTZ",
}
_DECIMAL = {"DECIMAL", "DEC", "NUMERIC"}
TYPE_NAMES = sorted({*_SIMPLE, *_DECIMAL, "ARRAY", "MAP", "STRUCT", "CHAR", "VARCHAR"})
_TOKEN = re.compile(
    r"\s*(?:(?P<word>\w+)|`(?P<quoted>(?:[^`]|``)+)`|'(?P<text>(?:[^'\\]|\\.)*)'|(?P<sign>[(),<>:]))"
)
_MAX_DEPTH = 32
OWN = "_mzplan_"  # prefix of mzplan's own temporary columns
_FEED = ("_change_type", "_commit_version", "_commit_timestamp")
_NOT_STORED = re.compile(r"[ ,;{}()\n\t=]")
_SIZED_TEXT = re.compile(r"\b(?:VAR)?CHAR\((\d+)\)")
_SIGN = re.compile(r"[<>(),]|`[^`]*`")  # of a type
_DOUBTFUL = re.compile(r"`|struct|_change_type|_commit_|_mzplan_", re.IGNORECASE)
MAX_LENGTH = 100_000  # characters of one schema


class DdlError(ValueError):
    """A schema that isn't Spark DDL. `offset`: the position of the first wrong character, from 0."""

    def __init__(self, message: str, offset: int):
        super().__init__(message)
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name as written, and its type in canonical Spark DDL (`DECIMAL(10,2)`)."""

    name: str
    type: str
    nullable: bool = True

    def __str__(self) -> str:
        return f"{self.quoted_name} {self._rest}"

    @property
    def quoted_name(self) -> str:
        """Return the name, in backquotes if it needs them."""
        return self.name if re.fullmatch(r"\w+", self.name) else "`" + self.name.replace("`", "``") + "`"

    @property
    def as_field(self) -> str:
        """Return the column as a field of a STRUCT."""
        return f"{self.quoted_name}: {self._rest}"

    @property
    def _rest(self) -> str:
        return self.type if self.nullable else f"{self.type} NOT NULL"


def change_columns(columns: Sequence[Column], keys: Sequence[str]) -> tuple[Column, ...]:
    """Return the columns of the changes of a keyed collection: the collection's columns, and `_change`.

    Only the key is NOT NULL, because the other columns of a deleted row aren't known.
    """
    known = {key.lower() for key in keys}
    row_columns = (c if c.name.lower() in known else replace(c, nullable=True) for c in columns)
    return (*row_columns, Column(CHANGE, "STRING", nullable=False))


@lru_cache(maxsize=8192)
def parse_columns(ddl: str) -> tuple[Column, ...]:
    """Parse DDL such as `"id BIGINT, name STRING"`. Raises DdlError, with the offset, for anything else."""
    if len(ddl) > MAX_LENGTH:
        raise DdlError(f"a schema may have at most {MAX_LENGTH:,} characters; this one has {len(ddl):,}", 0)
    parser = _Parser(ddl)
    starts = [parser.start]
    columns = [parser.column()]
    while parser.accept(","):
        starts.append(parser.start)
        columns.append(parser.column())
    if parser.kind:
        raise DdlError(f"unexpected {_short(parser.token)}: a comma separates columns", parser.start)
    seen: set[str] = set()
    for column, start in zip(columns, starts, strict=True):
        # Spark ignores the case of column names.
        if column.name.lower() in seen:
            raise DdlError(f"column {_short(column.name)} is declared twice", start)
        if column.name.lower() == POSITION:
            raise DdlError(f"{POSITION!r} is reserved for mzplan's own column", start)
        seen.add(column.name.lower())
    return tuple(columns)


def check_storable(ddl: str) -> None:
    """Raise DdlError, with the offset, for a column that a Delta table can't have, at any depth.

    `parse_columns` doesn't check this, because a schema that was once committed must stay readable.
    """
    if not _DOUBTFUL.search(ddl):  # true of most schemas, and cheaper than parsing
        return
    parser = _Parser(ddl)
    parser.column()
    while parser.accept(","):
        parser.column()
    seen: set[tuple[int, str]] = set()
    for struct, name, start in parser.named:
        lower, short = name.lower(), _short(name)
        if bad := _NOT_STORED.search(name):
            raise DdlError(f"{short} contains {bad.group()!r}, which Delta doesn't allow in names", start)
        if not struct and (lower in _FEED or lower.startswith(OWN)):
            raise DdlError(f"{short} is reserved for Delta's change feed or for mzplan", start)
        if (struct, lower) in seen:
            raise DdlError(f"field {short} is declared twice: Spark ignores case in names", start)
        seen.add((struct, lower))


def spark_type(type_: str) -> str:
    """Return the type of a table's column for a declared type: `STRING` for `VARCHAR(20)`.

    NOT NULL inside a type is left out. mzplan checks it when it reads a record; a table with it couldn't
    get such a column later.
    """
    return _SIZED_TEXT.sub("STRING", type_).replace(" NOT NULL", "")


def longest(type_: str) -> int | None:
    """Return the maximum number of characters of a CHAR(n) or VARCHAR(n), or None for any other type."""
    match = _SIZED_TEXT.fullmatch(type_)
    return int(match[1]) if match else None


def map_types(type_: str) -> tuple[str, str]:
    """Return the key and value types of a canonical `MAP<K,V>`, split at the comma outside brackets."""
    inner, depth = type_[len("MAP<") : -1], 0
    for sign in _SIGN.finditer(inner):
        if sign[0] == "," and not depth:
            return inner[: sign.start()], inner[sign.end() :]
        depth += (sign[0] in "<(") - (sign[0] in ">)")
    raise AssertionError(f"{inner!r} are not two types")


def canonical(ddl: str) -> str:
    """Return DDL in canonical form, so that equivalent schemas are equal; unchanged if it can't be parsed."""
    try:
        return ", ".join(map(str, parse_columns(ddl)))
    except DdlError:
        return ddl


def canonical_type(text: str) -> str | None:
    """Return a Spark type in canonical DDL (`decimal(10,2)` → `DECIMAL(10,2)`); None for an unknown type."""
    try:
        return parse_columns(f"x {text}")[0].type
    except DdlError:
        return None


def _short(token: str) -> str:
    """Return a part of a schema, shortened for messages."""
    return repr(token if len(token) <= 60 else token[:59] + "…")


class _Parser:
    """A recursive-descent parser for one DDL string."""

    def __init__(self, text: str):
        self.text = text
        self.end = 0
        self.start = 0
        self.token = ""
        self.kind: str | None = ""
        self.depth = 0
        # Every name, its offset, and the number of its struct (0: a column).
        self.named: list[tuple[int, str, int]] = []
        self.structs = self.within = 0
        self.advance()

    def advance(self) -> None:
        match = _TOKEN.match(self.text, self.end)
        if match is None:
            rest = self.text[self.end :].strip()
            if rest:
                offset = self.text.index(rest[0], self.end)
                raise DdlError(f"unexpected {rest[0]!r}", offset)
            self.start, self.token, self.kind = len(self.text), "", None
            return
        self.kind = match.lastgroup
        assert self.kind is not None
        self.token, self.start, self.end = match[self.kind], match.start(self.kind), match.end()

    def accept(self, sign: str) -> bool:
        if self.kind == "sign" and self.token == sign:
            self.advance()
            return True
        return False

    def accept_word(self, word: str) -> bool:
        if self.kind == "word" and self.token.upper() == word:
            self.advance()
            return True
        return False

    def expect(self, sign: str) -> None:
        if not self.accept(sign):
            actual = _short(self.token) if self.kind else "the end"
            raise DdlError(f"expected {sign!r}, found {actual}", self.start)

    def name(self) -> str:
        if self.kind not in ("word", "quoted"):
            actual = _short(self.token) if self.kind else "the end"
            raise DdlError(f"expected a column name, found {actual}", self.start)
        name = self.token.replace("``", "`") if self.kind == "quoted" else self.token
        self.advance()
        return name

    def column(self) -> Column:
        start = self.start
        name = self.name()
        self.named.append((self.within, name, start))
        self.accept(":")
        type_ = self.type()
        nullable = True
        if self.accept_word("NOT"):
            if not self.accept_word("NULL"):
                raise DdlError("expected NULL after NOT", self.start)
            nullable = False
        if self.accept_word("COMMENT"):
            if self.kind != "text":
                raise DdlError("expected a 'text' after COMMENT", self.start)
            self.advance()
        return Column(name, type_, nullable)

    def type(self) -> str:
        start = self.start
        if self.kind != "word":
            raise DdlError("expected a type", start)
        word = self.token.upper()
        self.advance()
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise DdlError(f"types nested more than {_MAX_DEPTH} deep", start)
        try:
            return self._type(word, start)
        finally:
            self.depth -= 1

    def _type(self, word: str, start: int) -> str:
        if word in _SIMPLE:
            return _SIMPLE[word]
        if word in _DECIMAL:
            precision, scale = self.numbers(default=(10, 0))
            if not 1 <= precision <= 38 or not 0 <= scale <= precision:
                raise DdlError("DECIMAL(p,s) needs 1 <= p <= 38 and 0 <= s <= p", start)
            return f"DECIMAL({precision},{scale})"
        if word in ("CHAR", "VARCHAR"):
            length, _ = self.numbers(default=(0, 0))
            if length < 1:
                raise DdlError(f"{word} needs a length, as {word}(20)", start)
            return f"{word}({length})"
        if word == "ARRAY":
            self.expect("<")
            inner = self.type()
            self.expect(">")
            return f"ARRAY<{inner}>"
        if word == "MAP":
            self.expect("<")
            key = self.type()
            self.expect(",")
            value = self.type()
            self.expect(">")
            return f"MAP<{key},{value}>"
        if word == "STRUCT":
            return self.struct()
        raise DdlError(f"unknown type {_short(word)}; known are {', '.join(TYPE_NAMES)}", start)

    def struct(self) -> str:
        self.expect("<")
        self.structs += 1
        outer, self.within = self.within, self.structs
        fields = [self.column()]
        while self.accept(","):
            fields.append(self.column())
        self.within = outer
        self.expect(">")
        return f"STRUCT<{','.join(field.as_field for field in fields)}>"

    def numbers(self, default: tuple[int, int]) -> tuple[int, int]:
        if not self.accept("("):
            return default
        numbers: list[int] = []
        while True:
            if self.kind != "word" or not self.token.isdecimal() or len(self.token) > 9:
                raise DdlError("expected a number", self.start)
            numbers.append(int(self.token))
            self.advance()
            if not self.accept(","):
                break
        self.expect(")")
        if len(numbers) > 2:
            raise DdlError("expected at most two numbers", self.start)
        return numbers[0], numbers[1] if len(numbers) == 2 else 0
