"""Computes a view's rows again, from all rows that it had read up to a step.

The query of a relational view runs with an empty state and a new checkpoint. A first micro-batch reads all
rows. A second one reads none, and closes the windows up to the watermark of that step. A batch query doesn't
work here: it can't tell which windows are closed, or which rows of an outer join are final.

A batch query computes a current view, over the versions that a step has recorded, and a row view over a keyed
collection, over the version up to which it has read.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.catalogue import Connectors
from mzplan.model.diagnostics import MzplanError, error
from mzplan.schema.description import CollectionRead
from mzplan.schema.relations.parse import recomputes
from mzplan.spark.collections import read_table
from mzplan.spark.expectations import recomputed_rows_that_stay
from mzplan.spark.sql.query_trees import analysed_plan
from mzplan.spark.streams import collection_stream
from mzplan.spark.verification.source import Exactness, exactness_of
from mzplan.spark.views import batch_session, compute_of, own_session, rows_of_view
from mzplan.warehouse.checkpoints import Checkpoint, collection_path
from mzplan.warehouse.collection_log import is_at_boundary, version_read
from mzplan.warehouse.current_steps import CurrentStep
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.folder import decoding, exists, open_folder, write_text
from mzplan.warehouse.rows.snapshot import name_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WATERMARK = "batchWatermarkMs"  # in the offset log's settings of a micro-batch


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputedRows:
    """Computes the rows of one view. Each method also returns how exact they are."""

    session: SparkSession
    query: ResolvedQuery
    warehouse: str
    connectors: Connectors
    checkpoint: Checkpoint

    def of_current(self, step: CurrentStep) -> tuple[DataFrame, Exactness]:
        """Return the rows of a current view over the inputs' versions of a step."""
        session = batch_session(self.session)
        tables = {
            name: read_table(session, self._path(read), step.versions[name_of(read.place)])
            for name, read in self.query.description.reads.items()
        }
        rows = rows_of_view(session, {}, tables, self.query, self._position, None)
        return recomputed_rows_that_stay(rows, self.query), exactness_of(analysed_plan(rows))

    def of_row_view(self, step: int) -> tuple[DataFrame, Exactness]:
        """Return the rows of a row view over a keyed collection, as of the version that it has read.

        Raises GoneError if the view has read only a part of a version.
        """
        ((name, read),) = self.query.description.reads.items()
        offset, _ = self.checkpoint.log.offset(step)
        version = version_read(offset)
        if version is None or not is_at_boundary(offset):
            raise GoneError(f"Step {step} has read only a part of a version of {read.address}.")
        session = batch_session(self.session)
        tables = {name: read_table(session, self._path(read), version)}
        rows = rows_of_view(session, {}, tables, self.query, self._position, None)
        return recomputed_rows_that_stay(rows, self.query), exactness_of(analysed_plan(rows))

    def of_streams(self, step: int, folder: str) -> tuple[DataFrame, Exactness]:
        """Return the rows of a relational view over all rows that it had read after a step.

        `folder`: an empty folder for the rows and a checkpoint, which the executors can reach. Raises
        GoneError if the step's offsets are no longer known, and MzplanError MZ092 if the query may return
        other rows each time.
        """
        query, session = self.query, own_session(self.session)  # for temporary views
        streams = {
            name: collection_stream(session, query, read, self._path(read), begins=False)
            for name, read in query.description.reads.items()
        }
        compute = compute_of(self.connectors, query)
        rows = rows_of_view(session, streams, {}, query, self._position, compute)
        exactness = exactness_of(analysed_plan(rows))
        if exactness.problem:
            raise not_repeatable(query, exactness.problem)
        schema, output = rows.schema, query.body.get("output", "append")
        written, checkpoint = f"{folder}/rows", f"{folder}/checkpoint"
        watermark = self._plan_all_rows(step, checkpoint)
        run = partial(_run_once, rows, checkpoint, written, output)
        run()
        if watermark and output == "append":
            _plan_closing(checkpoint, watermark)
            run()
        reader = session.read.schema(schema)
        computed = reader.parquet(written) if exists(written) else reader.parquet()
        return recomputed_rows_that_stay(computed, query), exactness

    @property
    def _position(self) -> str:
        return self.connectors.position(self.query.description)

    def _path(self, read: CollectionRead) -> str:
        return collection_path(self.warehouse, *read.place)

    def _plan_all_rows(self, step: int, checkpoint: str) -> int:
        """Plan a first micro-batch that reads all rows that the view had read after a step.

        Returns the watermark of that step, in milliseconds since the epoch; 0 if it has none.
        """
        log = self.checkpoint.log
        lines = log.lines(step)
        if len(lines) < 3:
            raise GoneError(
                f"How far step {step} had read is no longer known: "
                "Spark keeps the offsets of a hundred steps."
            )
        with decoding(f"{log.spark}/offsets/{step}"):
            settings = json.loads(lines[1])
            watermark = int(settings.get(_WATERMARK, 0))
        write_text(f"{checkpoint}/metadata", json.dumps({"id": str(uuid.uuid4())}))
        _plan(checkpoint, 0, [lines[0], json.dumps({**settings, _WATERMARK: 0}), *lines[2:]])
        return watermark


def not_repeatable(query: ResolvedQuery, why: str) -> MzplanError:
    """Return MZ092 for a view that can't be recomputed."""
    return error(
        "MZ092.query-not-computed" if recomputes(query.body) else "MZ092.not-recomputable",
        address=query.address,
        why=why,
    )


def _plan_closing(checkpoint: str, watermark: int) -> None:
    """Plan a second micro-batch, without rows, at this watermark."""
    data = open_folder(f"{checkpoint}/offsets").read("0") or b""
    version, settings, *offsets = data.decode().splitlines()
    _plan(checkpoint, 1, [version, json.dumps({**json.loads(settings), _WATERMARK: watermark}), *offsets])


def _plan(checkpoint: str, step: int, lines: Sequence[str]) -> None:
    write_text(f"{checkpoint}/offsets/{step}", "\n".join(lines))


def _run_once(rows: DataFrame, checkpoint: str, written: str, output: str) -> None:
    """Run the planned micro-batch and append its rows to `written`."""

    def write(batch: DataFrame, _: int) -> None:
        batch.write.mode("append").parquet(written)

    writer = rows.writeStream.outputMode(output).option("checkpointLocation", checkpoint)
    writer.foreachBatch(write).trigger(once=True).start().awaitTermination()
