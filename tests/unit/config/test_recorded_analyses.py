"""SQL that hasn't changed since the last commit isn't parsed, and the plan is the same as if it were."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mzplan.config import read_files
from mzplan.model.resources import Configuration
from mzplan.model.state import State
from mzplan.plan import build_plan
from mzplan.plan.file import encode_plan
from mzplan.render.plan_json import plan_to_json
from mzplan.store.formats import encode_state
from tests.unit.config_files import DRY, write
from tests.unit.small_projects import at, commit, commit_plan

MARKS = {"orders": {"column": "ts", "delay": "10 minutes"}}
ORDERS = (
    "id BIGINT, customer STRING, amount INT, ts TIMESTAMP",
    "id BIGINT, customer STRING, amount BIGINT, ts TIMESTAMP, note STRING",
    "id BIGINT, customer STRING, ts TIMESTAMP",
)
CUSTOMERS = (
    {"schema": "customer STRING, city STRING"},
    {"schema": "customer STRING, city STRING", "key": ["customer"]},
    {"schema": "customer STRING, city INT", "key": ["city"]},
)
PAID = (
    {"query": "SELECT id, customer, amount FROM orders WHERE amount > 0"},
    {"query": "SELECT id, customer, amount FROM orders WHERE amount > 0", "materialize": False},
    {"query": "SELECT id, upper(customer) AS customer, amount FROM orders"},
    {"query": "SELECT * FROM customers"},
)
JOINED = "SELECT o.id, o.customer, c.city FROM {from_} o LEFT JOIN customers c USING (customer)"
SUMS = "SELECT customer, sum(amount) AS amount FROM orders GROUP BY customer"
HOUR = "window(ts, '1 hour')"
WINDOWS = f"SELECT customer, {HOUR}.start AS hour, count(*) AS n FROM orders GROUP BY customer, {HOUR}"
VIEWS: tuple[Mapping[str, Any], ...] = (
    {"query": "SELECT * FROM paid"},
    {"query": "SELECT id, amount + 1 AS more FROM paid"},
    {"query": JOINED.format(from_="paid"), "snapshots": ["customers"]},
    {"query": JOINED.format(from_="orders")},
    {"query": SUMS, "output": "update", "key": ["customer"]},
    {"query": SUMS, "output": "update", "key": ["amount"]},
    {"query": WINDOWS, "watermarks": MARKS},
    {"query": WINDOWS},
)
OFTEN = {"trigger": {"interval": "5s"}}
DEFAULTS: tuple[Mapping[str, Any], ...] = ({}, OFTEN, {"watermarks": MARKS}, {"materialize": False})


@dataclasses.dataclass(frozen=True)
class Project:
    """What a project's files say, as numbers of the choices above."""

    orders: int = 0
    customers: int = 0
    paid: int = 0
    view: int = 0
    defaults: int = 0

    def write(self, folder: Path) -> Path:
        customers = {"type": "local", **CUSTOMERS[self.customers]}
        body = {
            "sources": {"orders": {"type": "local", "schema": ORDERS[self.orders]}, "customers": customers},
            "views": {"paid": PAID[self.paid], "v": VIEWS[self.view]},
            "sinks": {"out": {"type": "console", "from": "v"}},
        }
        main = f"{DRY}defaults: {json.dumps({'views': DEFAULTS[self.defaults]})}\n"
        return write(folder, {"mzplan.yaml": main, "a.yaml": json.dumps(body)})


CHOICES: dict[str, tuple[Any, ...]] = {"orders": ORDERS, "customers": CUSTOMERS, "paid": PAID, "view": VIEWS}
NUMBERS = {name: st.sampled_from(range(len(choices))) for name, choices in CHOICES.items()}
projects = st.builds(Project, defaults=st.sampled_from((0, 0, 0, *range(len(DEFAULTS)))), **NUMBERS)
edits = st.tuples(st.sampled_from([*CHOICES, "defaults"]), st.integers(0, 10), st.booleans())


def read(folder: Path, state: State) -> Configuration:
    configuration = read_files(folder, records=state.resources).configuration
    assert configuration is not None
    return configuration


@settings(max_examples=15)
@given(first=projects, later=st.lists(edits, max_size=6), targets=st.sampled_from(["", "source.orders"]))
def test_a_plan_is_the_same_with_and_without_recorded_analyses(
    first: Project, later: list[tuple[str, int, bool]], targets: str
) -> None:
    """Also if a commit takes in only some of the files, so that the state is of no one version of them."""
    state, project = State(project="shop"), first
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for property_, number, commits in [("orders", first.orders, True), *later]:
            most = len(CHOICES.get(property_, DEFAULTS))
            project = dataclasses.replace(project, **{property_: number % most})
            project.write(folder)
            parsed, reused = read_files(folder), read_files(folder, records=state.resources)
            assert reused == parsed
            if parsed.configuration is None or reused.configuration is None:
                continue
            only = (at(targets),) if targets and state.resources and number % 2 else ()
            plans = [build_plan(c, state, targets=only) for c in (parsed.configuration, reused.configuration)]
            assert encode_plan(plans[0]) == encode_plan(plans[1])
            assert plan_to_json(plans[0]) == plan_to_json(plans[1])
            committed = [commit_plan(plan, state) for plan in plans]
            assert encode_state(committed[0]) == encode_state(committed[1])
            if commits and not any(d.severity == "error" for d in plans[1].diagnostics):
                state = committed[1]


@pytest.mark.parametrize(
    ("property_", "value"),
    [("schema", "id BIGINT, more STRING"), ("from", "orders"), ("query", "SELECT id FROM paid")],
)
def test_a_record_that_no_analysis_gave_is_not_reused(tmp_path: Path, property_: str, value: str) -> None:
    """As after `state rollback` or an edit by `alter`: the digest is that of another record."""
    state = commit(read(Project(view=1).write(tmp_path), State(project="shop")))
    record = state.resources[at("view.v")]
    other = dataclasses.replace(record, body={**record.body, property_: value})
    edited = dataclasses.replace(state, resources={**state.resources, record.address: other})
    assert read(tmp_path, edited).resources == read(tmp_path, State(project="shop")).resources


# Modules of mzplan that only a plan with changes, an option of `plan`, or a runner needs.
OTHER_WORK = (
    "mzplan.host.git",
    "mzplan.operations.validation",
    "mzplan.plan.change_planner",
    "mzplan.plan.effects.query_change",
    "mzplan.render.explain",
    "mzplan.render.graphs.graph",
    "mzplan.render.markdown",
    "mzplan.render.plan_page",
    "mzplan.store.proposals",
)
# Modules that only a project with SQL views needs: an analysis is recorded with sqlglot's version.
OF_VIEWS = (
    "importlib.metadata",
    "mzplan.config.checks.views",
    "mzplan.connectors",
    "mzplan.schema.current",
    "mzplan.schema.lineage",
    "mzplan.warehouse.checkpoints",
    "shutil",
)
LIBRARIES = (
    *("sqlglot", "jsonschema", "rich", "networkx", "deepdiff", "pyspark", "psycopg", "obstore", "boto3"),
    *("pandas", "lark"),
)


@pytest.mark.parametrize("has_views", [True, False], ids=["views", "no views"])
def test_a_plan_without_changes_imports_only_what_it_needs(tmp_path: Path, has_views: bool) -> None:
    """Start-up is what CI users feel. Every plan looks for the users of secrets."""
    postgres = "{type: postgres, host: db, database: shop, user: app, password: '${env:PG}'}"
    (tmp_path / "secret.yaml").write_text(f"connections: {{pg: {postgres}}}\n")
    Project(view=2, paid=2).write(tmp_path)
    if not has_views:
        orders = {"type": "local", "schema": ORDERS[0]}
        resources = {"sources": {"orders": orders}, "sinks": {"out": {"type": "console", "from": "orders"}}}
        (tmp_path / "a.yaml").write_text(json.dumps(resources))
    excluded = {*LIBRARIES, *OTHER_WORK, *(() if has_views else OF_VIEWS)}
    state = commit(read(tmp_path, State(project="shop")))
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "mzplan.state.json").write_bytes(encode_state(state))
    script = (
        "import sys; from mzplan.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        f"assert not sys.modules.keys() & {excluded}, sys.modules.keys() & {excluded}"
    )
    command = [sys.executable, "-c", script, "-C", str(tmp_path), "plan", "--no-live"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "No changes" in done.stdout
