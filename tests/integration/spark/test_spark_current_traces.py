"""Random current views over random changes: the trace finds every row that differs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from mzplan.schema.current.rows import ANY, CHANGED
from mzplan.schema.current.trace import Trace
from mzplan.schema.relations.analysis import trace_of
from mzplan.schema.relations.nodes import QueryError
from mzplan.schema.relations.parse import parse_query
from tests.current_queries import Case, case

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.integration.spark_lab import Lab

_WHOLE = "map('ignoreNullFields', 'false')"
_JSON = f"to_json(struct({{0}}), {_WHOLE})"


@pytest.fixture(scope="module")
def session(lab: Lab) -> SparkSession:
    """A session whose joins and groups aren't divided, because the tables are small."""
    session = lab.spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "1")
    session.conf.set("spark.sql.adaptive.enabled", "false")
    return session


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.nightly) for first in range(40, 500, 40))]
)
def test_every_row_that_differs_has_an_affected_key(session: SparkSession, first: int) -> None:
    """Rows with other keys are the same before and after, so computing the affected ones gives all rows."""
    seeds = range(first, first + 40)
    traced = [number for number in seeds if _check(session, case(number), number)]
    assert len(traced) > len(seeds) / 2, "most queries can be traced"


def _check(session: SparkSession, one: Case, number: int) -> bool:
    """Check one case; return whether its query was traced."""
    inputs = {table.name: table.input for table in one.tables}
    query = parse_query(one.sql, over_tables=True)
    try:
        trace = trace_of(one.sql, {name: inputs[name] for name in query.places}, {"key": [*one.key]})
    except QueryError as refused:
        raise AssertionError(f"{number}: {refused.problem}: {one.sql}") from None
    if trace.why_full:
        return False
    for table in one.tables:
        rows = {"_old_": table.old, "_new_": table.new, CHANGED: table.changed}
        for prefix, values in {**rows, ANY: table.new + table.changed}.items():
            session.createDataFrame(values, table.ddl).createOrReplaceTempView(f"{prefix}{table.name}")
    parts: dict[str, Counter[tuple[str, str]]] = {"old": Counter(), "new": Counter(), "affected": Counter()}
    for part, key, row in session.sql(_all_parts(one, trace)).collect():
        parts[part][key, row] += 1
    affected = {key for key, _ in parts["affected"]}
    old, new = (
        Counter({pair: count for pair, count in parts[part].items() if pair[0] not in affected})
        for part in ("old", "new")
    )
    assert old == new, f"{number}: {trace.keys} of {one.sql}"
    return True


def _all_parts(one: Case, trace: Trace) -> str:
    """Return one query for the rows before and after, and the affected keys."""
    query = parse_query(one.sql, over_tables=True)
    key = _JSON.format(", ".join(f"`{name}`" for name in trace.keys))
    selects = []
    for part in ("old", "new"):
        sql = query.with_names({name: f"_{part}_{name}" for name in query.places})
        selects.append(f"SELECT '{part}' AS part, {key} AS k, {_JSON.format('*')} AS r FROM ({sql})")
    sql = " UNION ALL ".join(affected.sql for affected in trace.affected)
    selects.append(f"SELECT DISTINCT 'affected', {key}, '' FROM ({sql})")
    return " UNION ALL ".join(selects)
