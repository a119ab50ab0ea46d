"""The input: each step is a range of rowids, which a StepLog beside the checkpoint records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mzplan.endpoints import InputConsumer, Step, StepError, checked_step
from mzplan.endpoints.arrow import arrow_schema, columns_of_config
from mzplan.endpoints.steplog import StepLog

from .database import columns, connect, quoted

_BATCH_ROWS = 10_000


class SqliteInput:
    """A DurableInputEndpoint over a table that only grows.

    SQLite has one writer at a time, so a later row has a larger rowid. The rows up to the largest visible
    rowid are therefore complete.
    """

    def __init__(self, config: Mapping[str, Any]):
        self._config = config
        self._log = StepLog(config["storage"])
        self._pending: tuple[Step, int, int, InputConsumer] | None = None

    def steps(self) -> range:
        return self._log.steps()

    def read(self, step: Step, consumer: InputConsumer) -> None:
        there = self.steps()
        if checked_step(step) in there:
            note = self._log.note(step)
            self._feed(note["after"], note["until"], consumer)
            consumer.eoi()
            consumer.committed()
        elif step == there.stop:
            self._pending = None
            newest = self._log.newest()  # the step before, which may have expired
            after = newest["until"] if newest is not None else 0
            until = self._until(after)
            self._feed(after, until, consumer)
            self._pending = (step, after, until, consumer)
        else:
            raise StepError(f"step {step} is not there: steps {there.start} to {there.stop} (excluded) are")

    def commit(self, step: Step) -> None:
        if self._pending is not None and self._pending[0] == step:
            (_, after, until, consumer), self._pending = self._pending, None
            self._log.append(step, {"after": after, "until": until})
            consumer.eoi()
            consumer.committed()
        elif step not in self.steps():
            raise StepError(f"step {step} can't be committed: it is not the one that was read last")

    def expire(self, step: Step) -> None:
        self._log.expire(checked_step(step))

    def _until(self, after: int) -> int:
        table, most = self._config["options"]["table"], self._config["options"].get("max_rows", 100_000)
        connection = connect(self._config)
        try:
            (until,) = connection.execute(
                f"SELECT max(rowid) FROM (SELECT rowid FROM {quoted(table)} WHERE rowid > ? "
                "ORDER BY rowid LIMIT ?)",
                (after, most),
            ).fetchone()
        finally:
            connection.close()
        return after if until is None else int(until)

    def _feed(self, after: int, until: int, consumer: InputConsumer) -> None:
        import pyarrow as pa

        if until <= after:
            return
        schema = arrow_schema(columns_of_config(self._config))
        names = ", ".join(quoted(name) for name in columns(self._config))
        table = quoted(self._config["options"]["table"])
        connection = connect(self._config)
        try:
            cursor = connection.execute(
                f"SELECT {names} FROM {table} WHERE rowid > ? AND rowid <= ? ORDER BY rowid", (after, until)
            )
            while found := cursor.fetchmany(_BATCH_ROWS):
                arrays = [pa.array(values) for values in zip(*found, strict=True)]
                consumer.push(pa.RecordBatch.from_arrays(arrays, names=schema.names))
        finally:
            connection.close()


class SqliteInputFactory:
    """Creates instances of SqliteInput."""

    def name(self) -> str:
        return "sqlite"

    def new_endpoint(self, name: str, config: Mapping[str, Any]) -> SqliteInput:
        return SqliteInput(config)
