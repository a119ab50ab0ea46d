"""A PostgreSQL source without Spark: its endpoint, and a keyed collection of its rows."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from mzplan.connectors.adapter.config import endpoint_config, endpoint_name
from mzplan.connectors.api.queries import ResolvedQuery, resolve
from mzplan.connectors.postgres.source.connector import PostgresSource
from mzplan.connectors.postgres.source.endpoint import PostgresInputFactory
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.schema.description import Description, InlinedConnection
from mzplan.secrets.references import Secrets
from tests.support import Stopwatch, rows_of

Row = dict[str, Any]


def connection_of(dsn: str, **more: Any) -> dict[str, Any]:
    """Return the body of a connection to a database."""
    parts = urlsplit(dsn)
    body = {
        "type": "postgres",
        "host": parts.hostname,
        "port": parts.port,
        "database": parts.path.strip("/"),
        "user": parts.username,
        "password": parts.password,
    }
    return {**body, **more}


class Reading:
    """A running source, and the latest row of each key, merged as the collection's writer does: a change is
    applied if its position is higher than the stored row's."""

    def __init__(self, query: ResolvedQuery, *key: str):
        self.key = key
        self.rows: dict[tuple[Any, ...], Row] = {}
        self.positions: dict[tuple[Any, ...], tuple[int, int]] = {}
        self._open(query)

    def _open(self, query: ResolvedQuery) -> None:
        self.query, name = query, endpoint_name(query)
        self.input = PostgresInputFactory(query).new_endpoint(name, endpoint_config(query))

    @property
    def names(self) -> dict[int, str]:
        return {key[0]: row["name"] for key, row in self.rows.items()}

    def take(self, step: int) -> int:
        """Merge a step, and return its number of changes. A step may be merged twice."""
        changes: dict[tuple[Any, ...], Row] = {}
        count = 0
        for part in self.input.parts(step):
            for batch in self.input.batches(part):
                for row in batch.to_pylist():
                    count += 1
                    key = tuple(row[name] for name in self.key)
                    last = changes.get(key)
                    if last is None or _place(row) >= _place(last):
                        changes[key] = row
        for key, row in changes.items():
            if key in self.positions and _place(row) <= self.positions[key]:
                continue
            if row.pop("_change") == "delete":
                self.rows.pop(key, None)
                self.positions.pop(key, None)
            else:
                self.positions[key] = _place(row)
                self.rows[key] = {name: value for name, value in row.items() if name != "_position"}
        return count

    def finish(self, step: int) -> int:
        """Merge a step, and commit it downstream."""
        count = self.take(step)
        self.input.expire(step + 1)
        return count

    def offers(self, seconds: float = 10.0) -> bool:
        """Return whether a new step is offered soon. Asks at least twice, because under load the log's end
        may lag."""
        waited, step = Stopwatch(), self.input.steps().stop
        while not (found := self.input.offers(step)) and waited.seconds < seconds:
            time.sleep(0.05)
        return found or self.input.offers(step)

    def commit(self) -> int:
        """Wait for the next step, and make it durable without reading it."""
        assert self.offers()
        step = self.input.steps().stop
        self.input.commit(step)
        return step

    def follow(self) -> list[int]:
        """Read all steps, and commit each downstream at once. Returns their numbers of changes.

        Begins with the durable steps, as after a crash.
        """
        counts = [self.finish(step) for step in self.input.steps()]
        while self.offers(seconds=0.0):
            counts.append(self.finish(self.commit()))
        return counts

    def restart(self, query: ResolvedQuery | None = None) -> None:
        """Open the source again, possibly with another description."""
        self.input.close()
        self._open(query or self.query)

    def resume(self) -> list[int]:
        """Open the source again, and read all steps. Returns their numbers of changes."""
        self.restart()
        return self.follow()

    def refuses(self, match: str, *, restarts: int = 1) -> str:
        """Return the detail of the error with which the source stops, also after each restart."""
        for _ in range(restarts):
            with pytest.raises(MzplanError, match=match):
                self.follow()
            self.restart()
        with pytest.raises(MzplanError, match=match) as stopped:
            self.follow()
        return stopped.value.diagnostics[0].detail

    def position_problem(self) -> Diagnostic:
        """Return the problem that a check of the checkpoint's position finds."""
        found = PostgresSource().check_position(self.query, json.dumps({"step": self.input.steps().stop}))
        assert found is not None
        return found


class Tables:
    """A database with tables, and sources that read them."""

    def __init__(self, dsn: str, folder: Path):
        self.dsn, self.folder = dsn, folder
        self.opened: list[Reading] = []

    def run(self, *statements: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def rows(self, query: str) -> list[Any]:
        return rows_of(self.dsn, query)

    def query(self, id_: str = "ab12", **body: Any) -> ResolvedQuery:
        """Return a source of table public.t with key id. `body` overrides properties."""
        table = {"tables": ["public.t"], "schema": "id BIGINT, name STRING", "key": ["id"]}
        pg = Address("connection", "pg")
        link = InlinedConnection(address=pg, type="postgres", body=connection_of(self.dsn))
        description = Description(
            address=Address("source", "orders"),
            id=id_,
            generation=1,
            digest="d",
            type="postgres",
            body={"connection": "pg", **table, **body},
            connections={"connection": link},
        )
        folder = str(self.folder)
        return resolve(description, Secrets(folder, {}), folder, folder)

    def read(self, id_: str = "ab12", **body: Any) -> Reading:
        """Open a source, by default of table public.t with key id. It hasn't read anything yet."""
        self.opened.append(Reading(self.query(id_, **body), *body.get("key", ["id"])))
        return self.opened[-1]

    def read_after(self, *statements: str, **body: Any) -> Reading:
        """Run the statements, and return a source that has read the result."""
        self.run(*statements)
        orders = self.read(**body)
        orders.follow()
        return orders

    def read_one_row(self) -> Reading:
        """Create table public.t with the row (1, 'a'), and return a source that has read it."""
        table = "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(40))"
        return self.read_after(table, "INSERT INTO t VALUES (1, 'a')")

    def close(self) -> None:
        for reading in self.opened:
            reading.input.close()


def _place(row: Row) -> tuple[int, int]:
    return row["_position"]["lsn"], row["_position"]["sequence"]
