"""The expectations of a view or source in a trial: counts violations by step, as a runner does."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.frames.merges import latest_rows
from mzplan.schema.expectations import expectations_of
from mzplan.spark.expectations import RowChecks
from mzplan.spark.views import is_relational_view

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class TrialExpectations:
    """The checks of one query's rows, and how many rows of each step (from 0) violate them."""

    def __init__(self, query: ResolvedQuery):
        self._query = query
        self._violations: defaultdict[int, Counter[str]] = defaultdict(Counter)

    @property
    def any(self) -> bool:
        """Whether the query has expectations."""
        return bool(expectations_of(self._query.body))

    def violations_in(self, step: int) -> Mapping[str, int]:
        """Return how many rows of a step violate each expectation, by its name."""
        return dict(self._violations[step])

    @contextmanager
    def rows_to_write(
        self, batch: DataFrame, step: int, stored: Callable[[], DataFrame]
    ) -> Iterator[DataFrame]:
        """Yield the rows of a micro-batch that meet the expectations, after counting the others.

        `stored`: returns the collection's rows before the micro-batch.
        """
        if not self.any:
            yield batch
            return
        batch = batch.repartition(1).persist()  # as a runner does (see relational_streams)
        try:
            yield self.checked(batch, step, stored)
        finally:
            batch.unpersist()

    def checked(self, rows: DataFrame, step: int, stored: Callable[[], DataFrame] | None = None) -> DataFrame:
        """Count the rows that violate an expectation, and return the rows to write.

        Raises MzplanError MZ381 if a row violates an expectation with `on_violation: fail`.
        """
        checks = RowChecks(rows, self._query)
        written = checks.rows_to_write(rows)
        found = checks.violations_in(rows)
        if checks.unique:
            query, before = self._query, stored() if stored is not None else None
            final = written if is_relational_view(query) else latest_rows(written, query.keys, position=True)
            found |= checks.duplicates_in(final, before)
        checks.require_met(found, rows, step)
        self._violations[step].update(found)
        return written
