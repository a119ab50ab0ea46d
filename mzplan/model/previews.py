"""What a query of the files gives over the rows that its inputs hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mzplan.model.row_comparison import RowsOfBoth

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewedRows:
    """The first rows of a query, and the number of all.

    - `columns`: the name and the type of each column.
    - `keys`: the columns that identify a row.
    """

    columns: tuple[tuple[str, str], ...]
    keys: tuple[str, ...]
    rows: pa.Table
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePreview:
    """What a changed query gives, beside its change in a plan.

    - `rows`: how its rows differ from the rows of the committed query, or the rows of a new query. None if
      only expectations change, or if there is a `problem`.
    - `problem`: why there is no preview, as sentences; "" if there is one.
    - `masked`: the columns whose values are replaced.
    - `violations`: how many rows violate each new or changed expectation, by name.
    - `checked`: how many rows these expectations check.
    """

    rows: RowsOfBoth | PreviewedRows | None = None
    problem: str = ""
    masked: tuple[str, ...] = ()
    violations: Mapping[str, int] = field(default_factory=dict)
    checked: int = 0
