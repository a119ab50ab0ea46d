"""Two bodies are compared leaf by leaf."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mzplan.model.state import ResourceState
from mzplan.plan.comparison import compare_bodies, compare_resources, differing_leaves, same_body
from mzplan.schema.kinds import resource_kind
from tests.unit.small_projects import at

KAFKA = resource_kind("connection", "kafka")
SOURCE = resource_kind("source", "kafka")


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
        ({"o": {"b.c": 1, "d['e']": 1}}, {"o": {"b.c": 2}}, {'o["b.c"]': (1, 2), "o[\"d['e']\"]": (1, None)}),
        ({"o": {'a"b\\': {"x": 1}}}, {}, {'o["a\\"b\\\\"].x': (1, None)}),
    ],
)
def test_leaves(before: dict[str, Any], after: dict[str, Any], expected: dict[str, Any]) -> None:
    assert {c.path: (c.before, c.after) for c in compare_bodies(KAFKA, before, after)} == expected
    assert same_body(before, after) is (not expected)


scalars = st.sampled_from([None, True, False, 0, 1, 2, 1.0, 0.5, "", "1", "x", "x\ny", "X", "ä"])
keys = st.sampled_from(["a", "b.c", "d['e']", 'f"', "__g", "", "0", "[0]", "root", "'", "\\", "\n"])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4)
)
bodies = st.dictionaries(keys, values, max_size=5)


@settings(max_examples=60)
@given(bodies, bodies)
def test_bodies_differ_if_and_only_if_their_json_differs(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    one, other = (json.dumps(body, sort_keys=True) for body in (before, after))
    found = differing_leaves(before, after)
    assert [path for path, _, _ in found] == sorted(path for path, _, _ in found)
    assert same_body(before, after) is (not found) is (one == other)


def test_columns_are_compared_by_column() -> None:
    assert columns("id BIGINT, b INT, c DATE, n INT", "id BIGINT, b STRING, n INT NOT NULL, `d e` DATE") == {
        "format.schema.b": ("INT", "STRING", "replace"),
        "format.schema.c": ("DATE", None, "replace"),
        "format.schema.n": ("INT", "INT NOT NULL", "replace"),
        'format.schema["d e"]': (None, "DATE", "restart"),
    }
    assert columns("???", "a INT") == {"format.schema": ("???", "a INT", "replace")}  # not DDL
    for after in ("b INT, a INT", "A INT, b INT"):  # another order or case costs a restart at most
        assert columns("a INT, b INT", after) == {"format.schema": ("a INT, b INT", after, "restart")}


def record(type_: str, **body: Any) -> ResourceState:
    return ResourceState(address=at("connection.c"), id="i", type=type_, body=body)


def test_another_type_is_a_change_of_type_and_both_types_secrets_stay_secret() -> None:
    before = record("postgres", type="postgres", host="h", password="${env:A}")
    after = record("kafka", type="kafka", brokers=["a:1"])
    changes = {c.path: c for c in compare_resources(before, after)}
    change = changes["type"]
    assert (change.before, change.after, change.effect) == ("postgres", "kafka", "replace")
    assert changes["password"].sensitive and changes["password"].before is None
    assert list(changes) == sorted(changes)
