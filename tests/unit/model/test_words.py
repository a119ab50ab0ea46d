"""Texts for people: the part of a long text that has changed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mzplan.model.words import changed_parts

LONG = (
    "SELECT customer_id, count(*) AS lines, {} AS total FROM orders WHERE id IS NOT NULL GROUP BY customer_id"
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (LONG.format("sum(amount * 4)"), LONG.format("sum(amount * 14)")),
        (LONG.format("'a'"), LONG.format("'b'")),
        (LONG.format("1"), f"{LONG.format('1')} HAVING count(*) > 1"),
        (f"{LONG.format('x')}, status", LONG.format("y")),
    ],
    ids=["number", "letter", "added", "two-places"],
)
def test_a_long_text_shows_the_part_that_has_changed(before: str, after: str) -> None:
    shown = changed_parts(before, after, 60)
    assert shown[0] != shown[1] and max(map(len, shown)) <= 60


texts = st.text("ab ", max_size=40)


@given(texts, texts, texts, texts, st.integers(8, 60))
def test_both_halves_differ_and_fit(head: str, old: str, new: str, tail: str, length: int) -> None:
    before, after = f"{head}{old}{tail}", f"{head}{new}{tail}"
    shown = changed_parts(before, after, length)
    assert (shown[0] == shown[1]) == (before == after)
    assert all(len(text) <= length for text in shown)
