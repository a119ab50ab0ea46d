"""Rows as Arrow into a table of PostgreSQL, by binary COPY.

This module is sent to the executors whole (see task_code): they need pyarrow and adbc-driver-postgresql, no
mzplan. It uses the driver's own interface: its DB-API imports pandas, a second for each new Python worker.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mzplan.connectors.postgres.elsewhere import Elsewhere

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema

SESSION = (
    "SELECT set_config('lock_timeout', '20s', false), "
    "set_config('default_transaction_isolation', 'read committed', false), "
    "set_config('idle_in_transaction_session_timeout', '30s', false), "
    "set_config('synchronous_commit', CASE s WHEN 'off' THEN 'on' ELSE s END, false) "
    "FROM current_setting('synchronous_commit') AS s"
)
# Batches that wait to be copied: while one is encoded and sent, the next ones come in.
_AHEAD = 4
_LOOK_S = 0.2


class Session:
    """A connection: statements, and transactions if it is not to commit by itself. `elsewhere`: where this is
    not the machine that `conninfo` was made on."""

    def __init__(
        self,
        conninfo: str,
        *,
        autocommit: bool,
        elsewhere: Elsewhere | None = None,
    ):
        import adbc_driver_manager as adbc
        import adbc_driver_postgresql

        self._adbc = adbc
        with contextlib.ExitStack() as opened:
            if elsewhere is not None:
                # libpq takes the last value of an option that it is given twice.
                conninfo = f"{conninfo} {opened.enter_context(elsewhere.options())}"
            database = opened.enter_context(adbc_driver_postgresql.connect(conninfo))
            self.connection = opened.enter_context(adbc.AdbcConnection(database))
            self.execute(SESSION)  # before the first transaction, which is to begin so
            self.connection.set_autocommit(autocommit)
            self._opened = opened.pop_all()

    def execute(self, statement: str) -> int:
        """How many rows it affected."""
        with self._adbc.AdbcStatement(self.connection) as prepared:
            prepared.set_sql_query(statement)
            return int(prepared.execute_update())

    def fetch(self, query: str) -> list[tuple[Any, ...]]:
        """All rows."""
        import pyarrow as pa

        with self._adbc.AdbcStatement(self.connection) as prepared:
            prepared.set_sql_query(query)
            stream, _ = prepared.execute_query()
            with pa.RecordBatchReader.from_stream(stream) as reader:
                table = reader.read_all()
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def close(self) -> None:
        """What is not committed is rolled back."""
        self._opened.close()


class Copy:
    """One COPY of the batches that are pushed, on a thread of its own: while it encodes and sends a batch,
    the next one is fetched. The session is the thread's until `finish` or `cancel` returns."""

    def __init__(self, session: Session, table: tuple[str, str], schema: Schema):
        self._session = session
        self._table = table
        self._schema = schema
        self._waiting: queue.Queue[RecordBatch | BaseException | None] = queue.Queue(_AHEAD)
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="mzplan-copy", daemon=True)
        self._thread.start()

    def push(self, columns: Sequence[Any]) -> None:
        """The columns of a batch. Raises what has gone wrong with an earlier one."""
        import pyarrow as pa

        self._put(pa.RecordBatch.from_arrays(list(columns), schema=self._schema))

    def finish(self) -> None:
        """All is copied. Raises what has gone wrong."""
        self._put(None)
        self._thread.join()
        self._check()

    def cancel(self) -> None:
        """End it, whatever becomes of the rows."""
        while self._thread.is_alive():
            try:
                self._waiting.put(CancelledError("the step was given up"), timeout=_LOOK_S)
            except queue.Full:
                continue
            self._thread.join()

    def _put(self, batch: RecordBatch | None) -> None:
        while True:
            self._check()
            try:
                return self._waiting.put(batch, timeout=_LOOK_S)
            except queue.Full:
                continue

    def _check(self) -> None:
        if self._problem is not None:
            raise self._problem

    def _run(self) -> None:
        import adbc_driver_manager as adbc
        import pyarrow as pa

        try:
            with adbc.AdbcStatement(self._session.connection) as statement:
                statement.set_options(
                    **{
                        "adbc.ingest.target_table": self._table[1],
                        "adbc.ingest.target_db_schema": self._table[0],
                        "adbc.ingest.mode": "adbc.ingest.mode.append",
                    }
                )
                statement.bind_stream(pa.RecordBatchReader.from_batches(self._schema, self._batches()))
                statement.execute_update()
        except BaseException as problem:
            self._problem = problem

    def _batches(self) -> Iterator[RecordBatch]:
        while (batch := self._waiting.get()) is not None:
            if isinstance(batch, BaseException):
                raise batch
            yield batch


class CancelledError(Exception):
    """A COPY was cancelled."""
