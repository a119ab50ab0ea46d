"""Makes a sink from any OutputEndpoint, through foreachBatch. The endpoints are those of plug-ins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mzplan.connectors.adapter.config import (
    as_error,
    as_task_error,
    closing,
    endpoint_config,
    endpoint_name,
    secret_values,
)
from mzplan.connectors.adapter.source import diagnostics_of
from mzplan.connectors.api.connector import SinkConnector
from mzplan.connectors.api.queries import Output, Probe, ResolvedQuery, SinkRun
from mzplan.connectors.api.targets import Recorded, nothing_recorded, warn_repeated
from mzplan.connectors.formats.records import MARK
from mzplan.connectors.frames.micro_batches import micro_batch
from mzplan.endpoints.interface import (
    OutputFactory,
    ParallelOutputFactory,
    Step,
    SupportsClose,
    SupportsProbe,
    SupportsWritten,
    Written,
)
from mzplan.endpoints.replay import collected_warnings, combine_parts
from mzplan.schema.columns import POSITION

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

KEPT_STEPS = 100
"""How many steps before the current one the output keeps recorded. Spark never repeats an older one."""
_BATCH_ROWS = 20_000


class EndpointSink(SinkConnector):
    """Pushes each micro-batch as a step, from the driver or from as many tasks as the factory's
    `parallelism`.

    Rows are in the order of `_position`, which is the same if a micro-batch runs again.
    """

    def __init__(self, factory: OutputFactory, connector: Any = None):
        self._factory = factory
        self._connector = connector

    def route(self, query: ResolvedQuery) -> str:
        name = self._factory.name()
        return f"{query.connection.address} ({name})" if query.connection else name

    def probe(self, query: ResolvedQuery, outputs: Sequence[Output]) -> Probe:
        """Return the findings of the connector's own probe."""
        try:
            if isinstance(self._connector, SupportsProbe):
                self._connector.probe("sink", endpoint_config(query, outputs))
        except Exception as problem:
            return Probe(diagnostics=diagnostics_of(problem, query))
        return Probe()

    def recorded(self, query: ResolvedQuery, outputs: Sequence[Output]) -> Recorded:
        """Return the endpoints' own record. Raises MzplanError MZ177 if the connector has no `written`."""
        config = self._config(query, outputs, epoch=0)
        name = endpoint_name(query)
        parallelism = _parallelism(self._factory)
        names = [name] if parallelism == 1 else [f"{name}/{part}" for part in range(parallelism)]
        endpoints = [self._factory.new_endpoint(part_name, config) for part_name in names]
        recording = [endpoint for endpoint in endpoints if isinstance(endpoint, SupportsWritten)]
        if len(recording) < len(endpoints):
            raise nothing_recorded(query, f"The connector {query.description.type} has no `written`.")
        return EndpointRecorded(recording)

    def write(self, rows: DataFrame, run: SinkRun) -> DataStreamWriter:
        query, factory = run.query, self._factory
        name = endpoint_name(query)
        config = self._config(query, run.outputs, run.epoch)
        secrets = secret_values(query)
        parallelism = _parallelism(factory)

        def fail(problem: BaseException) -> None:
            if isinstance(problem, Exception) and f"{MARK}[" not in str(problem):  # a task marks its errors
                problem = as_error(problem, str(query.address), secrets)
            run.fail(problem)

        def write_batch(batch: DataFrame, step: int) -> None:
            with micro_batch(fail):
                if parallelism > 1:
                    task = _task(factory, name, config, step, str(query.address), secrets)
                    # If the batch runs again, each part gets the same rows in the same order.
                    parts = batch.repartition(parallelism, POSITION).sortWithinPartitions(POSITION)
                    report = "part INT, rows BIGINT, warnings ARRAY<STRING>"
                    reports = parts.drop(POSITION).mapInArrow(task, report).collect()
                    warnings = [text for row in reports for text in row["warnings"]]
                    rows_written = sum(row["rows"] for row in reports)
                else:
                    table = batch.orderBy(POSITION).drop(POSITION).toArrow()
                    batches = table.to_batches(max_chunksize=_BATCH_ROWS)
                    warnings = push_step(factory, name, config, step, batches)
                    rows_written = table.num_rows
                warn_repeated(run, warnings)
            run.wrote(step, rows_written)

        return rows.writeStream.foreachBatch(run.writer_of(write_batch))

    def _config(self, query: ResolvedQuery, outputs: Sequence[Output], epoch: int) -> dict[str, Any]:
        compare = query.body.get("compare", "warn")
        return {**endpoint_config(query, outputs), "compare": compare, "epoch": epoch}


@dataclass
class EndpointRecorded(Recorded):
    """The steps that a connector's endpoints have recorded (`written`). Parallel endpoints are added up."""

    endpoints: Sequence[SupportsWritten]
    keys: Sequence[str] = ()
    partitions: Sequence[str] = ()

    def step(self, step: Step) -> Written | None:
        parts = [part for endpoint in self.endpoints if (part := endpoint.written(step)) is not None]
        return combine_parts(parts) if len(parts) == len(self.endpoints) else None

    def close(self) -> None:
        for endpoint in self.endpoints:
            if isinstance(endpoint, SupportsClose):
                endpoint.close()


def _parallelism(factory: OutputFactory) -> int:
    return factory.parallelism if isinstance(factory, ParallelOutputFactory) else 1


def push_step(
    factory: OutputFactory,
    name: str,
    config: Mapping[str, Any],
    step: Step,
    batches: Iterable[RecordBatch],
) -> list[str]:
    """Write one step through a new endpoint, on this thread. Returns the warnings that it logs."""
    endpoint = factory.new_endpoint(name, config)
    with closing(endpoint), collected_warnings() as warnings:
        endpoint.expire_step(max(0, step - KEPT_STEPS))
        endpoint.start_step(step)
        for batch in batches:
            endpoint.push_buffer(batch)
        endpoint.finish_step()
    return warnings


def _task(
    factory: OutputFactory,
    name: str,
    config: Mapping[str, Any],
    step: Step,
    subject: str,
    secrets: Sequence[str],
) -> Callable[[Iterable[RecordBatch]], Iterator[RecordBatch]]:
    """Return the function that one task runs: it writes the part with the task's number."""

    def write_part(batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        part = context.partitionId() if context is not None else 0
        rows = 0

        def counting() -> Iterator[RecordBatch]:
            nonlocal rows
            for batch in batches:
                rows += batch.num_rows
                yield batch

        try:
            warnings = push_step(factory, f"{name}/{part}", config, step, counting())
        except Exception as problem:
            raise as_task_error(problem, subject, secrets) from None
        report = {
            "part": pa.array([part], pa.int32()),
            "rows": pa.array([rows], pa.int64()),
            "warnings": pa.array([warnings], pa.list_(pa.string())),
        }
        yield pa.RecordBatch.from_pydict(report)

    return write_part
