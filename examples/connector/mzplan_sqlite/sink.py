"""The output: writes rows and the record of their step in one transaction of the target."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mzplan.endpoints import Step, StepError, checked_step
from mzplan.endpoints.interface import Written
from mzplan.endpoints.replay import StepReplay

from .database import columns, connect, quoted

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_STEPS = (
    "CREATE TABLE IF NOT EXISTS mzplan_steps (output TEXT, step TEXT, rows INTEGER, digest TEXT, "
    "PRIMARY KEY (output, step))"
)


class SqliteOutput:
    """An OutputEndpoint. It rolls an unfinished step back; after a crash, SQLite does."""

    def __init__(self, name: str, config: Mapping[str, Any]):
        self._name = name
        self._config = config
        self._connection: sqlite3.Connection | None = None
        self._replay: StepReplay | None = None
        names = columns(config)
        listed, marks = ", ".join(quoted(n) for n in names), ", ".join("?" * len(names))
        self._insert = f"INSERT INTO {quoted(config['options']['table'])} ({listed}) VALUES ({marks})"

    def start_step(self, step: Step) -> None:
        checked_step(step)
        connection = self._begin()
        try:
            written = dict(self._recorded(connection))
            self._replay = StepReplay(
                step,
                written=written.get(step),
                last=max(written, default=None),
                compare=self._config["compare"],
            )
        except BaseException:
            self._give_up()
            raise

    def push_buffer(self, batch: RecordBatch) -> None:
        connection, replay = self._started()
        try:
            fresh = replay.push(batch)
            connection.executemany(self._insert, zip(*(c.to_pylist() for c in fresh.columns), strict=True))
        except BaseException:
            self._give_up()
            raise

    def finish_step(self) -> None:
        connection, replay = self._started()
        try:
            note = replay.finish()
            connection.execute(
                "INSERT OR REPLACE INTO mzplan_steps VALUES (?, ?, ?, ?)",
                (self._name, _text(replay.step), note.rows, note.digest),
            )
            connection.execute("COMMIT")
        except BaseException:
            self._give_up()
            raise
        self._replay = None

    def expire_step(self, step: Step) -> None:
        checked_step(step)
        connection = self._begin()
        newest = max((known for known, _ in self._recorded(connection)), default=0)
        connection.execute(
            "DELETE FROM mzplan_steps WHERE output = ? AND step < ?", (self._name, _text(min(step, newest)))
        )
        connection.execute("COMMIT")

    def written(self, step: Step) -> Written | None:
        """Return the record of a step, for `mzplan verify`; None without one."""
        connection = self._begin()
        found = dict(self._recorded(connection)).get(checked_step(step))
        self._give_up()
        return found

    def close(self) -> None:
        self._give_up()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _begin(self) -> sqlite3.Connection:
        """Roll an open transaction back, and begin one that locks other writers out."""
        if self._connection is None:
            self._connection = connect(self._config)
        self._give_up()
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute(_STEPS)
        return self._connection

    def _give_up(self) -> None:
        self._replay = None
        if self._connection is not None and self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _started(self) -> tuple[sqlite3.Connection, StepReplay]:
        if self._connection is None or self._replay is None:
            raise StepError("no step is started")
        return self._connection, self._replay

    def _recorded(self, connection: sqlite3.Connection) -> list[tuple[Step, Written]]:
        found = connection.execute(
            "SELECT step, rows, digest FROM mzplan_steps WHERE output = ?", (self._name,)
        )
        return [(int(step), Written(rows=rows, digest=digest)) for step, rows, digest in found]


def _text(step: Step) -> str:
    """Return the step as text of a fixed width, which sorts like numbers. SQLite's integers are signed."""
    return f"{step:020}"


class SqliteOutputFactory:
    """Creates instances of SqliteOutput."""

    def name(self) -> str:
        return "sqlite"

    def new_endpoint(self, name: str, config: Mapping[str, Any]) -> SqliteOutput:
        return SqliteOutput(name, config)
