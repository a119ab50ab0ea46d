"""Copies Arrow batches into a table of PostgreSQL by binary COPY."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from mzplan.connectors.postgres.remote_options import RemoteOptions
from mzplan.host.postgres_session import session_statement

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema

# Maximum number of batches that wait while another batch is encoded and sent.
_MAX_WAITING = 4
_POLL_S = 0.2


class Session:
    """A connection for statements, with transactions unless `autocommit` is set.

    `remote_options`: options to use if this isn't the machine for which `conninfo` was made.
    """

    def __init__(
        self,
        conninfo: str,
        *,
        autocommit: bool,
        remote_options: RemoteOptions | None = None,
    ):
        import adbc_driver_manager as adbc
        import adbc_driver_postgresql

        self._adbc = adbc
        with contextlib.ExitStack() as opened:
            if remote_options is not None:
                # If an option is given twice, libpq uses the last value.
                conninfo = f"{conninfo} {opened.enter_context(remote_options.options())}"
            database = opened.enter_context(adbc_driver_postgresql.connect(conninfo))
            self.connection = opened.enter_context(adbc.AdbcConnection(database))
            # Before the first transaction, so that it has these settings.
            self.execute(session_statement(lock_timeout="20s", idle_in_transaction_session_timeout="30s"))
            self.connection.set_autocommit(autocommit)
            self._opened = opened.pop_all()

    def execute(self, statement: str) -> int:
        """Run a statement, and return the number of affected rows."""
        with self._adbc.AdbcStatement(self.connection) as prepared:
            prepared.set_sql_query(statement)
            return int(prepared.execute_update())

    def fetch(self, query: str) -> list[tuple[Any, ...]]:
        """Return all rows of a query."""
        import pyarrow as pa

        with self._adbc.AdbcStatement(self.connection) as prepared:
            prepared.set_sql_query(query)
            stream, _ = prepared.execute_query()
            with pa.RecordBatchReader.from_stream(stream) as reader:
                table = reader.read_all()
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def close(self) -> None:
        """Close the connection, which rolls back an open transaction."""
        self._opened.close()


class Copy:
    """One COPY of all pushed batches, on its own thread.

    While the thread encodes and sends a batch, the caller can fetch the next one. The caller must not use the
    session until `finish` or `cancel` returns.
    """

    def __init__(self, session: Session, table: tuple[str, str], schema: Schema):
        self._session = session
        self._table = table
        self._schema = schema
        self._waiting: queue.Queue[RecordBatch | BaseException | None] = queue.Queue(_MAX_WAITING)
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="mzplan-copy", daemon=True)
        self._thread.start()

    def push(self, columns: Sequence[Any]) -> None:
        """Copy a batch, given by its columns. Raises the error of an earlier batch."""
        import pyarrow as pa

        self._put(pa.RecordBatch.from_arrays(list(columns), schema=self._schema))

    def finish(self) -> None:
        """Wait until everything is copied. Raises the COPY's error."""
        self._put(None)
        self._thread.join()
        self._check()

    def cancel(self) -> None:
        """Cancel the COPY. Its rows are lost."""
        while self._thread.is_alive():
            try:
                self._waiting.put(CancelledError("the step was abandoned"), timeout=_POLL_S)
            except queue.Full:
                continue
            self._thread.join()

    def _put(self, batch: RecordBatch | None) -> None:
        while True:
            self._check()
            try:
                return self._waiting.put(batch, timeout=_POLL_S)
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


class CancelledError(Exception): ...
