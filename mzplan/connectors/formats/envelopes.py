"""Envelopes: what a record does to a keyed collection, beside the columns that it holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from mzplan.schema.columns import Column

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression


class Envelope(Protocol):
    """Expressions over the records of one source. `given` are of records; the others are of rows that hold
    what is given, by its `names`, and the record as `j` (see formats.Parsed)."""

    def required(self, columns: Sequence[Column]) -> list[Column]:
        """The columns that a record holds; those of the key have a value."""

    def given(self) -> list[Expression]:
        """What has to go along with each record for the other methods."""

    @property
    def names(self) -> list[str]:
        """The names of what is given."""

    def own(self, column: Column, value: Expression) -> Expression:
        """A column of the collection: `value`, or what the record's key says."""

    def change(self) -> Expression:
        """`_change`."""

    def malformed(self, beside: dict[str, Expression], broken: Expression) -> Expression:
        """Whether a record can't be used; `broken`: whether it could not, were it a row. `beside`: what came
        with the record, by name."""

    def reason(self, otherwise: Expression) -> Expression:
        """Why it can't."""
