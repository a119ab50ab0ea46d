"""The one way to a Delta table by delta-rs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltalake import DeltaTable


def open_delta(folder: str, version: int | None = None) -> DeltaTable:
    """A table, of its newest version if none is named. Raises OSError, and deltalake's DeltaError."""
    from deltalake import DeltaTable

    return DeltaTable(folder.replace("s3a://", "s3://", 1), version=version)
