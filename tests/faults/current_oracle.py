"""`python -m tests.faults.current_oracle FOLDER < QUERIES`: compare each step of a project's current views
with Spark in batch over the versions that the step records, and run `mzplan verify` of each view.

QUERIES: the queries that each view has had, in order, by its name.

It is a program of its own, because its Spark session lacks the jars that later tests need.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mzplan.schema.columns import POSITION
from mzplan.schema.description import Description, describe
from mzplan.schema.source_columns import columns_of
from mzplan.spark.process.session import open_session
from mzplan.warehouse.checkpoints import Checkpoint, collection_path
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.current_steps import CurrentSteps
from mzplan.warehouse.rows.snapshot import name_of
from tests.faults.current_campaign import state_of
from tests.unit import cli_runs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Oracle:
    """Computes the rows of views without the runner's code, except for its records of steps."""

    def __init__(self, session: SparkSession, warehouse: Path):
        self._session, self._warehouse = session, str(warehouse)
        self._tables: dict[tuple[str, int], DataFrame] = {}

    def compare(self, view: Description, queries: Sequence[str]) -> dict[str, Any]:
        """Return how many steps were computed in each way, the steps that differ, and the number of rows."""
        checkpoint = Checkpoint.of(self._warehouse, *view.place)
        steps, path = CurrentSteps(checkpoint.folder), collection_path(self._warehouse, *view.place)
        versions = _versions_by_step(CollectionLog(path))
        refreshes: Counter[str] = Counter()
        wrong, version = list[dict[str, Any]](), versions.get(None, 0)
        query_of: dict[str, str] = {}
        found = Counter[str]()
        for number in range(checkpoint.log.newest() + 1):
            version, step = versions.get(number, version), steps.at(number)
            assert step is not None, (view.address, number)
            for name, read in view.reads.items():
                table = collection_path(self._warehouse, *read.place)
                self._table(table, step.versions[name_of(read.place)]).createOrReplaceTempView(name)
            query = query_of.setdefault(step.computed, queries[min(len(query_of), len(queries) - 1)])
            wanted, found = self._rows(view, query, self._table(path, version))
            refreshes[str(step.refresh)] += 1
            if wanted != found:
                differs = {"missing": [*(wanted - found)][:5], "more": [*(found - wanted)][:5]}
                wrong.append({"number": number, "refresh": step.refresh, "why": step.why, **differs})
        return {"steps": dict(refreshes), "wrong": wrong, "rows": found.total()}

    def _rows(
        self, view: Description, query: str, collection: DataFrame
    ) -> tuple[Counter[str], Counter[str]]:
        """Return the rows of a query of the view, and those of its collection, as JSON."""
        columns = ", ".join(f"`{column.name}`" for column in columns_of(view.type, view.body))
        rows = f"to_json(struct({columns}), map('ignoreNullFields', 'false')) AS r"
        collection.createOrReplaceTempView("_collection")
        both = self._session.sql(
            f"SELECT true AS is_wanted, {rows} FROM ({query}) UNION ALL SELECT false, {rows} FROM _collection"
        ).collect()
        wanted = Counter(row["r"] for row in both if row["is_wanted"])
        return wanted, Counter(row["r"] for row in both if not row["is_wanted"])

    def _table(self, path: str, version: int) -> DataFrame:
        """Return the rows of a version of a table, read once."""
        if (path, version) not in self._tables:
            reader = self._session.read.format("delta").option("versionAsOf", version)
            self._tables[path, version] = reader.load(path).drop(POSITION).coalesce(1).cache()
        return self._tables[path, version]


def _versions_by_step(log: CollectionLog) -> dict[int | None, int]:
    """Return the version that each step has written; None for the version before the first step."""
    return {
        commit.step: commit.version
        for commit in map(log.commit, log.versions())
        if commit is not None and (commit.step is not None or commit.version == 0)
    }


def main() -> None:
    folder = Path(sys.argv[1])
    state = state_of(folder)
    views = [describe(one, state.resources) for one in state.resources.values() if one.address.kind == "view"]
    oracle = Oracle(open_session("oracle", {}), folder / "warehouse")
    queries = json.load(sys.stdin)
    found = {str(view.address): oracle.compare(view, queries[view.address.name]) for view in views}
    for address, compared in found.items():
        verified = cli_runs.run("-C", str(folder), "verify", address, "--json").json()
        # A view that has never written a row has no step to verify.
        is_equal = verified.get("recomputed", {"equal": not compared["rows"]})["equal"]
        compared["verified"] = is_equal and not verified["diagnostics"]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
