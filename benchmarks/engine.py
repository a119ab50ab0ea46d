"""Runs single mzplan queries and plain Spark queries in the session of this process."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mzplan.controller.executor import ExecutorContext, QueryName
from mzplan.model.address import Address
from mzplan.schema.description import CollectionRead, Description, InlinedConnection
from mzplan.secrets.references import Secrets
from mzplan.spark.executor import SparkExecutor
from mzplan.warehouse.checkpoints import collection_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

PROJECT = "bench"
# Short, because benchmarks don't measure the wait for the next trigger.
TRIGGER = {"interval": "100ms"}
TRIGGER_SPARK = "100 milliseconds"


class Engine:
    """A SparkExecutor in an existing session, with its warehouse in `folder`."""

    def __init__(self, folder: Path, spark: SparkSession):
        self.folder = folder
        self.spark = spark
        self.warehouse = str(folder / "warehouse")
        self._secrets = Secrets(str(folder), {})
        self._executor = SparkExecutor(
            ExecutorContext(project=PROJECT, directory=str(folder), warehouse=self.warehouse)
        )

    def __enter__(self) -> Engine:
        self._executor.open()
        return self

    def __exit__(self, *problem: object) -> None:
        self._executor.close()

    def ours(self, description: Description) -> float:
        """Run an mzplan query until it has processed all input. Return the seconds, with its start."""
        name = QueryName.of(PROJECT, description)
        began = time.monotonic()
        self._executor.start(description, self._secrets, epoch=1)
        # `streams.active` doesn't list a relational view, which runs in its own session.
        self._executor._running[name].java.processAllAvailable()
        seconds = time.monotonic() - began
        self._executor.stop(name)
        return seconds

    def theirs(self, make: Callable[[], DataStreamWriter]) -> float:
        """Run a plain Spark query in the same way, with a new checkpoint. Return the seconds."""
        began = time.monotonic()
        checkpoint = str(self.folder / "checkpoints" / uuid.uuid4().hex)
        writer = make().option("checkpointLocation", checkpoint).trigger(processingTime=TRIGGER_SPARK)
        query = writer.start()
        query.processAllAvailable()
        seconds = time.monotonic() - began
        query.stop()
        return seconds

    def collection(self, source: Description) -> str:
        """Return the path of a source's collection."""
        return self.path_of(*source.place)

    def path_of(self, id_: str, generation: int) -> str:
        """Return the path of the collection with this id and generation."""
        return collection_path(self.warehouse, id_, generation)


def describe_source(type_: str, connection: Mapping[str, Any], **body: Any) -> Description:
    """Return a source's description, as the runner passes it to the executor."""
    return Description(
        address=Address("source", "s"),
        id=f"s{uuid.uuid4().hex[:8]}",
        generation=1,
        digest="1:a",
        type=type_,
        body={"connection": "c", "trigger": TRIGGER, **body},
        connections={"connection": _connection(connection)},
    )


def describe_sink(source: Description, type_: str, connection: Mapping[str, Any], **body: Any) -> Description:
    """Return the description of a sink that reads the source."""
    sink = describe_source(type_, connection, **{"from": "s"}, **body)
    upstream = CollectionRead(
        address=source.address,
        id=source.id,
        generation=source.generation,
        type=source.type,
        body=source.body,
    )
    return replace(sink, address=Address("sink", "k"), reads={source.address.name: upstream})


def _connection(body: Mapping[str, Any]) -> InlinedConnection:
    return InlinedConnection(address=Address("connection", "c"), type=body["type"], body=dict(body))
