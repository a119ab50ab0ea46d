"""All benchmarks by name, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks import (
    avro,
    current,
    generations,
    ingest,
    kafka_sink,
    long_run,
    many_queries,
    many_views,
    pages,
    plan_scale,
    postgres,
    postgres_source,
    recovery,
    restart,
    views,
)
from benchmarks.figures import Table
from benchmarks.stage import Stage

BENCHMARKS: Mapping[str, Callable[[Stage], Table]] = {
    "plan_scale": plan_scale.measure,
    "pages": pages.measure,
    "restart": restart.measure,
    "ingest": ingest.measure,
    "avro": avro.measure,
    "postgres": postgres.measure,
    "postgres_source": postgres_source.measure,
    "kafka_sink": kafka_sink.measure,
    "many_queries": many_queries.measure,
    "many_views": many_views.measure,
    "recovery": recovery.measure,
    "views": views.measure,
    "current": current.measure,
    "generations": generations.measure,
    "long_run": long_run.measure,
}
