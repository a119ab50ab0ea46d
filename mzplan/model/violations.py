"""How often the rows of a source or view have violated its expectations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ViolationCount:
    """The rows that have violated one expectation, in all steps of a query's generation.

    `last_step`: the last step with such a row; None before the first one.
    """

    rows: int = 0
    last_step: int | None = None
