"""What a streaming query that somebody wrote by hand has left, and whether a source can go on from it.

A checkpoint goes on in a copy: with its query id, its log of offsets and commits, and what its source has
noted down. So does its Delta table, whose log says which micro-batch of that query it has. Together they go
on exactly where the query stopped: a micro-batch that was planned and not finished is planned again with the
same offsets, and the table knows whether it has it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mzplan.connectors.api.outputs import canonical_type
from mzplan.connectors.frames.types import spark_type
from mzplan.schema.columns import POSITION, Column
from mzplan.schema.source_columns import keys_of
from mzplan.warehouse.checkpoints import Checkpoint, collection_path, remote
from mzplan.warehouse.paths import absolute, local_path

ADOPTABLE = ("kafka", "files")
_SIMPLE = {"long": "BIGINT", "integer": "INT", "short": "SMALLINT", "byte": "TINYINT"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What a query has left: where, and how far it had come. `planned` and `done` are the newest numbers of
    its logs, -1 for none; `position` is its source's newest entry in the log of offsets."""

    checkpoint: str
    table: str
    query_id: str
    planned: int
    done: int
    position: str
    version: int

    @property
    def mark(self) -> tuple[int, int, int]:
        """Differs once the query has gone on."""
        return (self.planned, self.done, self.version)


class RefusedError(Exception):
    """Why a query can't be adopted: all reasons, each a sentence."""

    def __init__(self, *reasons: str):
        super().__init__(" ".join(reasons))
        self.reasons = reasons


def look(checkpoint: str, table: str) -> Left:
    """Read what is there. Raises RefusedError, and OSError for what the storage did."""
    files = _Files(checkpoint)
    try:
        query_id = str(json.loads(files.read("metadata") or "")["id"])
    except (ValueError, KeyError, TypeError):
        raise RefusedError(
            f"{checkpoint} is no checkpoint of a streaming query: it has no metadata."
        ) from None
    planned, done = (max(files.numbers(log), default=-1) for log in ("offsets", "commits"))
    if planned < 0:
        raise RefusedError("The query has not read anything yet: declare the source as new.")
    if files.has_any("state"):
        raise RefusedError(
            "The query keeps state (an aggregation, a join, or dropped duplicates), and a source does not."
        )
    lines = (files.read(f"offsets/{planned}") or "").splitlines()
    if lines[:1] != ["v1"] or len(lines) != 3:
        raise RefusedError(
            f"The query reads {max(0, len(lines) - 2)} upstreams, and a source reads one."
            if lines[:1] == ["v1"]
            else "Its log of offsets is of a format that is not known."
        )
    return Left(
        checkpoint=checkpoint,
        table=table,
        query_id=query_id,
        planned=planned,
        done=done,
        position=lines[2],
        version=_open(table).version(),
    )


def ensure_adoptable(
    left: Left, type_: str, body: Mapping[str, Any], folder: str | None, columns: Sequence[Column]
) -> None:
    """Whether a source of this type and body goes on from there: the same topic, or the same `folder`; a
    table that this very query has written, with the source's columns. Raises RefusedError, and OSError."""
    if keys_of(type_, body):
        raise RefusedError(
            "The source keeps the latest row of each key, and what a query written by hand has done with its "
            "table can't be told from its checkpoint: declare the source as new."
        )
    found = [*_of_upstream(left, type_, body, folder), *_of_table(left, columns)]
    if found:
        raise RefusedError(*found)


def copy(left: Left, warehouse: str, id_: str) -> None:
    """Copy it to where a query of this id has it, generation 1. Raises OSError; RefusedError when the query
    went on meanwhile."""
    _copy(left.table, collection_path(warehouse, id_, 1))
    _copy(left.checkpoint, Checkpoint.of(warehouse, id_, 1).spark)
    if look(left.checkpoint, left.table).mark != left.mark:
        raise RefusedError("The query still runs: it has written while it was copied. Stop it first.")


def _of_upstream(left: Left, type_: str, body: Mapping[str, Any], folder: str | None) -> Iterator[str]:
    try:
        position = json.loads(left.position)
    except ValueError:
        position = None
    if not isinstance(position, dict):
        yield f"It reads no {type_} upstream: its offset is {left.position[:80]}."
    elif type_ == "kafka":
        topics = sorted(position)
        if topics == ["logOffset"] or not all(isinstance(value, dict) for value in position.values()):
            yield "It does not read Kafka."
        elif topics != [body.get("topic")]:
            yield f"It reads the topics {', '.join(topics)}, and the source reads {body.get('topic')}."
    elif set(position) != {"logOffset"}:
        yield "It does not read a folder of files."
    else:
        strange = next((path for path in _files_read(left) if not _is_below(path, folder or "")), None)
        if strange is not None:
            yield f"It has read {strange}, which is not below the source's folder, {folder}."


def _of_table(left: Left, columns: Sequence[Column]) -> Iterator[str]:
    table = _open(left.table)
    has = table.transaction_version(left.query_id)
    if has is None:
        yield f"{left.table} was not written by this query's Delta sink: its log does not name it."
    elif not left.done <= has <= left.planned:
        yield (
            f"{left.table} has micro-batch {has} of this query, and its checkpoint has finished {left.done}: "
            "they are not of the same time."
        )
    if any("://" in path or path.startswith("/") for path in _paths(table)):
        yield f"{left.table} is a shallow clone: it has files of another table."
    there = {field["name"]: field["type"] for field in json.loads(table.schema().to_json())["fields"]}
    wanted = {column.name: column for column in columns}
    for name in sorted(there.keys() - wanted.keys() - {POSITION}):
        yield f"The table has a column {name}, which the source does not declare."
    for name in sorted(wanted.keys() - there.keys()):
        yield f"The table has no column {name}, which the source declares."
    for name in sorted(there.keys() & wanted.keys()):
        is_, should = canonical_type(_ddl(there[name])), canonical_type(spark_type(wanted[name].type))
        if is_ != should:
            yield f"The table's column {name} is {is_ or there[name]}, and the source declares {should}."


def _files_read(left: Left) -> Iterator[str]:
    """The files that a file stream has noted down as read, as URIs."""
    files = _Files(left.checkpoint)
    for name in files.names("sources/0"):
        for line in (files.read(f"sources/0/{name}") or "").splitlines()[1:]:
            yield str(json.loads(line)["path"])


def _is_below(path: str, folder: str) -> bool:
    one, other = local_path(path), local_path(folder)
    if one is not None and other is not None:
        return one.is_relative_to(other)
    return path.replace("s3a://", "s3://", 1).startswith(
        folder.replace("s3a://", "s3://", 1).rstrip("/") + "/"
    )


def _open(table: str) -> Any:
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        return DeltaTable(table.replace("s3a://", "s3://", 1))
    except (DeltaError, ValueError) as problem:
        said = str(problem).splitlines()[0][:200]
        raise RefusedError(f"{table} is no Delta table that can be read here: {said}.") from None


def _paths(table: Any) -> Iterator[str]:
    actions = table.get_add_actions(flatten=True)
    yield from (str(path) for path in actions["path"].to_pylist())


def _ddl(type_: Any) -> str:
    """A type of Delta's schema as DDL: `"long"` → `BIGINT`."""
    if not isinstance(type_, dict):
        return _SIMPLE.get(type_, str(type_).upper())
    match type_.get("type"):
        case "array":
            return f"ARRAY<{_ddl(type_['elementType'])}>"
        case "map":
            return f"MAP<{_ddl(type_['keyType'])}, {_ddl(type_['valueType'])}>"
        case _:
            fields = (f"{field['name']}: {_ddl(field['type'])}" for field in type_["fields"])
            return f"STRUCT<{', '.join(fields)}>"


class _Files:
    """The files below a folder of any file system."""

    def __init__(self, folder: str):
        from pyarrow import fs

        local = local_path(folder)
        self.system, self.path = (fs.LocalFileSystem(), str(local)) if local else remote(folder)

    def names(self, inner: str) -> list[str]:
        return [info.base_name for info in self._below(inner) if not info.base_name.startswith(".")]

    def numbers(self, log: str) -> list[int]:
        return [int(name) for name in self.names(log) if name.isdecimal()]

    def has_any(self, inner: str) -> bool:
        return bool(self._below(inner))

    def read(self, name: str) -> str | None:
        try:
            with self.system.open_input_stream(f"{self.path}/{name}") as stream:
                return bytes(stream.read()).decode()
        except FileNotFoundError:
            return None
        except UnicodeDecodeError:
            raise OSError(f"{self.path}/{name} is damaged") from None

    def _below(self, inner: str) -> list[Any]:
        from pyarrow import fs

        selector = fs.FileSelector(f"{self.path}/{inner}", allow_not_found=True)
        return list(self.system.get_file_info(selector))


def _copy(from_: str, to: str) -> None:
    one, other = local_path(from_), local_path(to)
    if one is not None and other is not None:
        shutil.copytree(one, other, copy_function=_linked, dirs_exist_ok=True)
        return
    from pyarrow import fs

    source, target = _Files(from_), _Files(to)
    fs.copy_files(
        source.path, target.path, source_filesystem=source.system, destination_filesystem=target.system
    )


def _linked(from_: str, to: str) -> None:
    """A copy; of data, which Delta never changes in place, a second name where the disk allows one."""
    if from_.endswith(".parquet") and "_delta_log" not in Path(from_).parts:
        try:
            os.link(from_, to)
        except OSError:
            pass
        else:
            return
    shutil.copy2(from_, to)


def place(path: str) -> str:
    """A path as a person gives it on the command line: relative to where they are."""
    return absolute(str(Path.cwd()), path)
