"""Two bodies are compared leaf by leaf."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mzplan.model.state import ResourceState
from mzplan.plan.comparison import (
    ABSENT,
    compare_bodies,
    compare_resources,
    differing_leaves,
    format_path,
    same_body,
)
from mzplan.schema.kinds import resource_kind
from tests.unit.small_projects import at

KAFKA = resource_kind("connection", "kafka")
SOURCE = resource_kind("source", "kafka")


def diff(before: dict[str, Any], after: dict[str, Any], kind: Any = KAFKA) -> dict[str, tuple[Any, Any]]:
    return {c.path: (c.before, c.after) for c in compare_bodies(kind, before, after)}


def columns(before: str, after: str) -> dict[str, tuple[Any, Any, str]]:
    bodies = ({"format": {"schema": ddl}} for ddl in (before, after))
    return {c.path: (c.before, c.after, c.effect) for c in compare_bodies(SOURCE, *bodies)}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {}),
        ({"a": True}, {"a": 1}, {"a": (True, 1)}),
        ({"a": {"b": {"c": 1}}}, {"a": {"b": {"c": 2}}}, {"a.b.c": (1, 2)}),
        ({}, {"a": {"b": 1, "c": [2]}}, {"a.b": (None, 1), "a.c[0]": (None, 2)}),
        ({"l": ["x", "y"]}, {"l": ["y"]}, {"l[0]": ("x", "y"), "l[1]": ("y", None)}),
        ({}, {"a": {}}, {"a": (None, {})}),
        ({"a": "text"}, {"a": {"b": 1}}, {"a": ("text", {"b": 1})}),
    ],
)
def test_leaves(before: dict[str, Any], after: dict[str, Any], expected: dict[str, Any]) -> None:
    assert diff(before, after) == expected
    assert same_body(before, after) is (not expected)


scalars = st.sampled_from([None, True, False, 0, 1, 2, 1.0, 0.5, "", "1", "x", "x\ny", "X", "ä"])
keys = st.sampled_from(["a", "b.c", "d['e']", 'f"', "__g", "", "0", "[0]", "root", "'", "\\", "\n"])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4)
)
bodies = st.dictionaries(keys, values, max_size=5)


@settings(max_examples=300, deadline=None)
@given(bodies, bodies)
def test_the_differing_leaves_are_those_of_a_plain_walk(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    found = differing_leaves(before, after)
    assert [path for path, _, _ in found] == sorted(path for path, _, _ in found)
    assert repr(found) == repr(list(walk(before, after, ())))
    assert same_body(before, after) is (not found)


def walk(old: Any, new: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, Any, Any]]:
    """The oracle: a plain walk through objects and lists. A missing one counts as an empty one."""
    branches = [one for one in (old, new) if one is not ABSENT and isinstance(one, dict | list)]
    alike = len({type(one) for one in (old, new) if one is not ABSENT}) == 1
    if alike and any(branches):
        if isinstance(branches[0], dict):
            left, right = ({} if one is ABSENT else one for one in (old, new))
            for key in sorted({*left, *right}):
                yield from walk(left.get(key, ABSENT), right.get(key, ABSENT), (*path, key))
        else:
            lists = ([] if one is ABSENT else one for one in (old, new))
            for index, (one, other) in enumerate(zip_longest(*lists, fillvalue=ABSENT)):
                yield from walk(one, other, (*path, index))
    elif type(old) is not type(new) or old != new:
        yield path, old, new


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("brokers", 0), "brokers[0]"),
        (("security", "sasl", "username"), "security.sasl.username"),
        (("options", "fetch.min.bytes"), 'options["fetch.min.bytes"]'),
        (("labels", 'a"b\\'), 'labels["a\\"b\\\\"]'),
        (("a", 1, "b", 2, 3), "a[1].b[2][3]"),
        (("odd key", "x"), '["odd key"].x'),
    ],
)
def test_paths(path: tuple[str | int, ...], text: str) -> None:
    assert format_path(path) == text


def test_a_sensitive_value_is_in_no_change() -> None:
    before = {"security": {"sasl": {"password": "${env:OLD}", "username": "u"}}}
    after = {"security": {"sasl": {"password": "${env:NEW}", "username": "u"}}}
    for changes in (compare_bodies(KAFKA, before, after), compare_bodies(KAFKA, {}, after)):
        change = next(c for c in changes if c.path == "security.sasl.password")
        assert (change.before, change.after, change.sensitive) == (None, None, True)


def test_a_free_key_that_looks_like_a_secret_is_sensitive() -> None:
    before = {"options": {"ssl.keystore.password": "old", "fetch.min.bytes": 1}}
    after = {"options": {"ssl.keystore.password": "new", "fetch.min.bytes": 2}}
    changes = {c.path: c for c in compare_bodies(KAFKA, before, after)}
    assert changes['options["ssl.keystore.password"]'].sensitive
    assert changes['options["ssl.keystore.password"]'].before is None
    assert changes['options["fetch.min.bytes"]'].after == 2


def test_columns_are_compared_by_column() -> None:
    assert columns("id BIGINT, b INT, c DATE, n INT", "id BIGINT, b STRING, n INT NOT NULL, `d e` DATE") == {
        "format.schema.b": ("INT", "STRING", "replace"),
        "format.schema.c": ("DATE", None, "replace"),
        "format.schema.n": ("INT", "INT NOT NULL", "replace"),
        'format.schema["d e"]': (None, "DATE", "restart"),
    }
    assert columns("???", "a INT") == {"format.schema": ("???", "a INT", "replace")}  # not DDL


@pytest.mark.parametrize("after", ["b INT, a INT", "A INT, b INT"])
def test_another_order_or_case_of_columns_costs_a_restart_at_most(after: str) -> None:
    assert columns("a INT, b INT", after) == {"format.schema": ("a INT, b INT", after, "restart")}


def record(type_: str, **body: Any) -> ResourceState:
    return ResourceState(address=at("connection.c"), id="i", type=type_, body=body)


def test_another_type_is_a_change_of_type_and_both_types_secrets_stay_secret() -> None:
    before = record("postgres", type="postgres", host="h", password="${env:A}")
    after = record("kafka", type="kafka", brokers=["a:1"])
    changes = {c.path: c for c in compare_resources(before, after)}
    assert (changes["type"].before, changes["type"].after, changes["type"].effect) == (
        "postgres",
        "kafka",
        "replace",
    )
    assert changes["password"].sensitive and changes["password"].before is None
    assert list(changes) == sorted(changes)
