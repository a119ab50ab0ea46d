"""How dataclass fields declare their storage, for mzplan.model.codec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from mzplan.model.address import ID, is_valid_name
from mzplan.model.times import LAST_INSTANT

Read = Callable[..., Any]  # (value, its name for errors, fields not in its JSON) → value
Derive = Callable[[Mapping[str, Any]], Any]

MAX_NUMBER = 2**53  # most JSON readers lose precision beyond this


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """How a field is stored, if not simply under its own name.

    - `name`: the JSON key, if it differs from the field's name.
    - `optional`: a file may omit the field, which then has its default. A field with default None always may.
    - `sparse`: optional, and omitted if empty.
    - `key`: the field is the key of its object in a mapping.
    - `derived`: the field isn't stored; this function computes it from the other fields.
    """

    name: str | None = None
    optional: bool = False
    sparse: bool = False
    key: bool = False
    derived: Derive | None = None


def stored(name: str | None = None, **how: Any) -> dict[str, Stored]:
    """Return the metadata of a field (see Stored)."""
    return {"stored": Stored(name=name, **how)}


OPTIONAL, SPARSE, KEY = stored(optional=True), stored(sparse=True), stored(key=True)
NOT_STORED = stored(derived=lambda _: None)


def text_like(is_valid: Callable[[str], object], noun: str) -> Read:
    """Return a reader of text that `is_valid` accepts. `noun`: the text for errors, such as "an id"."""

    def read(value: Any, name: str) -> str:
        if type(value) is not str or not is_valid(value):
            raise ValueError(f"{name} is not {noun}")
        return value

    return read


def integer_from(least: int, most: float = MAX_NUMBER) -> Read:
    """Return a reader of whole numbers from `least` to `most`."""

    def read(value: Any, name: str) -> int:
        if type(value) is not int:
            raise ValueError(f"{name} is {missing_or_not('a whole number', value)}")
        if not least <= value <= most:
            raise ValueError(f"{name} is out of range")
        return value

    return read


def missing_or_not(noun: str, value: object) -> str:
    """Return the words for a value of the wrong type: `missing` for None, else `not a number`."""
    return "missing" if value is None else f"not {noun}"


def number_from(least: float, most: float = MAX_NUMBER) -> Read:
    """Return a reader of numbers from `least` to `most`."""

    def read(value: Any, name: str) -> float:
        if type(value) is not float and type(value) is not int:
            raise ValueError(f"{name} is {missing_or_not('a number', value)}")
        if not least <= value <= most:
            raise ValueError(f"{name} is out of range")
        return float(value)

    return read


Id = Annotated[str, text_like(ID.fullmatch, "an id")]
InstanceName = Annotated[str, text_like(is_valid_name, "the name of an instance")]
Positive = Annotated[int, integer_from(1)]
Port = Annotated[int, integer_from(1, 65_535)]
Seconds = Annotated[float, number_from(0.0)]
Instant = Annotated[float, number_from(0.0, LAST_INSTANT)]
Wait = Annotated[float, number_from(1.0)]
FromMinusOne = Annotated[int, integer_from(-1)]
