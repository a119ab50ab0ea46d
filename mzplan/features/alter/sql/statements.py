"""Statements as data. Locations are offsets of characters in the text of the statement, from 0."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from mzplan.model.address import Kind


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
    """An option's words in upper case, one space apart: `SSL KEY`; and `key`, which entry of it: `CLIENT
    OPTION "fetch.max.bytes"`."""

    text: str
    at: At
    key: str | None = None

    @property
    def name(self) -> str:
        return self.text if self.key is None else f'{self.text} "{self.key}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A literal: text, a number, true or false, or a list of texts and numbers. `secret`: written as
    SECRET '…'. `word`: written without quotes, or in double ones (`quoted`): an identifier. The value may be
    a secret that was written out, so it is left out of every repr."""

    value: Any = field(repr=False)
    at: At
    secret: bool = False
    word: bool = False
    quoted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One option set, dropped or reset; `value` only for `SET`."""

    verb: Literal["SET", "DROP", "RESET"]
    option: Option
    value: Value | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfResource:
    """A statement about a resource. `names`: those of it that must be there, with their kinds."""

    kind: Kind
    name: Name
    if_exists: bool

    @property
    def names(self) -> tuple[tuple[Kind, Name], ...]:
        return ((self.kind, self.name),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alter(_OfResource):
    """Options of a resource. `validate`: the value of WITH (VALIDATE …), None where it is absent."""

    as_type: Option | None = None
    actions: tuple[Action, ...]
    validate: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RotateKeys(_OfResource):
    kind: Kind = "connection"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename(_OfResource):
    """Gives a resource another name."""

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
