"""The console sink: prints rows to the runner's standard output, for trying things out. Its delivery is at
least once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mzplan.connectors.api.connector import Connector, SinkConnector
from mzplan.connectors.api.queries import Output, Probe, ResolvedQuery, SinkRun
from mzplan.connectors.api.targets import Recorded, nothing_recorded
from mzplan.schema.columns import POSITION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class ConsoleSink(SinkConnector):
    """Prints `sink.debug step 3: {"id":1,…}`, one line per row, at most `rows` per micro-batch."""

    def probe(self, query: ResolvedQuery, outputs: Sequence[Output]) -> Probe:
        """Return an empty probe, because there is nothing to check."""
        return Probe()

    def route(self, query: ResolvedQuery) -> str:
        return "standard output"

    def recorded(self, query: ResolvedQuery, outputs: Sequence[Output]) -> Recorded:
        """Raise MzplanError MZ177: the console keeps no record."""
        raise nothing_recorded(query, "The console keeps no rows.")

    def write(self, rows: DataFrame, run: SinkRun) -> DataStreamWriter:
        limit: int = run.query.body["rows"]
        prefix = str(run.query.address)

        def print_batch(batch: DataFrame, step: int) -> None:
            texts = batch.drop(POSITION).limit(limit + 1).toJSON().collect()
            lines = [f"{prefix} step {step}: {row}" for row in texts[:limit]]
            if len(texts) > limit:
                lines.append(f"{prefix} step {step}: … and more (rows: {limit})")
            if lines:
                print("\n".join(lines), flush=True)
            run.wrote(step, len(texts[:limit]))

        return rows.writeStream.foreachBatch(print_batch)


CONNECTOR = Connector(type="console", sink=ConsoleSink)
