"""The one way to a Delta table by delta-rs, which trusts all that it reads: it ends the process at what is
nested deeply, and follows the log wherever that leads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.folder import ensure_footer, ensure_readable_log

if TYPE_CHECKING:
    from deltalake import DeltaTable


def open_delta(folder: str, version: int | None = None, *, whole: bool = False) -> DeltaTable:
    """A table, of its newest version if none is named. `whole`: no link is followed to its rows either.
    Raises OSError, OutsideError (MZ283) among them, and deltalake's DeltaError."""
    from deltalake import DeltaTable

    ensure_readable_log(folder, whole=whole)
    CollectionLog(folder).ensure_inside(version)
    return DeltaTable(folder.replace("s3a://", "s3://", 1), version=version)


def ensure_readable_rows(table: DeltaTable) -> None:
    """Before delta-rs reads its rows. Raises OSError; FileNotFoundError for a file that is not there."""
    for file in table.file_uris():
        ensure_footer(file)
