"""A files source that goes on from the checkpoint of another program's query."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mzplan.warehouse.foreign_query import Left, files_read
from mzplan.warehouse.paths import absolute, local_path


class FilesAdoption:
    """See Adopts: every file that the other query has read must be below the source's folder."""

    def folder(self, directory: str, connection: Mapping[str, Any], body: Mapping[str, Any]) -> str:
        return absolute(directory, connection["path"], body["path"])

    def problems(
        self, left: Left, position: Mapping[str, Any], body: Mapping[str, Any], folder: str | None
    ) -> Iterator[str]:
        if set(position) != {"logOffset"}:
            yield "It does not read a folder of files."
            return
        strange = next((path for path in files_read(left) if not _is_below(path, folder or "")), None)
        if strange is not None:
            yield f"It has read {strange}, which is not below the source's folder, {folder}."


def _is_below(path: str, folder: str) -> bool:
    one, other = local_path(path), local_path(folder)
    if one is not None and other is not None:
        return one.is_relative_to(other)
    return path.replace("s3a://", "s3://", 1).startswith(
        folder.replace("s3a://", "s3://", 1).rstrip("/") + "/"
    )
