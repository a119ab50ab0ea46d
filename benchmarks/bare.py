"""The alternative without mzplan: a plain PySpark loop in this process that hosts the same streams.

The loop builds its streams from mzplan's own definitions, in a session with the same settings. The comparison
therefore covers only the time from a change to running queries.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.figures import say
from benchmarks.stage import wait_until
from mzplan.connectors.api.queries import ResolvedQuery, SinkRun, resolve
from mzplan.connectors.catalogue import Connectors
from mzplan.model.address import Address
from mzplan.operations.project import open_project
from mzplan.schema.description import Description, describe
from mzplan.secrets.references import Secrets
from mzplan.spark.collections import Collections
from mzplan.spark.expectations import StepExpectations
from mzplan.spark.sql.projection import outputs_of
from mzplan.spark.streams import rows_read, source_writer, trigger_interval
from mzplan.warehouse.checkpoints import Checkpoint, collection_path
from mzplan.warehouse.step_history import StepHistory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

THREADS = 8
IDLE = ("Waiting for data to arrive", "Waiting for next trigger")


class BareLoop:
    """Hosts the queries of a project's state again, with its own warehouse and targets."""

    def __init__(self, spark: SparkSession, project: Path, folder: Path, environment: Mapping[str, str]):
        self.spark = spark
        self.project = project
        self.warehouse = str(folder)
        self.secrets = Secrets(str(project), environment)
        self.connectors = Connectors()
        self.collections = Collections()
        self.descriptions: dict[Address, Description] = {}
        self.running: dict[Address, StreamingQuery] = {}

    def open(self) -> None:
        """Start all queries, and wait until each is past its first trigger."""
        resources = open_project(str(self.project)).store.read_state().resources
        self.descriptions = {
            address: _renamed(describe(resource, resources))
            for address, resource in sorted(resources.items(), reverse=True)
            if address.is_query
        }
        for description in self.descriptions.values():
            query = self._resolved(description)
            position = self.connectors.source("kafka").position
            self.collections.ensure(self.spark, self._collection(description), query.columns, position)
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(self._start, self.descriptions.values()))

    def restart(self, connection: str, key: str, places: tuple[Any, Any], expected: int) -> float:
        """Move a connection to its other place, and restart the queries that use it.

        Returns the seconds until all of them are past a first trigger.
        """
        users = [address for address, d in self.descriptions.items() if _connection(d) == connection]
        assert len(users) == expected, users
        began = time.monotonic()
        for address in users:
            self.descriptions[address] = _moved(self.descriptions[address], key, places)
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(self._restart, users))
        return time.monotonic() - began

    def close(self) -> None:
        """Stop all queries, but not the session."""
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(lambda query: query.stop(), self.running.values()))
        self.running.clear()

    def _restart(self, address: Address) -> None:
        self.running[address].stop()
        self._start(self.descriptions[address])

    def _start(self, description: Description) -> None:
        query = self._resolved(description)
        checkpoint = Checkpoint.of(self.warehouse, description.id, description.generation)
        collection = self._collection(description)
        if description.address.kind == "source":
            connector = self.connectors.source(description.type)
            writer = source_writer(
                connector.stream(self.spark, query),
                connector,
                query,
                collection,
                fail=lambda problem: say(f"{description.address}: {problem}"),
                rewriting=self.collections.rewriting(collection),
                count_letters=lambda records: None,
                guard=None,
                expectations=StepExpectations(query, checkpoint, collection, lambda counted: None),
            )
        else:
            is_new = not checkpoint.log.has_begun()
            rows = rows_read(self.spark, query, collection, begins=is_new)
            run = SinkRun(
                query=query,
                outputs=outputs_of(rows),
                epoch=1,
                checkpoint=checkpoint,
                is_new=is_new,
                fail=lambda problem: say(f"{description.address}: {problem}"),
                warn=lambda warning: say(f"{description.address}: {warning}"),
                interrupt=lambda action: None,
                covers=self._history(description).covers,
                wrote=lambda step, rows: None,
                rewriting=self.collections.rewriting,
            )
            writer = self.connectors.sink(description.type).write(rows, run)
        self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", str(description.address))
        started = (
            writer.queryName(str(description.address))
            .option("checkpointLocation", checkpoint.spark)
            .trigger(processingTime=trigger_interval(query))
            .start()
        )
        self.running[description.address] = started
        wait_until(f"{description.address} is past a first trigger", lambda: _has_triggered(started))

    def _resolved(self, description: Description) -> ResolvedQuery:
        return resolve(description, self.secrets, str(self.project), self.warehouse)

    def _history(self, description: Description) -> StepHistory:
        read = description.input
        return StepHistory(self.warehouse, description.place, read.place if read else None)

    def _collection(self, description: Description) -> str:
        return collection_path(self.warehouse, *description.rows_of.place)


def _has_triggered(query: StreamingQuery) -> bool:
    message = query.status["message"]
    if message not in IDLE and not query.isActive:
        raise RuntimeError(str(query.exception()))
    return message in IDLE


def _renamed(description: Description) -> Description:
    """Return the query with its own storage, target and writer's row."""
    body = dict(description.body)
    if description.type == "postgres":
        body["table"] = body["table"].replace("public.", "public.bare_")
    elif description.type == "delta":
        body["path"] = f"bare_{body['path']}"
    reads = {name: replace(read, id=f"bare-{read.id}") for name, read in description.reads.items()}
    return replace(description, id=f"bare-{description.id}", body=body, reads=reads)


def _connection(description: Description) -> str:
    return description.connections["connection"].address.name


def _moved(description: Description, key: str, places: tuple[Any, Any]) -> Description:
    connection = description.connections["connection"]
    body = dict(connection.body)
    body[key] = places[1 - places.index(body[key])]
    return replace(description, connections={"connection": replace(connection, body=body)})
