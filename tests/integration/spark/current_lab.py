"""Current views over tables that a test changes itself, each compared with a batch query."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import Any

from mzplan.model.address import Address
from mzplan.schema.description import Description
from mzplan.schema.source_columns import columns_of
from mzplan.spark.collections import Collections, table_at
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.current_steps import CurrentStep, CurrentSteps
from tests.integration.spark_lab import Lab
from tests.support import eventually


class CurrentLab:
    """Tables by name, as sources with a key have them, and views over them."""

    def __init__(self, lab: Lab):
        self.lab = lab
        self.inputs: dict[str, Description] = {}

    def table(self, name: str, schema: str, key: str = "", *rows: str) -> None:
        """Create a table. `rows`: values in SQL, such as `1, 'ada'`."""
        source = self.lab.local_source(schema, name)
        body = {**source.body, "key": key.split()} if key else source.body
        self.inputs[name] = source = replace(source, body=body, digest=f"1:{uuid.uuid4().hex}")
        columns = columns_of(source.type, source.body)
        path = str(self.lab._collection(source))
        Collections().ensure(
            self.lab.spark, path, columns, "STRUCT<step: BIGINT, row: BIGINT>", keyed=bool(key)
        )
        if rows:
            self.insert(name, *rows)

    def sql(self, statement: str) -> None:
        """Run a statement, with the names of tables in braces."""
        tables = {name: table_at(str(self.lab._collection(one))) for name, one in self.inputs.items()}
        self.lab.spark.sql(statement.format(**tables))

    def insert(self, name: str, *rows: str) -> None:
        self.sql(f"INSERT INTO {{{name}}} VALUES {', '.join(f'({row}, NULL)' for row in rows)}")

    def view(self, sql: str, schema: str, key: str, reads: str, **body: Any) -> Description:
        inputs = [self.inputs[name] for name in reads.split()]
        return self.lab.view(sql, schema, inputs, output="current", key=key.split(), **body)

    def named(self, name: str, view: Description) -> Description:
        """The view under a name by which other views read it."""
        self.inputs[name] = replace(view, address=Address("view", name), digest=f"1:{uuid.uuid4().hex}")
        return self.inputs[name]

    def rows(self, view: Description) -> list[str]:
        """The view's rows as JSON, sorted."""
        names = {column.name for column in columns_of(view.type, view.body)}
        rows = ({k: v for k, v in row.items() if k in names} for row in self.lab.read(view))
        return sorted(json.dumps(row, default=str, sort_keys=True) for row in rows)

    def batch(self, view: Description) -> list[str]:
        """The rows that the view's query has over the newest versions, computed by Spark in batch."""
        session = self.lab.spark.newSession()
        for name, read in view.reads.items():
            path = str(self.lab.folder / "warehouse" / "collections" / read.id / f"g{read.generation}")
            session.read.format("delta").load(path).drop("_position").createOrReplaceTempView(name)
        rows = session.sql(view.body["query"]).toArrow().to_pylist()
        return sorted(json.dumps(row, default=str, sort_keys=True) for row in rows)

    def agrees(self, *views: Description) -> None:
        """Wait until each view has the rows of its query in batch."""
        for view in views:
            wanted = self.batch(view)

            def holds(view: Description = view, wanted: list[str] = wanted) -> bool:
                report = self.lab.report(view)
                assert report.error is None, report.error
                return self.rows(view) == wanted

            try:
                eventually(f"{view.address} agrees", holds, 90)
            except AssertionError:
                raise AssertionError(f"{self.rows(view)} instead of {wanted}") from None

    def log(self, view: Description) -> CollectionLog:
        return CollectionLog(str(self.lab._collection(view)))

    def steps(self, view: Description) -> list[CurrentStep]:
        """The steps that the view has recorded, in order."""
        steps, log = CurrentSteps(str(self.lab.checkpoint(view))), self.checkpoint(view).log
        return [step for step in map(steps.at, range(log.newest() + 1)) if step is not None]

    def checkpoint(self, view: Description) -> Checkpoint:
        return Checkpoint(str(self.lab.checkpoint(view)))
