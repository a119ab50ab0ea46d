"""Convert frozen dataclasses to JSON and back, by the types of their fields.

Stored files may have been edited by hand. So the codec converts no types: a value of the wrong type raises
ValueError with a short message for people ("source.orders: generation is missing"). Unknown properties are
ignored, because a newer mzplan may write more of them.

- `str`, `bool`, finite `float`, `int` (0 to 2⁵³), Literals of text and IntEnums are stored as they are.
- `Address` is stored as its text, also as a key. `Any` and the values of a `Mapping[str, Any]` are any JSON.
- `Mapping`, `tuple` and `X | None` become an object, a list, and null for None. A dataclass or NamedTuple
  becomes an object. Its fields may have metadata (see mzplan.model.stored).
- For `Annotated[T, read]`, the function `read(value, name)` returns the T or raises ValueError.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import IntEnum
from functools import cache, cached_property, lru_cache
from types import NoneType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from mzplan.model.address import Address
from mzplan.model.stored import MAX_NUMBER, Derive, Read, Stored, integer_from, missing_or_not, number_from

T = TypeVar("T")
Write = Callable[[Any], Any]


@overload
def decode(type_: type[T], value: Any, name: str = "", /, **known: Any) -> T: ...
@overload
def decode(type_: Any, value: Any, name: str = "", /, **known: Any) -> Any: ...
def decode(type_: Any, value: Any, name: str = "", /, **known: Any) -> Any:
    """Return a value of a type from its JSON. Raises ValueError, which names the value `name`.

    `known`: the values of fields that the JSON doesn't have.
    """
    return _codec(type_).read(value, name, **known)


def encode(value: object) -> dict[str, Any]:
    """Return the JSON of a dataclass: fields in declaration order, mappings sorted by key."""
    type_: Any = type(value)
    document: dict[str, Any] = _codec(type_).written(value)
    return document


class _Codec(NamedTuple):
    read: Read
    write: Write | None = None  # None: the value is its own JSON

    def written(self, value: Any) -> Any:
        return value if self.write is None else self.write(value)


@cache
def _codec(type_: Any) -> _Codec:
    origin, parts = get_origin(type_), get_args(type_)
    if type_ in _BY_TYPE:
        return _BY_TYPE[type_]
    if origin is Annotated:
        return _Codec(parts[1], _codec(parts[0]).write)
    if origin is Literal:
        return _Codec(_choice(parts))
    if NoneType in parts:
        return _optional(_codec(next(part for part in parts if part is not NoneType)))
    if origin is tuple:
        return _list(parts)
    if origin is not None:
        return _mapping(*parts)
    if issubclass(type_, IntEnum):
        return _enum(type_)
    return _Codec(_object(type_).read, _object(type_).write)


def _text(value: Any, name: str) -> str:
    if type(value) is not str:
        raise ValueError(f"{name} is {missing_or_not('text', value)}")
    return value


def _flag(value: Any, name: str) -> bool:
    if type(value) is not bool:
        raise ValueError(f"{name} is neither true nor false")
    return value


_address = lru_cache(65_536)(Address.parse)  # a state repeats each address many times


def _read_address(value: Any, name: str) -> Address:
    return _address(value if type(value) is str else _text(value, name))


_BY_TYPE: dict[Any, _Codec] = {
    str: _Codec(_text),
    int: _Codec(integer_from(0)),
    float: _Codec(number_from(-MAX_NUMBER)),
    bool: _Codec(_flag),
    Any: _Codec(lambda value, name: value),
    Address: _Codec(_read_address, str),
}


def _choice(choices: tuple[Any, ...]) -> Read:
    def read(value: Any, name: str) -> Any:
        if type(value) is not str or value not in choices:
            raise ValueError(f"{name} has an unknown value")
        return value

    return read


def _enum(type_: type[IntEnum]) -> _Codec:
    def read(value: Any, name: str) -> IntEnum:
        if type(value) is not int or value not in set(type_):
            raise ValueError(f"{name} has an unknown value")
        return type_(value)

    return _Codec(read, int)


def _optional(inner: _Codec) -> _Codec:
    def read(value: Any, name: str, /, **known: Any) -> Any:
        return None if value is None else inner.read(value, name, **known)

    return _Codec(read, lambda value: None if value is None else inner.written(value))


def _list(parts: tuple[Any, ...]) -> _Codec:
    """Return the codec of `tuple[X, ...]`, or of a tuple of fixed length."""
    length = None if parts[-1] is Ellipsis else len(parts)
    items = [_codec(part) for part in parts if part is not Ellipsis]

    def each(values: Any) -> Any:
        return zip(items if length else items * len(values), values, strict=True)

    def read(value: Any, name: str) -> tuple[Any, ...]:
        if type(value) is not list or length not in (None, len(value)):
            raise ValueError(f"{name} is not a list" + (f" of {length}" if length else ""))
        return tuple(item.read(inner, name) for item, inner in each(value))

    return _Codec(read, lambda value: [item.written(inner) for item, inner in each(value)])


def _mapping(key_type: Any, value_type: Any) -> _Codec:
    keys, values = _codec(key_type), _codec(value_type)
    key_field = next((name for name, (storage, _) in _storage_of(value_type).items() if storage.key), None)

    def read(value: Any, name: str) -> dict[Any, Any]:
        if type(value) is not dict:
            raise ValueError(f"{name} is not a mapping")
        if value_type is Any:
            return value
        read_key, read_value = keys.read, values.read
        if key_field is not None:
            make = _object(value_type).make
            entries = ((read_key(text, text), text, inner) for text, inner in value.items())
            return {key: make(inner, text, {key_field: key}) for key, text, inner in entries}
        if key_type is str:
            return {text: read_value(inner, text) for text, inner in value.items()}
        return {read_key(text, text): read_value(inner, text) for text, inner in value.items()}

    def write(value: Any) -> Any:
        if value_type is Any:
            return value
        if values.write is None:
            return {str(key): value[key] for key in sorted(value)}
        return {str(key): values.write(value[key]) for key in sorted(value)}

    return _Codec(read, write)


_DEFAULT = Stored()


def _storage_of(type_: Any) -> dict[str, tuple[Stored, Any]]:
    """Return each field of a dataclass or NamedTuple with its storage metadata and default."""
    if not is_dataclass(type_):
        return dict.fromkeys(getattr(type_, "_fields", ()), (_DEFAULT, ...))
    return {field.name: (field.metadata.get("stored", _DEFAULT), field.default) for field in fields(type_)}


class _Field(NamedTuple):
    attribute: str
    name: str  # in JSON
    read: Read
    write: Write | None
    optional: bool
    sparse: bool


class _Object:
    """The codec of a dataclass or NamedTuple.

    It looks up the fields at the first read or write, because a type may contain itself.
    """

    def __init__(self, type_: Any):
        self._type = type_

    @cached_property
    def _fields(self) -> list[_Field]:
        hints = get_type_hints(self._type, include_extras=True)
        own_fields = []
        for name, (storage, default) in _storage_of(self._type).items():
            if not storage.key and storage.derived is None:
                optional = storage.optional or storage.sparse or default is None
                own_fields.append(
                    _Field(name, storage.name or name, *_codec(hints[name]), optional, storage.sparse)
                )
        return own_fields

    @cached_property
    def _derived(self) -> list[tuple[str, Derive]]:
        declared = _storage_of(self._type).items()
        return [(name, storage.derived) for name, (storage, _) in declared if storage.derived is not None]

    def read(self, value: Any, name: str, /, **known: Any) -> Any:
        return self.make(value, name, known)

    def make(self, value: Any, name: str, known: dict[str, Any]) -> Any:
        """Return the object. Adds its other fields to `known`."""
        if type(value) is not dict:
            raise ValueError(f"{name} is not a mapping" if name else "it is not a mapping")
        try:
            for attribute, key, read, _, optional, _ in self._fields:
                if key in value:
                    if attribute not in known:
                        known[attribute] = read(value[key], key)
                elif not optional and attribute not in known:
                    raise ValueError(f"{key} is missing")
        except ValueError as problem:
            raise ValueError(f"{name}: {problem}" if name else str(problem)) from None
        for attribute, derive in self._derived:
            known[attribute] = derive(known)
        return self._type(**known)

    def write(self, value: Any) -> dict[str, Any]:
        document = {}
        for attribute, key, _, write, _, sparse in self._fields:
            inner = getattr(value, attribute)
            if inner or not sparse:
                document[key] = inner if write is None else write(inner)
        return document


_object = cache(_Object)


_MAX_CHECKED = 4_000_000  # bytes; in a larger file, the check for repeated keys would dominate the parse time


def parse_json(data: bytes) -> Any:
    """Parse JSON. Raises ValueError for invalid JSON, including NaN, repeated keys and invalid UTF-8."""
    if not data.strip():
        raise ValueError("it is empty")
    try:
        hook = None if len(data) > _MAX_CHECKED else _with_unique_keys
        content = json.loads(data.decode(), parse_constant=_reject_constant, object_pairs_hook=hook)
        if b"\\ud" in data or b"\\uD" in data:  # an unpaired surrogate could not be written again
            json.dumps(content, ensure_ascii=False).encode()
        return content
    except UnicodeEncodeError:
        raise ValueError("it contains an unpaired surrogate") from None
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except json.JSONDecodeError as problem:
        if problem.pos >= len(problem.doc.rstrip()) or problem.msg.startswith("Unterminated string"):
            raise ValueError("it is incomplete") from None
        raise ValueError(f"line {problem.lineno}, column {problem.colno} is not JSON") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _reject_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"it holds {next(k for k in keys if keys.count(k) > 1)!r} twice")
    return mapping
