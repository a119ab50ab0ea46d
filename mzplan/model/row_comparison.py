"""How two sets of rows differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsOfBoth:
    """How the rows before and after differ: counts, and the first rows of each kind.

    - `compared`: the columns that both have.
    - `keys`: the columns by which rows were compared; empty if as a whole.
    - `changed`: rows with one key and other values: row by row in `changed_before` and `changed_after`.
    """

    compared: tuple[str, ...]
    keys: tuple[str, ...]
    same: int
    only_before: int
    only_after: int
    changed: int
    before_rows: pa.Table
    after_rows: pa.Table
    changed_before: pa.Table
    changed_after: pa.Table
