"""Reading values out of JSON that anybody may have edited. What is not as it should be is a ValueError that
says so in a few words for people; nothing is converted."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from mzplan.model.address import Address, is_valid_name
from mzplan.model.canary import Canary
from mzplan.model.state import ResourceState

T = TypeVar("T")
Fields = Mapping[str, Any]

MOST = 2**53  # a larger number is exact in no other reader of JSON
ID = re.compile(r"[0-9A-Za-z_-]{1,64}\Z")  # an id is a folder's name: it must never lead anywhere else
_CAREFUL = 4_000_000  # bytes; in a larger file, looking for repeated keys takes longer than all the rest


def parse(data: bytes) -> Any:
    """The value of a JSON text. Raises ValueError for everything that mzplan does not write: NaN, a key
    twice, another encoding."""
    if not data.strip():
        raise ValueError("it is empty")
    try:
        hook = None if len(data) > _CAREFUL else _once
        found = json.loads(data.decode(), parse_constant=_no_number, object_pairs_hook=hook)
        if b"\\ud" in data or b"\\uD" in data:  # half of a pair is no character, and could not be written
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except UnicodeEncodeError:
        raise ValueError("it holds half a character") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except json.JSONDecodeError as problem:
        raise ValueError(_broken(problem)) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _broken(problem: json.JSONDecodeError) -> str:
    ends = problem.pos >= len(problem.doc.rstrip()) or problem.msg.startswith("Unterminated string")
    if ends:
        return "it ends in the middle"
    return f"line {problem.lineno}, column {problem.colno} is no JSON"


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"it holds {next(k for k in keys if keys.count(k) > 1)!r} twice")
    return found


def mapping(value: object, name: str) -> dict[str, Any]:
    """The value, which must be a JSON object."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} is no mapping")
    return value


def text(fields: Fields, name: str, default: str | None = None) -> str:
    """A text; the default where it is absent."""
    value = fields.get(name, default)
    if type(value) is not str:
        raise ValueError(f"{name} is {_no('text', value)}")
    return value


def text_or_none(fields: Fields, name: str) -> str | None:
    """A text, or None where it is absent or null."""
    return None if fields.get(name) is None else text(fields, name)


def integer(fields: Fields, name: str, default: int | None = None, *, least: int = 0) -> int:
    """A whole number from `least` to 2⁵³."""
    value = fields.get(name, default)
    if type(value) is not int:
        raise ValueError(f"{name} is {_no('whole number', value)}")
    if not least <= value <= MOST:
        raise ValueError(f"{name} is out of range")
    return value


def number(fields: Fields, name: str, default: float | None = None) -> float:
    """A finite number."""
    value = fields.get(name, default)
    if type(value) not in (int, float):
        raise ValueError(f"{name} is {_no('number', value)}")
    assert isinstance(value, int | float)
    if not -MOST <= value <= MOST or not math.isfinite(value):
        raise ValueError(f"{name} is out of range")
    return float(value)


def flag(fields: Fields, name: str, default: bool | None = None) -> bool:
    """True or false."""
    value = fields.get(name, default)
    if type(value) is not bool:
        raise ValueError(f"{name} is neither true nor false")
    return value


def one_of(fields: Fields, name: str, choices: tuple[T, ...]) -> T:
    """One of several values."""
    value = fields.get(name)
    for choice in choices:
        if type(value) is type(choice) and value == choice:
            return choice
    raise ValueError(f"{name} has an unknown value")


def items(fields: Fields, name: str, read: Callable[[Any], T]) -> tuple[T, ...]:
    """A list, each item read."""
    value = fields.get(name)
    if not isinstance(value, list):
        raise ValueError(f"{name} is no list")
    return tuple(read(item) for item in value)


def identifier(fields: Fields, name: str = "id", *, empty: bool = False) -> str:
    """The id of a resource. Raises ValueError for what could be no folder's name. `empty`: it may be "",
    that of a resource that is not committed yet."""
    value = fields.get(name)
    if type(value) is not str or (ID.match(value) is None and not (empty and not value)):
        raise ValueError(f"{name} is no id")
    return value


def instance_name(fields: Fields, name: str) -> str:
    """The name of an instance."""
    value = fields.get(name)
    if not is_valid_name(value):
        raise ValueError(f"{name} is no name of an instance")
    assert isinstance(value, str)
    return value


def canary(value: Any) -> Canary:
    """A canary from its JSON."""
    fields = mapping(value, "a canary")
    return Canary(
        address=Address.parse(text(fields, "address")),
        serial=integer(fields, "serial", 0),
        wait=number(fields, "wait"),
        holds=items(fields, "holds", Address.parse),
    )


def record(
    address: Address, fields: Fields, references: Mapping[str, Address], *, is_new: bool = False
) -> ResourceState:
    """A committed resource from its JSON. `is_new`: it may have no id yet.

    The body is any mapping; only what mzplan reads without asking its schema is looked at.
    """
    try:
        body = mapping(fields.get("body"), "body")
        if not is_valid_name(body.get("instance", "local")):
            raise ValueError("instance is no name of an instance")
        mapping(body.get("lifecycle", {}), "lifecycle")
        return ResourceState(
            address=address,
            id=identifier(fields, empty=is_new),
            type=text(fields, "type"),
            body=body,
            dependencies=tuple(sorted(set(references.values()))),
            references=references,
            generation=integer(fields, "generation", 1, least=1),
            digest=text(fields, "digest", ""),
            override=one_of(fields, "override", (None, "paused", "resumed")),
            restart_token=integer(fields, "restart_token", 0),
        )
    except ValueError as problem:
        raise ValueError(f"{address}: {problem}") from None


def _no(what: str, value: object) -> str:
    return "missing" if value is None else f"no {what}"
