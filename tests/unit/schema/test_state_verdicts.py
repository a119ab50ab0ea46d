"""What becomes of a view's state when its query changes, by the plan alone."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases.state_pairs import Pair, judged, read_pairs

PAIRS = read_pairs()
BASE = [pair for pair in PAIRS if pair.state in ("kept", "mixed", "lost")]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_the_plan_judges_each_pair(pair: Pair) -> None:
    changed = judged(pair.before, pair.after)
    assert changed is not None
    assert (changed.state, changed.because) == (pair.state, pair.because)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_a_change_back_has_the_same_kind_of_verdict(pair: Pair) -> None:
    """Nothing is kept in one direction only."""
    back = judged(pair.after, pair.before)
    assert back is not None and (back.state == "kept") == (pair.state == "kept")


def test_there_are_pairs_for_each_verdict() -> None:
    states = Counter(pair.state for pair in PAIRS)
    assert len(PAIRS) >= 80 and min(states[state] for state in ("kept", "mixed", "lost")) >= 20


# ── properties

CONDITIONS = ["n > 1", "amount > 0", "region LIKE 'n%'", "m IS NOT NULL", "coalesce(n, 0) < 5", "id <> 3"]
MIRRORED = {"n > 1": "1 < n", "amount > 0": "0 < amount", "id <> 3": "NOT 3 = id"}
AGGREGATES = ["sum(amount)", "count(*)", "max(n)", "min(m)", "avg(tax)", "sum(if(n > 1, m, 0))", "sum(n - m)"]
KEYS = ["customer", "region", "upper(customer)", "n % 2"]


@st.composite
def aggregations(draw: st.DrawFn) -> tuple[list[str], list[str], list[str]]:
    """Draw the keys, the aggregates and the conditions of a query."""
    keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=2, unique=True))
    aggregates = draw(st.lists(st.sampled_from(AGGREGATES), min_size=1, max_size=3, unique=True))
    return keys, aggregates, draw(st.lists(st.sampled_from(CONDITIONS), max_size=3, unique=True))


def written(keys: list[str], aggregates: list[str], conditions: list[str], source: str = "orders") -> str:
    items = [f"{key} AS k{i}" for i, key in enumerate(keys)] + [
        f"{a} AS a{i}" for i, a in enumerate(aggregates)
    ]
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT {', '.join(items)} FROM {source}{where} GROUP BY {', '.join(keys)}"


@given(aggregations(), st.integers())
@settings(deadline=None, max_examples=60)
def test_a_rewrite_that_keeps_the_meaning_is_kept(
    query: tuple[list[str], list[str], list[str]], seed: int
) -> None:
    keys, aggregates, conditions = query
    choose = random.Random(seed)
    other = [f"({MIRRORED.get(one, one)})" if choose.random() < 0.7 else one for one in conditions]
    choose.shuffle(other)
    other += ["TRUE"] if choose.random() < 0.5 else []
    columns = "id, n, m, amount, tax, customer, region"
    source = choose.choice(
        ["orders", "orders AS o", f"(SELECT {columns} FROM orders) x", "(SELECT * FROM orders) y"]
    )
    after = written(keys, aggregates, other, source)
    if choose.random() < 0.5:
        after = f"WITH w AS ({after}) SELECT * FROM w"
    changed = judged(written(keys, aggregates, conditions), after)
    assert changed is None or changed.state == "kept", changed


MUTATIONS = {
    "n > 1": "n > 2",
    "amount > 0": "amount >= 0",
    "LIKE 'n%'": "LIKE 's%'",
    "m IS NOT NULL": "m IS NULL",
    "coalesce(n, 0)": "coalesce(n, 1)",
    "id <> 3": "id <> 4",
    "sum(amount)": "sum(tax)",
    "count(*)": "count(n)",
    "max(n)": "max(m)",
    "min(m)": "max(m)",
    "avg(tax)": "avg(amount)",
    "sum(n - m)": "sum(m - n)",
    "upper(customer)": "lower(customer)",
    "n % 2": "n % 3",
    "customer AS k0": "region AS k0",
}


@given(aggregations(), st.integers())
@settings(deadline=None, max_examples=100)
def test_a_mutation_below_the_state_is_never_kept(
    query: tuple[list[str], list[str], list[str]], seed: int
) -> None:
    before = written(*query)
    possible = sorted(old for old in MUTATIONS if old in before)
    if not possible:
        return
    old = random.Random(seed).choice(possible)
    after = before.replace(old, MUTATIONS[old])
    if old == "customer AS k0":
        after = after.replace("GROUP BY customer", "GROUP BY region")
    changed = judged(before, after)
    assert changed is not None and changed.state != "kept", after


@given(st.sampled_from(BASE), st.integers(0, 10_000))
@settings(deadline=None, max_examples=60)
def test_a_condition_below_any_query_is_never_kept(pair: Pair, number: int) -> None:
    """The view reads other rows, whatever its query computes of them."""
    few = f"few AS (SELECT * FROM orders WHERE id > {number})"
    after = re.sub(r"\bFROM orders\b", "FROM few", pair.before, count=1)
    is_named = after.startswith("WITH ")
    after = f"WITH {few}, {after.removeprefix('WITH ')}" if is_named else f"WITH {few} {after}"
    changed = judged(pair.before, after)
    assert changed is not None and changed.state != "kept", after


BRANCHES = [
    "SELECT id AS k, n FROM orders WHERE n > 1",
    "SELECT order_id AS k, 1 AS n FROM payments",
]


@given(aggregations(), st.permutations(BRANCHES))
@settings(deadline=None, max_examples=30)
def test_branches_of_a_union_in_another_order_are_kept(
    query: tuple[list[str], list[str], list[str]], order: list[str]
) -> None:
    conditions = [one for one in query[2] if one == "n > 1"]

    def united(branches: list[str]) -> str:
        return written(["k"], ["sum(n)", "count(*)"], conditions, f"({' UNION ALL '.join(branches)}) u")

    changed = judged(united(BRANCHES), united(order))
    assert changed is None or changed.state == "kept", changed


def test_the_order_counts_if_a_stream_is_read_twice_or_a_branch_keeps_state() -> None:
    """Its readings may be at different positions, and Spark numbers operators."""
    twice = ["SELECT id AS k FROM orders WHERE n > 1", "SELECT n AS k FROM orders"]
    grouped = ["SELECT id AS k FROM orders GROUP BY id", "SELECT order_id AS k FROM payments"]
    for branches in (twice, grouped):
        queries = [
            f"SELECT k, count(*) AS c FROM ({' UNION ALL '.join(one)}) u GROUP BY k"
            for one in (branches, branches[::-1])
        ]
        changed = judged(*queries)
        assert changed is not None and changed.state != "kept", branches
