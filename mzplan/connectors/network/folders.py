"""files connections: access to folders on this machine or in an object store, and checks of them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mzplan.connectors.api.probes import with_time_limit
from mzplan.connectors.api.queries import Output, ResolvedQuery
from mzplan.connectors.api.targets import unfit_target
from mzplan.connectors.network.aws import ROLE as AWS
from mzplan.connectors.network.aws import arrow_filesystem, as_s3a
from mzplan.host.guarded_folder import GuardedFolder
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.warehouse.folder import Folder, LocalFolder, RemoteFolder, file_system
from mzplan.warehouse.paths import absolute, local_path

Result = TypeVar("Result")
_CHUNK = 1 << 20  # bytes to read at once
_NOT_IN_NAMES = ("ARRAY", "MAP", "STRUCT", "VARIANT", "BINARY")


def folder_of(query: ResolvedQuery) -> str:
    """Return the source's or sink's folder, which is below the connection's folder."""
    folder = absolute(query.directory, query.link.body["path"], query.body["path"])
    return as_s3a(folder) if AWS in query.link.connections else folder


def route(query: ResolvedQuery) -> str:
    """Return the connection and the folder, for people."""
    return f"{query.link.address} ({folder_of(query)})"


def folder_problems(query: ResolvedQuery, folder: str) -> list[Diagnostic]:
    """Return the reasons why the folder can't be listed; none if it can."""
    local = local_path(folder)
    if local is None:
        return _remote_problems(query, folder)
    try:
        if not local.is_dir():
            raise FileNotFoundError
        next(local.iterdir(), None)
    except FileNotFoundError:
        fault = "is a file, not a folder" if local.exists() else "does not exist"
        return [
            _problem(query, folder, f"Folder {folder} {fault}", f"create it: mkdir -p {shlex.quote(folder)}")
        ]
    except OSError as problem:
        return [
            _problem(
                query, folder, f"Folder {folder} can't be read", f"{problem.strerror}; check its permissions."
            )
        ]
    return []


def files_below(query: ResolvedQuery, folder: str) -> frozenset[str]:
    """Return the paths in a folder of its files, at any depth. Raises MzplanError MZ057."""
    from pyarrow import fs

    def look() -> list[str]:
        system, path = _file_system(query, folder)
        entries = system.get_file_info(fs.FileSelector(path, recursive=True))
        return [
            entry.path[len(path.rstrip("/")) + 1 :] for entry in entries if entry.type == fs.FileType.File
        ]

    return frozenset(_limited(query, folder, look))


def times_of(query: ResolvedQuery, folder: str, names: Sequence[str]) -> dict[str, int]:
    """Return when these files in a folder were last written, in milliseconds since the epoch.

    Leaves out files that no longer exist. Raises MzplanError MZ057.
    """

    def look() -> list[Any]:
        system, path = _file_system(query, folder)
        return list(system.get_file_info([f"{path.rstrip('/')}/{name}" for name in names]))

    return {
        name: info.mtime_ns // 1_000_000
        for name, info in zip(names, _limited(query, folder, look), strict=True)
        if info.mtime_ns is not None
    }


def open_below(query: ResolvedQuery, folder: str, inner: str = "") -> Folder:
    """Open the source's or sink's folder, or the folder `inner` in it. Raises OSError."""
    local = local_path(folder)
    if local is not None:
        return LocalFolder(GuardedFolder(local, inner))
    system, path = _file_system(query, folder)
    return RemoteFolder(system, f"{path.rstrip('/')}/{inner.lstrip('/')}")


def chunks_of(query: ResolvedQuery, folder: str, name: str) -> Iterator[bytes]:
    """Yield the content of a file in the folder, decompressed by the ending of its name. Raises OSError."""
    system, path = _file_system(query, folder)
    with system.open_input_stream(f"{path.rstrip('/')}/{name}") as stream:
        while chunk := stream.read(_CHUNK):
            yield chunk


def relative_path(path: str, folder: str) -> str | None:
    """Return the path relative to the folder, or None if it lies elsewhere."""
    local, local_folder = local_path(path), local_path(folder)
    if local is not None and local_folder is not None:
        local_folder = Path(os.path.normpath(local_folder))  # Spark's paths have no `..`
        return str(local.relative_to(local_folder)) if local.is_relative_to(local_folder) else None
    root = folder.replace("s3a://", "s3://", 1).rstrip("/") + "/"
    name = path.replace("s3a://", "s3://", 1)
    return name.removeprefix(root) if name.startswith(root) else None


def target_problems(query: ResolvedQuery, folder: str) -> list[Diagnostic]:
    """Return the reasons why no table can be written below this folder, which may not exist yet."""
    local = local_path(folder)
    if local is None:
        return _remote_problems(query, folder)
    nearest = next((path for path in (local, *local.parents) if path.exists()), Path("/"))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return [
            _problem(
                query, folder, f"Folder {folder} can't be written", f"check the permissions of {nearest}."
            )
        ]
    return []


def unfit_partitions(query: ResolvedQuery, outputs: Sequence[Output]) -> list[Diagnostic]:
    """Return MZ053 if values of a partition column can't be part of a folder's name."""
    names = {name.lower() for name in query.body.get("partition_by", ())}
    wrong = [
        f"{output.name} ({output.type})"
        for output in outputs
        if output.name.lower() in names and (output.type or "").startswith(_NOT_IN_NAMES)
    ]
    if not wrong:
        return []
    return [
        unfit_target(
            query,
            f"The rows of {query.address} can't be partitioned by these columns",
            f"{', '.join(wrong)}: a folder's name can only contain a simple value, as text.",
            "convert it in `select` (hex(…) AS name), or name another column in `partition_by`.",
        )
    ]


def partition_mismatch(
    query: ResolvedQuery, folder: str, columns: Sequence[str], *, can_rewrite: bool
) -> Diagnostic:
    """Return MZ053 for a target that is partitioned by other columns than the sink's. `can_rewrite`: the sink
    may empty it."""
    wanted = query.body.get("partition_by", ())
    stored_columns = f"is partitioned by {', '.join(columns)}" if columns else "has no partition columns"
    setting = f"partition_by: [{', '.join(wanted)}]" if wanted else "no partition_by"
    adapt = f"write `partition_by: [{', '.join(columns)}]`" if columns else "remove `partition_by`"
    rewrite = f"or {rewrite_hint(query)}; " if can_rewrite else ""
    return unfit_target(
        query,
        f"The partition columns of {folder} differ from those of {query.address}",
        f"{folder} {stored_columns}, but the sink has {setting}.",
        f"{adapt}; {rewrite}or give the sink a target of its own.",
    )


def rewrite_hint(query: ResolvedQuery) -> str:
    """Return the hint to write all rows of a sink again, into an emptied target."""
    return (
        "rewrite the target: on_replace: truncate in the sink, and "
        f"mzplan apply --replace {query.address} --allow-replace"
    )


def are_same_columns(names: Sequence[str], other_names: Sequence[str]) -> bool:
    """Whether the names are the same to Spark, which ignores case."""
    return [name.lower() for name in names] == [name.lower() for name in other_names]


def _remote_problems(query: ResolvedQuery, folder: str) -> list[Diagnostic]:
    from pyarrow import fs

    def look() -> Any:
        system, path = _file_system(query, folder)
        if AWS not in query.link.connections:
            return system.get_file_info(path)
        bucket = path.partition("/")[0]
        if system.get_file_info(bucket).type == fs.FileType.NotFound:
            raise FileNotFoundError(f"bucket {bucket} does not exist")
        # Also list the path, because that needs another permission than looking it up.
        return system.get_file_info(fs.FileSelector(path, allow_not_found=True))

    try:
        _limited(query, folder, look)
    except MzplanError as problem:
        return list(problem.diagnostics)
    return []


def _file_system(query: ResolvedQuery, folder: str) -> tuple[Any, str]:
    """Return pyarrow's file system with the connection's credentials, and the folder's path in it."""
    if local_path(folder) is None and AWS in query.link.connections:
        return arrow_filesystem(query.link.connections[AWS]), folder.partition("://")[2]
    return file_system(folder)


def _limited(query: ResolvedQuery, folder: str, look: Callable[[], Result]) -> Result:
    """Return what `look` returns for an object store. Raises MzplanError MZ057, also if it takes too long."""
    try:
        return with_time_limit(look)
    except (OSError, TimeoutError, ValueError) as problem:
        why = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        unreachable = f"{folder} can't be reached"
        raise MzplanError(
            _problem(query, folder, unreachable, f"{why}; check path and credentials.")
        ) from None


def _problem(query: ResolvedQuery, folder: str, summary: str, hint: str) -> Diagnostic:
    return Diagnostic.of(
        "MZ057.where-query",
        address=query.address,
        what=summary,
        resource=query.link.address,
        path=query.link.body["path"],
        folder=folder,
        how=hint,
    )
