"""The codec reads and writes JSON by types, and its errors name the place of the mistake."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mzplan.model.address import Address
from mzplan.model.codec import decode, encode, parse_json
from mzplan.model.stored import KEY, NOT_STORED, OPTIONAL, SPARSE, Id, Positive, stored

A, B = Address("source", "a"), Address("sink", "b")


class Size(IntEnum):
    SMALL = 1
    BIG = 7


class Pair(NamedTuple):
    first: Address
    number: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    at: Address = field(metadata=KEY)
    size: Size
    below: Mapping[str, Inner] = field(default_factory=dict, metadata=SPARSE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """A dataclass that contains itself."""

    id: Id
    inner: tuple[Inner, ...] = field(default=(), metadata=stored("in", sparse=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    text: str
    number: float
    flag: bool
    word: Literal["yes", "no"]
    leaves: Mapping[Address, Leaf]
    pair: Pair
    edges: tuple[tuple[Address, Address], ...]
    anything: Any = None
    body: Mapping[str, Any] = field(default_factory=dict, metadata=OPTIONAL)
    count: int = field(default=3, metadata=OPTIONAL)
    nothing: str | None = None
    names: tuple[str, ...] = field(default=(), metadata=stored(derived=lambda found: (found["text"],)))
    hidden: int | None = field(default=None, metadata=NOT_STORED)


JSON: dict[str, Any] = {
    "text": "x",
    "number": 1,
    "flag": True,
    "word": "yes",
    "leaves": {
        "sink.b": {"size": 1},
        "source.a": {"size": 7, "below": {"k": {"id": "i", "in": [{"id": "j"}]}}},
    },
    "pair": {"first": "source.a", "number": 2},
    "edges": [["source.a", "sink.b"]],
    "anything": [None, {"z": 1}],
}


def test_values_are_read_as_they_were_written() -> None:
    whole = decode(Whole, {**JSON, "more": "of a newer mzplan"})
    big = Leaf(at=A, size=Size.BIG, below={"k": Inner(id="i", inner=(Inner(id="j"),))})
    assert whole.leaves == {A: big, B: Leaf(at=B, size=Size.SMALL)}
    assert (whole.pair, whole.edges, whole.names) == (Pair(A, 2), ((A, B),), ("x",))
    assert encode(whole) == {**JSON, "body": {}, "count": 3, "nothing": None}
    assert decode(Whole, encode(whole)) == whole
    assert list(encode(whole)["leaves"]) == ["sink.b", "source.a"]


def test_given_fields_are_not_read_and_others_are_required() -> None:
    assert decode(Whole, {**JSON, "text": 5}, "", text="y").text == "y"
    assert decode(Leaf, {"size": 1}, "here", at=A) == Leaf(at=A, size=Size.SMALL)
    for name in ("text", "leaves", "edges"):
        with pytest.raises(ValueError, match=f"^{name} is missing$"):
            decode(Whole, {key: value for key, value in JSON.items() if key != name})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"text": 1}, "text is not text"),
        ({"count": -1}, "count is out of range"),
        ({"number": 1e300}, "number is out of range"),
        ({"flag": 0}, "flag is neither true nor false"),
        ({"leaves": {"x": {}}}, "'x' is not an address"),
        ({"leaves": {"source.a": {"size": 2}}}, "source.a: size has an unknown value"),
        ({"leaves": {"sink.b": {"size": 1, "below": {"k": {"id": "../x"}}}}}, "sink.b: k: id is not an id"),
        ({"pair": {"first": "source.a", "number": 0}}, "pair: number is out of range"),
        ({"edges": [["source.a"]]}, "edges is not a list of 2"),
    ],
)
def test_an_error_names_the_place_of_the_mistake(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        decode(Whole, {**JSON, **changed})
    assert str(caught.value).startswith(words)


_ODD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "source.a", "yes", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["source.a", "k", "id"]), inner)
    ),
    max_leaves=5,
)


@settings(max_examples=50)
@given(name=st.sampled_from(sorted(JSON)), odd=_ODD)
def test_invalid_values_raise_only_a_value_error(name: str, odd: Any) -> None:
    try:
        found = decode(Whole, {**JSON, name: odd})
    except ValueError:
        return
    assert decode(Whole, encode(found)) == found or "nan" in repr(odd)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b" \n", "it is empty"),
        (b'{"a": ', "it is incomplete"),
        (b'{"a": 1, "a": 2}', "it holds 'a' twice"),
        (b'{"a": }', "line 1, column 7 is not JSON"),
        (b'{"a": NaN}', "NaN is not a number"),
        (b'"\\ud800"', "it contains an unpaired surrogate"),
        (b"\xff", "it is not UTF-8"),
        (b"[" * 100_000, "it is nested too deeply"),
    ],
)
def test_an_error_says_why_a_text_is_not_json(data: bytes, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_json(data)
    assert str(caught.value) == words
