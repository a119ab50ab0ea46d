"""Envelopes: the effect of a record on a keyed collection, around the columns that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from mzplan.schema.columns import Column

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression


class Envelope(Protocol):
    """Expressions over the records of one source. Those of `given` are over records; the others are over rows
    with the values of `given`, by `names`, and the record as `j` (see parsers.Parsed)."""

    def required(self, columns: Sequence[Column]) -> list[Column]:
        """The columns that a record holds; those of the key have a value."""

    def given(self) -> list[Expression]:
        """Values that the other methods need of each record."""

    @property
    def names(self) -> list[str]:
        """The names of the values of `given`."""

    def own(self, column: Column, value: Expression) -> Expression:
        """A column of the collection: `value`, or the value in the record's key."""

    def change(self) -> Expression:
        """The value of `_change`."""

    def malformed(self, beside: dict[str, Expression], broken: Expression) -> Expression:
        """Whether a record can't be used. `broken`: whether its row can't; `beside`: what came with the
        record, by name."""

    def reason(self, otherwise: Expression) -> Expression:
        """Why the record can't be used; `otherwise` where it is not for the envelope's sake."""
