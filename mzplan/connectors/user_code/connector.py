"""Views that a Python function of the user computes, and sinks that one writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.connector import Connector, SinkConnector
from mzplan.connectors.api.queries import Output, Probe, ResolvedQuery, SinkRun
from mzplan.connectors.api.targets import Recorded, nothing_recorded
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.merges import latest_rows
from mzplan.connectors.frames.micro_batches import micro_batch
from mzplan.connectors.user_code.failures import failed
from mzplan.connectors.user_code.loading import load_function
from mzplan.connectors.views import Compute, View, lineage_ends
from mzplan.schema.columns import CHANGE, POSITION, UPSERT
from mzplan.schema.user_functions import function_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class FunctionView(View):
    """A view whose function takes a DataFrame for each input, as keyword arguments."""

    def compute_of(self, query: ResolvedQuery) -> Compute:
        function = load_function(query)

        def compute(inputs: Mapping[str, DataFrame], _: Mapping[str, Any]) -> DataFrame:
            rows: DataFrame = function.call(**inputs)
            return rows

        return compute


class FunctionSink(SinkConnector):
    """A sink whose function gets the rows and the number of each step that has rows, at least once."""

    def probe(self, query: ResolvedQuery, outputs: Sequence[Output]) -> Probe:
        """Return an empty probe: only the function knows the target."""
        return Probe()

    def route(self, query: ResolvedQuery) -> str:
        return f"the function {function_of(query.address.kind, query.description.type, query.body)}"

    def recorded(self, query: ResolvedQuery, outputs: Sequence[Output]) -> Recorded:
        """Raise MzplanError MZ177: only the function knows the target."""
        raise nothing_recorded(query, "mzplan doesn't know what its function has written.")

    def write(self, rows: DataFrame, run: SinkRun) -> DataStreamWriter:
        query = run.query
        function, keys = load_function(query), query.body.get("key", ())

        def write_batch(batch: DataFrame, step: int) -> None:
            given = latest_rows(batch, keys) if keys else batch.drop(POSITION)
            if keys and CHANGE not in given.columns:
                given = given.withColumn(CHANGE, f.lit(UPSERT))
            given = given.persist()  # the function may read the rows several times
            try:
                with micro_batch(lambda problem: run.fail(failed(query.address, function.name, problem))):
                    if number := given.count():
                        function.call(given, step)
                    run.wrote(step, number)
            finally:
                given.unpersist()

        return rows.writeStream.foreachBatch(run.writer_of(write_batch))


CONNECTOR = Connector(type="function", source=FunctionView, sink=FunctionSink, lineage_ends=lineage_ends)
