"""The result of `mzplan verify VIEW`, which computes a relational view again from all of its input."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputationResult:
    """The result of comparing the rows of a view's query with the view's collection, as of a step.

    - `expected_rows`, `collection_rows`: the number of rows that the query returns, and of the collection.
    - `missing`: how many rows only the query returns.
    - `more`: how many rows only the collection has.
    - `examples`: some of these rows as JSON, each with `-` (missing) or `+` before it.
    - `not_compared`: the columns that weren't compared.
    - `late`: how many late rows the view has dropped; None if that isn't known.
    - `explanation`: why rows may differ although nothing is wrong; "" if every difference is a fault.
    """

    step: int
    expected_rows: int
    collection_rows: int
    missing: int = 0
    more: int = 0
    examples: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()
    late: int | None = 0
    explanation: str = ""

    @property
    def is_equal(self) -> bool:
        """Whether no row differs."""
        return not (self.missing or self.more)

    @property
    def is_wrong(self) -> bool:
        """Whether a row differs and there is no harmless explanation."""
        return not self.is_equal and not self.explanation
