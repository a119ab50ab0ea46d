"""The output contract for the postgres sink's endpoints, straight and staged, on a real server."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import dict_row
from pyarrow import RecordBatch

from mzplan.connectors.api.queries import Output
from mzplan.connectors.postgres.client import connect
from mzplan.connectors.postgres.sink.connector import _drop_tables
from mzplan.connectors.postgres.sink.output import FencedError, Ledger, PostgresOutput, Target, shape_of
from mzplan.connectors.postgres.sink.staged_output import StagedOutput
from mzplan.connectors.postgres.sink.staging import Move, staging_shape
from mzplan.connectors.postgres.sink.writer import Writer
from mzplan.connectors.postgres.tables import Connection, find_table
from mzplan.endpoints import OutputEndpoint
from mzplan.endpoints.testing import OutputSubject, batch_of, output_contract, rows, write_step
from mzplan.warehouse.rows.content_hash import HASH, row_hashes

if TYPE_CHECKING:
    from examples.servers import PostgresServer

_numbers = itertools.count()


class Sinks:
    """Endpoints for one table, each for a run of its own."""

    dsn: ClassVar[str] = ""
    opened: ClassVar[list[Any]] = []

    def __init__(self, staged: bool):
        self.staged = staged
        self.table = f"t{next(_numbers)}"
        with psycopg.connect(self.dsn) as connection:
            # `n` is the order of the rows. JSON has to be staged.
            kind = "jsonb" if staged else "text"
            connection.execute(
                f"CREATE TABLE public.{self.table} (id bigint, name {kind}, n bigserial)".encode()
            )
        ledger = Ledger(schema="mzplan", sink=self.table, generation=1, epoch=1, query_id="q")
        self.writer = Writer(address="sink.contract", ledger=ledger)
        self.connection = connect(self.dsn)
        self.opened.append(self.connection)
        found = find_table(self.connection, f"public.{self.table}")
        assert found is not None
        outputs = [Output(name="id", type="BIGINT"), Output(name="name", type="STRING")]
        targets = found.columns[:2]
        self.move = Move(stage=self.writer.stage_sql, table=found, targets=targets, keys=(), position=())
        shape = staging_shape(outputs, targets, ()) if staged else None
        self.writer.register(self.connection, shape)

    def name(self) -> str:
        return "postgres"

    def new_endpoint(self, name: str, config: Mapping[str, Any]) -> OutputEndpoint:
        made: Straight | Staged
        if self.staged:
            target = Target(conninfo=self.dsn, table=("mzplan", self.writer.stage), columns=("c0", "c1"))
            made = Staged(self.connection, self.writer, self.move, target, compare=config["compare"])
        else:
            target = Target(conninfo=self.dsn, table=("public", self.table), columns=("id", "name"))
            made = Straight(target, self.writer.ledger, compare=config["compare"], sources=(3, 4))
        self.opened.append(made)
        return made

    def contents(self) -> list[dict[str, Any]]:
        with psycopg.connect(self.dsn, row_factory=dict_row) as connection:
            return connection.execute(f"SELECT id, name FROM {self.table} ORDER BY n".encode()).fetchall()


class Straight(PostgresOutput):
    def push_buffer(self, batch: RecordBatch) -> None:
        super().push_buffer(_with_hash(batch))


class Staged(StagedOutput):
    """The staged names are JSON texts, so they must be cast."""

    def push_buffer(self, batch: RecordBatch) -> None:
        names = [None if name is None else f'"{name}"' for name in batch.column(1).to_pylist()]
        quoted = pa.RecordBatch.from_pydict({"c0": batch.column(0), "c1": pa.array(names, pa.string())})
        super().push_buffer(_with_hash(quoted))


def _with_hash(batch: RecordBatch) -> RecordBatch:
    return batch.append_column(HASH, pa.array(row_hashes(batch).view("i8")))


@pytest.fixture(scope="module", autouse=True)
def server(postgres: PostgresServer) -> Iterator[None]:
    postgres.start()
    Sinks.dsn = postgres.create_database("output_contract")
    yield
    postgres.drop_database("output_contract")


@pytest.fixture(autouse=True)
def closing() -> Iterator[None]:
    yield
    for made in Sinks.opened:
        made.close()
    Sinks.opened.clear()


def changed(writer: Writer, **fields: Any) -> Writer:
    """Return the writer of another run, generation or sink."""
    return replace(writer, ledger=replace(writer.ledger, **fields))


def subject(*, staged: bool) -> OutputSubject:
    made = Sinks(staged)
    return OutputSubject(factory=made, config={}, contents=made.contents)


TestStraightOutput = output_contract(lambda folder: subject(staged=False))
TestStagedOutput = output_contract(lambda folder: subject(staged=True))


def test_a_table_altered_during_a_step_gets_none_of_its_rows() -> None:
    sinks = Sinks(staged=False)
    found = sinks.move.table
    shape = sinks.connection.execute(shape_of(found.oid).encode()).fetchone()
    assert shape is not None
    target = Target(
        conninfo=sinks.dsn,
        table=("public", sinks.table),
        columns=("id", "name"),
        shape=(shape_of(found.oid), shape[0]),
    )
    output = Straight(target, sinks.writer.ledger, compare="warn")
    Sinks.opened.append(output)
    write_step(output, 0, rows(0, 2))
    output.start_step(1)
    # After the first row, ALTER TABLE would wait.
    sinks.connection.execute(f"ALTER TABLE {sinks.table} ALTER id TYPE double precision".encode())
    output.push_buffer(batch_of(rows(2, 4)))
    with pytest.raises(FencedError, match="was altered"):
        output.finish_step()
    assert [row["id"] for row in sinks.contents()] == [0.0, 1.0]


@pytest.fixture(params=["read committed", "repeatable read", "serializable"])
def _isolation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection uses this isolation level, unless it sets another one."""
    level = request.param.replace(" ", "\\ ")
    setting = quote(f"-c default_transaction_isolation={level}")
    monkeypatch.setattr(Sinks, "dsn", f"{Sinks.dsn}?options={setting}")


def meanwhile(work: Callable[[], object], looking: Connection) -> threading.Thread:
    """Run work on a thread. Returns when the work waits for a lock, or has ended."""
    thread = threading.Thread(target=work)
    thread.start()
    waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    while thread.is_alive() and looking.execute(waits).fetchone() is None:
        thread.join(0.02)
    return thread


@pytest.mark.usefixtures("_isolation")
def test_an_old_generation_writes_nothing_while_a_new_one_begins() -> None:
    sinks = Sinks(staged=False)
    endpoint = sinks.new_endpoint("", {"compare": "warn"})
    endpoint.start_step(0)
    endpoint.push_buffer(batch_of(rows(0, 3)))

    def finish() -> None:
        with pytest.raises(FencedError):
            endpoint.finish_step()
        fenced.set()

    fenced = threading.Event()
    with connect(Sinks.dsn) as newer, connect(Sinks.dsn) as looking:
        with newer.transaction():
            changed(sinks.writer, generation=2)._insert_row(newer, sinks.move.table)  # empties the table
            finishing = meanwhile(finish, looking)
        finishing.join()
    assert sinks.contents() == [] and fenced.is_set()


@pytest.mark.usefixtures("_isolation")
def test_a_sink_that_begins_during_a_removal_keeps_its_row() -> None:
    sinks = Sinks(staged=False)
    with connect(Sinks.dsn) as beginning, connect(Sinks.dsn) as removing, connect(Sinks.dsn) as looking:
        looking.execute("DELETE FROM mzplan.writers")
        with beginning.transaction():
            changed(sinks.writer, sink="other")._insert_row(beginning, None)
            dropping = meanwhile(lambda: _drop_tables(removing, sinks.writer), looking)
        dropping.join()
        assert looking.execute("SELECT sink FROM mzplan.writers").fetchall() == [("other",)]
