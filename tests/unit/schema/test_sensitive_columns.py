"""Which columns a preview hides: the labelled ones, and the columns that queries compute from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mzplan.model.address import Address
from mzplan.model.state import State
from mzplan.schema.sensitive_columns import sensitive_columns
from tests.unit.plan.test_query_change import load
from tests.unit.small_projects import commit

PROJECT = """
connections:
  k: {type: kafka, brokers: ["b:9092"]}
sources:
  orders:
    connection: k
    topic: o
    format: {type: json, schema: "id BIGINT, Email STRING, amount INT"}
    labels: {sensitive: LABEL}
views:
  totals:
    query: SELECT email AS who, sum(amount) AS total FROM orders GROUP BY email
    output: update
    key: [who]
  counted: {query: "SELECT id, amount FROM orders WHERE email IS NOT NULL", labels: {sensitive: amount}}
  coded: {function: "transforms.py:same", reads: [orders], schema: "id BIGINT, x STRING"}
  renamed: {query: "SELECT id, email AS who FROM orders"}
sinks:
  out: {from: renamed, type: console, select: [id, "upper(who) AS name"]}
  few: {from: counted, type: console}
"""


def committed(folder: Path, label: str) -> State:
    (folder / "transforms.py").write_text("def same(orders):\n    return orders\n")
    return commit(load(folder, PROJECT.replace("LABEL", label)))


@pytest.mark.parametrize(
    ("address", "hidden"),
    [
        ("source.orders", {"email"}),
        ("view.totals", {"who"}),
        ("view.counted", {"amount"}),
        ("view.coded", {"id", "x"}),
        ("sink.out", {"name"}),
        ("sink.few", {"amount"}),
    ],
)
def test_columns_computed_from_a_labelled_one_are_hidden(
    tmp_path: Path, address: str, hidden: set[str]
) -> None:
    state = committed(tmp_path, "EMAIL")
    assert sensitive_columns(Address.parse(address), state.resources) == hidden


@pytest.mark.parametrize(
    ("label", "hidden"),
    [
        ('"email, amount"', {"email", "amount"}),
        ("true", {"id", "email", "amount"}),
        ("emial", {"id", "email", "amount"}),
        ("false", set()),
    ],
)
def test_a_label_that_is_no_list_of_columns_hides_all(tmp_path: Path, label: str, hidden: set[str]) -> None:
    state = committed(tmp_path, label)
    assert sensitive_columns(Address.parse("source.orders"), state.resources) == hidden


def test_the_label_of_another_version_counts(tmp_path: Path) -> None:
    state = committed(tmp_path, "email")
    orders = state.resources[Address.parse("source.orders")]
    body = {name: value for name, value in orders.body.items() if name != "labels"}
    without = {**state.resources, orders.address: replace(orders, body=body)}
    assert sensitive_columns(Address.parse("sink.out"), without) == set()
    assert sensitive_columns(Address.parse("sink.out"), without, [orders]) == {"name"}
