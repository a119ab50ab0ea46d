"""The first step of a sink's new generation: only the difference to the rows of the former one.

A view that is replaced side by side has two collections. The sink's former generation has written the rows of
the former one, up to the version that its checkpoint says. The first step of the new generation deletes the
keys that only these rows have, and writes the rows that are new or differ. The target isn't read, so rows of
other writers stay.

Nothing is recorded for this: the former checkpoint and collection don't change any more, and stay until the
new generation has done its first step. So a repeated step has the same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.queries import BatchWriter, SinkRun
from mzplan.connectors.frames.generations import rows_between
from mzplan.connectors.frames.micro_batches import micro_batch
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.schema.description import CollectionRead, Description, InlinedConnection
from mzplan.schema.kinds import resource_kind
from mzplan.schema.source_columns import columns_of, keys_of
from mzplan.schema.target_writes import (
    UPSERT,
    has_same_target,
    writes_alike,
    writes_generation_difference,
)
from mzplan.spark.collections import read_table
from mzplan.spark.failures import is_gone
from mzplan.spark.sql.projection import project
from mzplan.warehouse.checkpoint_log import table_of
from mzplan.warehouse.checkpoints import Checkpoint, StartedSink, collection_path
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.folder import decoding, exists

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """Rows that the target may hold: those of a version of a former collection, under one description."""

    description: Description
    read: CollectionRead
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Former:
    """What former generations may have written.

    `is_certain`: whether the target holds all rows of one of `written`, so that equal rows can be left out.
    """

    written: tuple[_Written, ...] = ()
    is_certain: bool = True


def record_start(checkpoint: Checkpoint, description: Description) -> None:
    """Record the description with which a sink starts. Raises OSError."""
    before, log = checkpoint.started(), checkpoint.log
    begins = not log.has_begun() and writes_generation_difference(description)
    compares = before.compares if log.has_begun() and before is not None else begins
    started = StartedSink(description=description, compares=compares)
    if started != before:
        checkpoint.record_started(started)


class GenerationDifference:
    """The difference between the generations of one sink."""

    def __init__(self, warehouse: str, run: SinkRun):
        self._warehouse = warehouse
        self._run = run
        self._query = run.query

    def writer_of(self, write: BatchWriter) -> BatchWriter:
        """Return a function that writes like `write`, but only the difference in the first step."""

        def write_first(batch: DataFrame, step: int) -> None:
            if step > 0:
                write(batch, step)
                return
            with micro_batch(self._run.fail):
                rows = self._difference(batch)
            try:
                write(batch if rows is None else rows, step)
            finally:
                if rows is not None:
                    rows.unpersist()

        return write_first if self._applies() else write

    def _applies(self) -> bool:
        started = self._run.checkpoint.started()
        has_all_rows = started is not None and started.compares
        return has_all_rows and writes_generation_difference(self._query.description)

    def _difference(self, batch: DataFrame) -> DataFrame | None:
        """Return the rows to write, cached; None for all rows of the batch."""
        try:
            former = self._find_former()
            if former is None:
                return None
            sides = [self._rows(batch.sparkSession, written) for written in former.written]
            return rows_between(batch, sides, self._query.body["key"], is_certain=former.is_certain)
        except GoneError as problem:
            why = str(problem)
        except MzplanError as problem:  # the former select or where
            why = problem.diagnostics[0].summary
        except Exception as problem:
            if not is_gone(problem):
                raise
            why = "files of its collection have been removed"
        address, why = self._query.address, why.rstrip(".")
        self._run.warn(Diagnostic.of("MZ408.former-unknown", address=address, why=why))
        return None

    def _find_former(self) -> _Former | None:
        """Return what the target may hold; None if it has no rows that can be compared by key.

        A generation whose first step isn't done may have written, or not, so the one before it counts too.
        Raises GoneError, OSError."""
        now = self._query.description
        assert now.input is not None
        found: list[_Written] = []
        is_certain = True
        for generation in range(now.generation - 1, 0, -1):
            checkpoint = Checkpoint.of(self._warehouse, now.id, generation)
            if checkpoint.log.newest() < 0:
                continue  # it has written nothing
            if (started := checkpoint.started()) is None:
                raise GoneError("an earlier version of mzplan ran the former generation")
            if not has_written_same_keys(started.description, now):
                return None
            is_certain &= writes_alike(now.type, started.description.body, now.body)
            is_certain &= _has_own_keys(started.description) and _has_own_keys(now)
            for written in self._written(checkpoint, started.description):
                if written is None:
                    is_certain = False
                else:
                    found.append(written)
            if checkpoint.log.committed() >= 0:
                break
            is_certain = False
        else:
            if Checkpoint.of(self._warehouse, now.id, 1).started() is None:
                raise GoneError("the checkpoint of the former generation has been removed")
        if all(written.read.place == now.input.place for written in found):
            return None  # the same rows are wanted again
        return _Former(written=tuple(found), is_certain=is_certain)

    def _written(self, checkpoint: Checkpoint, last: Description) -> Iterator[_Written | None]:
        """Yield what a generation has written, and None if it may have written only a part of it."""
        read, log = last.input, checkpoint.log
        assert read is not None
        path = collection_path(self._warehouse, *read.place)
        if not exists(f"{path}/_delta_log"):
            raise GoneError(f"the rows of generation {read.generation} of {read.address} have been removed")
        table = Checkpoint.of(self._warehouse, *read.place).collection()
        descriptions = [entry.earlier(last) for entry in checkpoint.descriptions().entries] or [last]
        for step in dict.fromkeys((log.committed(), log.newest())):
            offset = log.offset(step)[0] if step >= 0 else None
            if offset is not None and table is not None and table_of(offset) != table:
                raise GoneError(f"generation {last.generation} has read another collection")
            is_keyed = bool(keys_of(read.type, read.body))
            for version in _versions(offset, CollectionLog(path), is_keyed=is_keyed):
                if version is None:
                    yield None
                else:
                    yield from (_Written(description=d, read=read, version=version) for d in descriptions)

    def _rows(self, spark: SparkSession, written: _Written) -> DataFrame:
        read, description = written.read, written.description
        rows = read_table(spark, collection_path(self._warehouse, *read.place), written.version)
        stored = {name.lower() for name in rows.columns}
        columns = tuple(c for c in columns_of(read.type, read.body) if c.name.lower() in stored)
        kind = resource_kind(description.address.kind, description.type)
        query = replace(
            self._query,
            description=description,
            body=kind.with_defaults(description.body),
            columns=columns,
            keys=(),
        )
        return project(rows, query)


def _versions(offset: Any, log: CollectionLog, *, is_keyed: bool) -> Iterator[int | None]:
    """Yield the version whose rows a sink has read at an offset of Delta, or the two between which it is.

    Yields None if it may have read nothing, or only a part of a version."""
    if not isinstance(offset, dict):
        yield None
        return
    with decoding(f"an offset in {log.collection}"):
        version, index = int(offset["reservoirVersion"]), int(offset.get("index", -1))
        if offset.get("isStartingVersion"):
            yield from (None, version)
            return
    if index < 0:
        yield version - 1 if version > 0 else None
        return
    commit = log.commit(version)
    new_files = len([add for add in commit.adds if add.has_new_rows]) if commit is not None else 0
    is_whole = commit is not None and (commit.is_read_by(index) if is_keyed else index >= new_files - 1)
    if not is_whole:
        yield version - 1 if version > 0 else None
    yield version


def has_written_same_keys(former: Description, now: Description) -> bool:
    """Whether both write rows with the same key to one target."""
    if former.type != now.type or former.body.get("mode") != UPSERT:
        return False
    if former.input is None or now.input is None or former.input.id != now.input.id:
        return False
    kind = resource_kind("sink", now.type)
    before, after = kind.with_defaults(former.body), kind.with_defaults(now.body)
    return has_same_target(now.type, before, after) and _lead_alike(
        _to_target(former.connections), _to_target(now.connections)
    )


def _to_target(connections: Mapping[str, InlinedConnection]) -> Mapping[str, InlinedConnection]:
    """Return the connection to the target. Others, such as a schema registry, decide how rows are written."""
    return {role: connection for role, connection in connections.items() if role == "connection"}


def _lead_alike(former: Mapping[str, InlinedConnection], now: Mapping[str, InlinedConnection]) -> bool:
    """Whether connections lead to the same place, at any depth."""
    if former.keys() != now.keys():
        return False
    return all(_leads_alike(former[role], now[role]) for role in now)


def _leads_alike(former: InlinedConnection, now: InlinedConnection) -> bool:
    if (former.type, former.address) != (now.type, now.address):
        return False
    kind = resource_kind("connection", now.type)
    before, after = kind.with_defaults(former.body), kind.with_defaults(now.body)
    replacing = (name for name in kind.schema["properties"] if kind.effect((name,), "changed") == "replace")
    is_same = all(before.get(name) == after.get(name) for name in replacing)
    return is_same and _lead_alike(former.connections, now.connections)


def _has_own_keys(query: Description) -> bool:
    """Whether each row that the sink writes has a key of its own: all columns of its collection's key.

    Otherwise, the order of events decides which row a key has, and a deleted row may have been the last."""
    read = query.input
    assert read is not None
    keys = keys_of(read.type, read.body)
    own = {name.lower() for name in query.body["key"]}
    return _are_plain(keys, query.body.get("select")) and {name.lower() for name in keys} <= own


def _are_plain(keys: Sequence[str], select: Sequence[str] | None) -> bool:
    """Whether columns are selected as they are."""
    texts = {" ".join(text.lower().replace("`", "").split()) for text in select or ["*"]}
    return "*" in texts or all(key.lower() in texts for key in keys)
