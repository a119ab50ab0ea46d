"""examples/tpch: after each refresh, every view has the rows of its query in batch over the same tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import functions as f

from examples.tpch.tables import Row, refresh, tables, write
from mzplan.config import load_configuration
from mzplan.features.test.case_files import descriptions
from mzplan.model.address import Address
from tests.integration.spark.current_lab import CurrentLab
from tests.integration.spark_lab import Lab

EXAMPLE = Path(__file__).parents[3] / "examples" / "tpch"
QUERIES = [f"q{number}" for number in range(1, 23)]
SOME = ("q3", "q17", "q22")  # LIMIT, one row, subqueries


class Tpch(CurrentLab):
    """The tables and views of the example."""

    def __init__(self, lab: Lab):
        super().__init__(lab)
        self.declared = descriptions(load_configuration(str(EXAMPLE)).resources)
        for name, rows in tables().items():
            body = self.declared[Address("source", name)].body
            self.table(name, body["schema"], " ".join(body["key"]))
            self.append(name, rows)

    def append(self, name: str, rows: Sequence[Row]) -> None:
        write(self.lab.folder / "rows", {name: rows})
        path, source = str(self.lab.folder / "rows" / f"{name}.jsonl"), self.inputs[name]
        frame = self.lab.spark.read.schema(source.body["schema"]).json(path)
        position = f.lit(None).cast("struct<at: bigint>")
        target = str(self.lab._collection(source))
        frame.withColumn("_position", position).write.format("delta").mode("append").save(target)

    def refresh(self, number: int) -> None:
        done = refresh(number)
        for name, rows in done.inserts.items():
            self.append(name, rows)
        gone = ", ".join(str(row["o_orderkey"]) for row in done.deletes["orders"])
        self.sql(f"DELETE FROM {{orders}} WHERE o_orderkey IN ({gone})")
        self.sql(f"DELETE FROM {{lineitem}} WHERE l_orderkey IN ({gone})")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("names", "refreshes"),
    [(SOME, 1), pytest.param(QUERIES, 2, marks=pytest.mark.timeout(1500))],
    ids=["some", "all"],
)
def test_every_view_equals_the_query_in_batch(lab: Lab, names: Sequence[str], refreshes: int) -> None:
    tpch, views = Tpch(lab), []
    for name in names:
        body = tpch.declared[Address("view", name)].body
        view = tpch.view(
            *(body["query"], body["schema"], " ".join(body["key"]), " ".join(body["reads"])),
            trigger={"interval": f"{len(names) // 5 + 1}s"},  # each asks all its inputs for new rows
        )
        views.append(tpch.named(name, view))
    lab.start(*views)
    tpch.agrees(*views)
    assert [view.address.name for view in views if not tpch.rows(view)] == []
    for number in range(1, refreshes + 1):
        tpch.refresh(number)
        tpch.agrees(*views)
    lab.finish(*views)
