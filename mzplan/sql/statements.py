"""Statements as data. Locations are offsets of characters in the text of the statement, from 0."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple


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
    """An option's name in upper case, its words one space apart: `SSL KEY`."""

    text: str
    at: At


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A literal: text, a number, true or false, or a list of texts and numbers. `secret`: written as
    SECRET '…'. The value may be a secret that was written out, so it is left out of every repr."""

    value: Any = field(repr=False)
    at: At
    secret: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One option set, dropped or reset; `value` only for `SET`."""

    verb: Literal["SET", "DROP", "RESET"]
    option: Option
    value: Value | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConnection:
    """`validate`: the value of WITH (VALIDATE …), None where it is absent."""

    name: Name
    if_exists: bool
    as_type: Option | None
    actions: tuple[Action, ...]
    validate: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RotateKeys:
    name: Name
    if_exists: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SetConnection:
    """Gives a source or sink another connection."""

    kind: Literal["source", "sink"]
    name: Name
    connection: Name
    validate: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateConnection:
    name: Name


Statement = AlterConnection | RotateKeys | SetConnection | ValidateConnection
