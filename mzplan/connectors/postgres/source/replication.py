"""The part of PostgreSQL's replication protocol that a logical slot needs: commands, and a stream.

psycopg doesn't support replication, but libpq does: the connection has `replication=database`, and
START_REPLICATION turns it into a COPY in both directions. The SQL function that reads a slot
(pg_logical_slot_peek_binary_changes) isn't used, because the server would keep a whole step in temporary
files, and couldn't stop after the first change.
"""

from __future__ import annotations

import math
import re
import select
import struct
import time
from collections.abc import Iterator

import psycopg
from psycopg import generators, pq
from psycopg.conninfo import make_conninfo

from mzplan.connectors.postgres.client import connect
from mzplan.connectors.postgres.types import quoted
from mzplan.host.postgres_session import session_statement

# The server ends the stream of a reader that is silent this long, which frees its slot.
_SENDER_TIMEOUT_S = 120.0
# A server that is silent this long counts as dead. While the server decodes a large unpublished transaction,
# it reads no messages, and replies only after half of the sender's timeout.
_SILENCE_S = 2.5 * _SENDER_TIMEOUT_S
# For the sessions that read rows. Large transactions and snapshots need time. Rows hidden by a policy must be
# an error. The text of a regclass depends on the search path.
SESSION = session_statement(
    lock_timeout="60s",
    idle_in_transaction_session_timeout="0",
    row_security="off",
    search_path="pg_catalog",
)
_SLOT_WAIT_S = 20.0  # wait for the walsender of a reader that has just ended
_PING_S = 0.05  # after this time without a message, the server's position is requested
_XLOG, _KEEPALIVE = ord("w"), ord("k")
LOCK_NOT_AVAILABLE = "55P03"
HEADER = 25
"""The number of bytes before pgoutput's message in each part of the stream: `w`, two LSNs, a time."""

Lsn = int


def lsn_of(text: str) -> Lsn:
    """Convert `"16/B374D848"` to a number with the same order."""
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def lsn_text(lsn: Lsn) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


class SlotError(psycopg.OperationalError):
    """The server's error for a command of the replication protocol. `state` is the SQLSTATE."""

    def __init__(self, message: str, state: str | None):
        super().__init__(message)
        self.state = state


class ReplicationLink:
    """A connection that speaks the replication protocol. `within_s`: see `connect`.

    Raises psycopg.Error for errors of the server.
    """

    def __init__(self, conninfo: str, within_s: float = math.inf):
        # Never use a call that waits inside libpq, because it holds the interpreter lock. With a tunnel, a
        # thread of this process is the other end of the connection.
        self._owner = connect(make_conninfo(conninfo, replication="database"), within_s=within_s)
        self._connection = self._owner.pgconn
        try:
            self.command(SESSION.encode())
            self.command(b"SET wal_sender_timeout = %d" % (_SENDER_TIMEOUT_S * 1000))
        except BaseException:
            self.close()
            raise

    def command(self, text: bytes, max_s: float = _SILENCE_S) -> list[list[str | None]]:
        """Run a command within `max_s` seconds, and return its rows."""
        self._owner.max_seconds = max_s
        result = self._run(text)
        if result.status not in (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK):
            raise self._refused_error(result)
        return [
            [_value(result.get_value(row, column)) for column in range(result.nfields)]
            for row in range(result.ntuples)
        ]

    def stream(self, slot: str, publication: str) -> None:
        """Start streaming a slot from its confirmed position. Waits briefly if the slot is in use."""
        name = quoted(publication).replace("'", "''")
        options = f"proto_version '1', publication_names '{name}'"
        command = f"START_REPLICATION SLOT {quoted(slot)} LOGICAL 0/0 ({options})".encode()
        deadline = time.monotonic() + _SLOT_WAIT_S
        while True:
            result = self._run(command)
            if result.status == pq.ExecStatus.COPY_BOTH:
                return
            problem = self._refused_error(result)
            # "is active for PID": 55006
            if problem.state != "55006" or time.monotonic() > deadline:
                raise problem
            time.sleep(0.05)

    def messages(self) -> Iterator[tuple[Lsn | None, memoryview | bytes]]:
        """Yield messages of the slot, and the server's progress.

        A message is (None, data), where data begins with `HEADER` bytes. Progress is (lsn, b""): the server
        has read its log up to that LSN and found no more messages. Nothing is confirmed, except by `confirm`.
        """
        connection = self._connection
        waits, quiet_s = 0, 0.0  # not by the clock: the caller may be slow, or this process suspended
        while True:
            length, data = connection.get_copy_data(1)
            if length > 0:
                waits = 0
                if data[0] == _XLOG:
                    yield None, data
                elif data[0] == _KEEPALIVE:
                    (end, _, reply) = struct.unpack_from(">QQB", data, 1)
                    if reply:
                        self._send_status(ask=False)
                    yield end, b""
                continue
            if length < 0:
                raise self._end_error()
            if self._wait():
                quiet_s = 0.0
                continue
            waits += 1
            quiet_s += _PING_S
            if waits == 1:
                self._send_status(ask=True)
            if quiet_s > _SILENCE_S:
                raise psycopg.OperationalError(f"the server was silent for {_SILENCE_S:.0f} s")

    def confirm(self, lsn: Lsn) -> None:
        """Confirm a position. The server may discard the log before it."""
        self._connection.put_copy_data(struct.pack(">cQQQQB", b"r", lsn, lsn, lsn, 0, 0))
        self._connection.flush()

    def close(self) -> None:
        self._owner.close()

    def _run(self, text: bytes) -> pq.abc.PGresult:
        """Run a command. For several statements, return the first failed result, or the last one."""
        self._connection.send_query(text)
        results: list[pq.abc.PGresult] = self._owner.wait(generators.execute(self._connection))
        if not results:
            raise psycopg.OperationalError("the server ended a command without a result")
        failed = (result for result in results if result.status == pq.ExecStatus.FATAL_ERROR)
        return next(failed, results[-1])

    def _wait(self) -> bool:
        """Return whether anything arrived within a moment."""
        socket = self._connection.socket
        ready, _, _ = select.select([socket], [], [], _PING_S)
        if ready:
            self._connection.consume_input()
        return bool(ready)

    def _send_status(self, *, ask: bool) -> None:
        """Send a standby status update that confirms nothing."""
        self._connection.put_copy_data(struct.pack(">cQQQQB", b"r", 0, 0, 0, 0, ask))
        self._connection.flush()

    def _end_error(self) -> psycopg.Error:
        result = self._connection.get_result()
        if result is None:
            return psycopg.OperationalError(
                _text(self._connection.error_message) or "the server ended the stream"
            )
        return self._refused_error(result)

    def _refused_error(self, result: pq.abc.PGresult) -> SlotError:
        text = _text(result.error_message) or _text(self._connection.error_message)
        state = result.error_field(pq.DiagnosticField.SQLSTATE)
        return SlotError(text, state.decode() if state else None)


def create_slot(link: ReplicationLink, slot: str, *, temporary: bool = False) -> tuple[Lsn, str]:
    """Create a slot, and return its consistent point and the name of an exported snapshot.

    The snapshot has exactly the transactions committed before that point. Other sessions can import it
    until the link is closed or runs another command.
    """
    kind = "TEMPORARY LOGICAL" if temporary else "LOGICAL"
    command = f"CREATE_REPLICATION_SLOT {quoted(slot)} {kind} pgoutput EXPORT_SNAPSHOT"
    rows = link.command(command.encode(), math.inf)  # it waits for all open transactions
    _, point, snapshot, _ = rows[0]
    assert point is not None
    return lsn_of(point), snapshot or ""


def _value(data: bytes | None) -> str | None:
    return data.decode() if data is not None else None


def _text(message: bytes) -> str:
    return re.sub(r"^(ERROR|FATAL):\s*", "", message.decode("utf-8", "replace").strip())
