"""Opens Delta tables with delta-rs. No other module does."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltalake import DeltaTable


def open_delta(folder: str, version: int | None = None) -> DeltaTable:
    """Open a table, by default at its newest version. Raises OSError and deltalake's DeltaError."""
    from deltalake import DeltaTable

    return DeltaTable(folder.replace("s3a://", "s3://", 1), version=version)
