"""Single queries of mzplan's in the session of this process, by its executor, and others beside them."""

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
# As short as may be: the wait for the next trigger is not what is measured.
TRIGGER = {"interval": "100ms"}
TRIGGER_SPARK = "100 milliseconds"


class Engine:
    """A SparkExecutor in the session that there is; its warehouse is in `folder`."""

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
        """Run a query of mzplan's until it has taken all there is; seconds from before its start."""
        name = QueryName.of(PROJECT, description)
        began = time.monotonic()
        self._executor.start(description, self._secrets, epoch=1)
        # Not by `streams.active`: a relational view runs in a session of its own.
        self._executor._running[name].java.processAllAvailable()
        seconds = time.monotonic() - began
        self._executor.stop(name)
        return seconds

    def theirs(self, make: Callable[[], DataStreamWriter]) -> float:
        """The same for a query of Spark's own, with a new checkpoint."""
        began = time.monotonic()
        checkpoint = str(self.folder / "checkpoints" / uuid.uuid4().hex)
        writer = make().option("checkpointLocation", checkpoint).trigger(processingTime=TRIGGER_SPARK)
        query = writer.start()
        query.processAllAvailable()
        seconds = time.monotonic() - began
        query.stop()
        return seconds

    def collection(self, source: Description) -> str:
        """Where a source's collection is."""
        return self.path_of(*source.place)

    def path_of(self, id_: str, generation: int) -> str:
        """Return where the collection of this id and generation is."""
        return collection_path(self.warehouse, id_, generation)


def describe_source(type_: str, connection: Mapping[str, Any], **body: Any) -> Description:
    """A source, as the runner would hand it to the executor."""
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
    """A sink of that source."""
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
