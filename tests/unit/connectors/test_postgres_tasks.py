"""A task's error for a refused row has the reason and the column, never a value. Tasks read rows in small
batches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import psycopg
import pyarrow as pa
import pytest
from adbc_driver_manager import AdbcStatusCode, IntegrityError

from mzplan.connectors.postgres.sink import query_reader, tasks

PRIMARY, DETAIL, CONTEXT = "PG_DIAG_MESSAGE_PRIMARY", "PG_DIAG_MESSAGE_DETAIL", "PG_DIAG_CONTEXT"


@pytest.mark.parametrize(
    ("details", "told"),
    [
        ({PRIMARY: "duplicate", DETAIL: "Key (id)=(geheim) exists.", CONTEXT: "COPY t, line 1"}, "duplicate"),
        ({PRIMARY: "too long", CONTEXT: "COPY t, line 1, column a name"}, "too long (column a name)"),
        ({PRIMARY: "refused p4ss"}, "refused ***"),
        ({}, "server closed the connection: ***"),
        (None, "TimeoutError"),  # an error without a text
    ],
)
def test_errors_show_no_value_of_a_refused_row(details: dict[str, str] | None, told: str) -> None:
    def push(*_: Any) -> dict[str, Any]:
        if details is None:
            raise TimeoutError
        raise IntegrityError(
            "server closed the connection: p4ss",
            status_code=AdbcStatusCode.INTEGRITY,
            details=[(name.encode(), text.encode()) for name, text in details.items()],
        )

    with pytest.raises(RuntimeError) as raised:
        list(tasks._task(push, "p4ss")(()))
    assert str(raised.value) == f"mzplan[COPY]: {told}"


def test_large_rows_are_read_in_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = MagicMock()
    copy = connection.__enter__().cursor().__enter__().copy().__enter__()
    copy.rows.return_value = iter([("x" * 40, None)] * 5)
    monkeypatch.setattr(psycopg, "connect", lambda conninfo: connection)
    monkeypatch.setattr(query_reader, "_BYTES", 100)
    counter = SimpleNamespace(add=lambda count: None)
    read = query_reader.make_query_reader("", "", ["SELECT"], 2, counter, None)
    batches = read([pa.RecordBatch.from_arrays([pa.array([0])], names=["id"])])
    assert [batch.num_rows for batch in batches] == [3, 2]
