"""Rewrites of a project that keep a view's meaning: the plan keeps its state and its checkpoint."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mzplan.config import load_configuration
from mzplan.model.plan import Plan
from mzplan.plan import build_plan
from tests.cases.state_pairs import SCHEMAS
from tests.unit.plan.test_column_lineage import effects
from tests.unit.schema.test_state_verdicts import CONDITIONS, aggregations, written
from tests.unit.small_projects import commit

Views = Mapping[str, Mapping[str, Any]]


def planned(before: Views, after: Views, files: Mapping[str, str] | None = None) -> Plan:
    """Return the plan of an edit of the views, over two local sources."""
    with TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "mzplan.yaml").write_text("version: 1\nproject: shop\nwarehouse: ./warehouse\n")
        for name, text in (files or {}).items():
            (folder / name).write_text(text)

        def load(views: Views) -> Any:
            sources = {name: {"type": "local", "schema": schema} for name, schema in SCHEMAS.items()}
            (folder / "shop.yaml").write_text(json.dumps({"sources": sources, "views": views}))
            return load_configuration(place)

        return build_plan(load(after), commit(load(before)))


def keeps_all(plan: Plan) -> bool:
    """Return whether no query begins again, and no state is anything but kept."""
    judged = {change.query.state for change in plan.changes if change.query is not None}
    return judged <= {"kept"} and set(effects(plan).values()) <= {"restart", "in-place"}


def totals(keys: list[str], query: str) -> dict[str, Any]:
    return {"query": query, "output": "update", "key": [f"k{number}" for number in range(len(keys))]}


@given(aggregations(), st.integers())
@settings(deadline=None, max_examples=25)
def test_a_view_with_state_is_renamed_moved_to_a_file_or_split(
    query: tuple[list[str], list[str], list[str]], seed: int
) -> None:
    keys, aggregates, conditions = query
    view = totals(keys, written(*query))
    chosen = random.Random(seed).randrange(4)
    if chosen == 0:
        after: Views = {"other": {**view, "lifecycle": {"moved_from": "totals"}}}
    elif chosen == 1:
        after = {"totals": {**{k: v for k, v in view.items() if k != "query"}, "query_file": "totals.sql"}}
    elif chosen == 2:
        rows = f"SELECT * FROM orders{' WHERE ' if conditions else ''}{' AND '.join(conditions)}"
        after = {
            "few": {"query": rows, "materialize": False},
            "totals": {**view, "query": written(keys, aggregates, [], "few")},
        }
    else:
        columns = "id, n, m, amount, tax, customer, region"
        rows = f"SELECT {columns} FROM orders AS o WHERE TRUE"
        after = {
            "part": {"query": rows, "materialize": False},
            "few": {"query": "SELECT p.* FROM part AS p", "materialize": False},
            "totals": {**view, "query": written(keys, aggregates, conditions[::-1], "few")},
        }
    plan = planned({"totals": view}, after, {"totals.sql": f"-- totals\n{view['query']}\n"})
    assert keeps_all(plan), (after, plan.changes)


@given(st.sampled_from(CONDITIONS), st.booleans())
@settings(deadline=None, max_examples=20)
def test_a_view_of_rows_becomes_relational_and_back(condition: str, back: bool) -> None:
    select = "SELECT id, o.customer AS c FROM"
    rows = {"query": f"{select} orders AS o WHERE {condition}"}
    relational = {"query": f"{select} (SELECT * FROM orders) o WHERE {condition}"}
    joined = {
        "query": f"{select} orders o LEFT JOIN payments p ON o.id = p.order_id WHERE {condition}",
        "snapshots": ["payments"],
    }
    for other in (relational, joined):
        pair = ({"v": rows}, {"v": other})
        plan = planned(*(reversed(pair) if back else pair))
        assert keeps_all(plan), plan.changes


def test_inputs_are_named_in_another_order() -> None:
    """Branches of a UNION, and `snapshots`: mzplan gives Spark the order that the checkpoint has."""
    branches = {
        "orders": "SELECT id AS k, n FROM orders WHERE n > 1",
        "payments": "SELECT order_id AS k, 1 AS n FROM payments",
    }

    def views(names: list[str]) -> Views:
        union = " UNION ALL ".join(branches[name] for name in names)
        looked_up = "SELECT m.k, o.id, p.paid FROM marks m LEFT JOIN orders o ON m.k = o.id "
        return {
            "totals": totals(["k"], written(["k"], ["sum(n)", "count(*)"], [], f"({union}) u")),
            "marks": {"query": "SELECT id AS k FROM orders"},
            "looked_up": {
                "query": f"{looked_up} LEFT JOIN payments p ON m.k = p.order_id",
                "snapshots": names,
            },
        }

    plan = planned(views(["orders", "payments"]), views(["payments", "orders"]))
    assert keeps_all(plan), plan.changes
