"""Reads a sink's recorded steps from PostgreSQL, for `mzplan verify`."""

from __future__ import annotations

import contextlib

import psycopg

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.api.targets import Recorded
from mzplan.connectors.postgres.client import connect, open_conninfo
from mzplan.connectors.postgres.problems import Problem, connect_problem, reason
from mzplan.connectors.postgres.sink.writer import writer_of
from mzplan.endpoints.interface import Step, Written
from mzplan.model.diagnostics import MzplanError

_SILENCE_S = 30.0
_UNREADABLE = Problem(
    "MZ054",
    "The steps of {address} can't be read",
    "{why}.",
    "give the connection's user the right to read it.",
    at=", {steps}",
)


class PostgresRecorded(Recorded):
    """The ledger's rows, which are written in the transactions of the steps."""

    def __init__(self, query: ResolvedQuery):
        self._query = query
        self._ledger = writer_of(query).ledger
        with contextlib.ExitStack() as opened:
            try:
                info = opened.enter_context(open_conninfo(query))
                self._connection = opened.enter_context(connect(info, _SILENCE_S))
            except psycopg.Error as problem:
                raise MzplanError(connect_problem(query, problem)) from None
            self._opened = opened.pop_all()

    def step(self, step: Step) -> Written | None:
        try:
            row = self._connection.execute(self._ledger.written(step).encode()).fetchone()
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return None
        except psycopg.OperationalError as problem:
            raise MzplanError(connect_problem(self._query, problem)) from None
        except psycopg.Error as problem:
            details = {"steps": self._ledger.steps, "why": reason(self._query, problem)}
            raise _UNREADABLE.error(self._query, **details) from None
        return Written(rows=row[0], digest=row[1]) if row else None

    def close(self) -> None:
        self._opened.close()
