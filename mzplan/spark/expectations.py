"""Checks the rows of each step against the expectations of their source or view, and counts violations.

The count is recorded with the step before the rows are written (see mzplan.warehouse.rows.violations).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, reduce
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.formats.row_letters import row_letters_of
from mzplan.connectors.frames import functions as f
from mzplan.model.diagnostics import error
from mzplan.model.violations import ViolationCount
from mzplan.model.words import count
from mzplan.schema.columns import CHANGE, DELETE, POSITION, UPSERT
from mzplan.schema.expectations import DEAD_LETTER, REMOVING, Expectation, expectations_of, keeps_letters
from mzplan.schema.sql.expressions import parse_where
from mzplan.spark.collections import read_table
from mzplan.spark.interrupted_steps import record_description
from mzplan.spark.sql.projection import row_condition
from mzplan.spark.unique_rows import count_duplicates, final_rows, stored_rows
from mzplan.spark.views import is_relational_view
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.rows.violations import Violations

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

_HINT = 'write a condition of Spark SQL over the columns of one row, such as "amount > 0"'
Counted = Callable[[Mapping[str, ViolationCount]], None]
"""Takes the violations of all steps so far, by expectation."""


class StepExpectations:
    """The expectations of a query in one run: `checked` takes the rows of each step.

    `counted` takes the violations so far, at the start and after a step with a violation.
    `compares_positions`: whether the step's merge ignores changes that are older than the stored rows.
    """

    def __init__(
        self,
        query: ResolvedQuery,
        checkpoint: Checkpoint,
        collection: str,
        counted: Counted,
        *,
        compares_positions: bool = False,
    ):
        self._query, self._checkpoint, self._collection = query, checkpoint, collection
        self._compares_positions = compares_positions
        self._counted, self._may_repeat = counted, True
        self._letters = row_letters_of(query)
        self._checks: RowChecks | None = None

    @property
    def any(self) -> bool:
        """Whether the query has expectations."""
        return bool(expectations_of(self._query.body))

    def begin(self) -> None:
        """Record from which step on a source has these expectations, for `verify`. Raises OSError."""
        if not self.any and not self._checkpoint.descriptions().entries:
            return
        first = self._checkpoint.log.committed() + 1
        first += self._is_written(first)  # Spark repeats it, but its rows stay as they are
        record_description(self._query.description, self._checkpoint, first)

    def report(self) -> None:
        """Call `counted` with the violations so far. Raises OSError."""
        if self.any:
            self._report(self._violations.total())

    def letter_reason(self, batch: DataFrame, step: int) -> Expression | None:
        """Return why the record of a source's row becomes a dead letter, NULL if it doesn't.

        Returns None if no record of the step can."""
        if not keeps_letters(self._query.body) or (self._may_repeat and self._is_written(step)):
            return None
        self._checks = self._checks or RowChecks(batch, self._query)
        return self._checks.letter_reason(batch)

    @contextmanager
    def checked(self, batch: DataFrame, step: int, *, cached: bool = False) -> Iterator[DataFrame]:
        """Count the rows of a step that violate an expectation, and yield the rows to write.

        The dead letters of a view are stored then. `cached`: the caller keeps the rows in memory; otherwise,
        this does. Raises MzplanError MZ381 if a row violates an expectation with `on_violation: fail`.
        """
        if not self.any:
            yield batch
            return
        if not cached:
            batch.persist()  # so that the rows that are written are the rows that were counted
        try:
            self._checks = checks = self._checks or RowChecks(batch, self._query)
            if not (self._may_repeat and self._is_written(step)):
                self._count(checks, batch, step)
            yield checks.rows_to_write(batch)
            self._may_repeat = False
        finally:
            if not cached:
                batch.unpersist()

    def nothing_written(self, step: int) -> None:
        """Remove the count of an earlier attempt at a step that now writes no rows. Raises OSError."""
        if self.any and self._may_repeat:
            self._report(self._violations.record(step, {}))
            self._may_repeat = False

    def _count(self, checks: RowChecks, batch: DataFrame, step: int) -> None:
        may_repeat = self._may_repeat
        found = checks.violations_in(batch) | self._duplicates(checks, batch)
        checks.require_met(found, batch, step)
        if any(found.values()) or self._may_repeat:  # it may replace the record of an earlier attempt
            self._may_repeat = True
            self._report(self._violations.record(step, found))
        if self._letters is not None and (may_repeat or checks.has_letters(found)):
            reason = checks.letter_reason(batch)
            assert reason is not None  # the query keeps letters
            self._letters.store(batch, reason, step, may_repeat=may_repeat)

    def _duplicates(self, checks: RowChecks, batch: DataFrame) -> dict[str, int]:
        """Return how many rows violate each expectation with `unique`, by its name."""
        if not checks.unique:
            return {}
        query = self._query
        table = read_table(batch.sparkSession, self._collection)
        stored = stored_rows(table, query.columns)
        changes = final_rows(
            checks.rows_to_write(batch),
            stored,
            query.keys,
            is_ordered=not is_relational_view(query),
            compares_positions=self._compares_positions,
        )
        return checks.duplicates_in(changes, stored)

    def _report(self, total: Mapping[str, ViolationCount]) -> None:
        names = (expectation.name for expectation in expectations_of(self._query.body))
        self._counted({name: total.get(name, ViolationCount()) for name in names})

    def _is_written(self, step: int) -> bool:
        """Return whether the collection holds the step's rows: a killed runner has counted them."""
        return CollectionLog(self._collection).has_step(self._checkpoint.log.query_id(), step)

    @cached_property
    def _violations(self) -> Violations:
        return Violations(self._checkpoint.folder)


class RowChecks:
    """The expectations of a query, as SQL that Spark has accepted over its rows.

    Raises MzplanError MZ019 for other SQL.
    """

    def __init__(self, rows: DataFrame, query: ResolvedQuery):
        self._query = query
        expectations = expectations_of(query.body)
        self.unique = tuple(expectation for expectation in expectations if expectation.unique)
        self._checks = [
            (expectation, row_condition(rows, expectation.check, query, _place(expectation), _HINT))
            for expectation in expectations
            if not expectation.unique
        ]

    def violations_in(self, rows: DataFrame) -> dict[str, int]:
        """Return how many rows violate each expectation about one row, by its name."""
        if not self._checks:
            return {}
        counts = (
            f.count_if(_is_violated(sql, rows)).alias(f"n{number}")
            for number, (_, sql) in enumerate(self._checks)
        )
        found = rows.agg(*counts).first()
        assert found is not None
        return {expectation.name: int(n) for (expectation, _), n in zip(self._checks, found, strict=True)}

    def duplicates_in(self, changes: DataFrame, stored: DataFrame | None) -> dict[str, int]:
        """Return how many changes violate each expectation with `unique`, by its name.

        `changes`, `stored`: see mzplan.spark.unique_rows.count_duplicates.
        """
        return {e.name: count_duplicates(changes, stored, e.unique, self._query.keys) for e in self.unique}

    def require_met(self, found: Mapping[str, int], rows: DataFrame, step: int) -> None:
        """Raise MzplanError MZ381 if rows violate an expectation with `on_violation: fail`."""
        for expectation, sql in (*self._checks, *((expectation, "") for expectation in self.unique)):
            if expectation.on_violation == "fail" and found[expectation.name]:
                raise error(
                    "MZ381.violated",
                    address=self._query.address,
                    name=expectation.name,
                    violating=count(
                        found[expectation.name],
                        f"row of step {step} violates",
                        f"rows of step {step} violate",
                    ),
                    check=str(expectation),
                    place=self._first_place(sql, rows) if sql else "",
                )

    def rows_to_write(self, rows: DataFrame) -> DataFrame:
        """Return the rows without those that an expectation removes (`on_violation: drop`, `dead-letter`).

        If the collection has a key, such a row deletes its key: no earlier row may stay in its place.
        """
        violated = self.is_dropped(rows)
        if violated is None:
            return rows
        if not self._query.keys:
            return rows.where(~violated)
        change = f.col(CHANGE) if CHANGE in rows.columns else f.lit(UPSERT)
        return rows.withColumn(CHANGE, f.when(violated, f.lit(DELETE)).otherwise(change))

    def is_dropped(self, rows: DataFrame) -> Expression | None:
        """Return whether a row violates an expectation that removes it; None without one."""
        dropping = (_is_violated(sql, rows) for e, sql in self._checks if e.on_violation in REMOVING)
        violated = next(dropping, None)
        return reduce(lambda one, other: one | other, dropping, violated) if violated is not None else None

    def letter_reason(self, rows: DataFrame) -> Expression | None:
        """Return why a row becomes a dead letter, NULL if it doesn't; None if no row can."""
        reasons = [
            f.when(_is_violated(sql, rows), f.lit(f"it violates the expectation {e.name}: {e}"))
            for e, sql in self._checks
            if e.on_violation == DEAD_LETTER
        ]
        return f.coalesce(*reasons) if reasons else None

    def has_letters(self, found: Mapping[str, int]) -> bool:
        """Return whether rows become dead letters. `found`: the violations, by expectation."""
        return any(found[e.name] for e, _ in self._checks if e.on_violation == DEAD_LETTER)

    def _first_place(self, sql: str, rows: DataFrame) -> str:
        """Return where a source's upstream has the first violating row, as a sentence; "" if unknown.

        Names no values of the row, because they may be confidential.
        """
        if self._query.description.reads:
            return ""
        violating = rows.where(_is_violated(sql, rows)).orderBy(POSITION)
        row = violating.select(f.to_json(POSITION).alias("at")).first()
        try:
            position = json.loads(row["at"]) if row is not None else {}
        except (TypeError, ValueError):
            return ""
        parts = (f"{name} {value}" for name, value in position.items() if isinstance(value, str | int))
        return f" The first one is at {', '.join(parts)}." if position else ""


def rows_that_stay(rows: DataFrame, query: ResolvedQuery) -> DataFrame:
    """Return the rows that a collection would have, of all rows that its query returns."""
    dropped = RowChecks(rows, query).is_dropped(rows)
    return rows.where(~dropped) if dropped is not None else rows


def recomputed_rows_that_stay(rows: DataFrame, query: ResolvedQuery) -> DataFrame:
    """Return the rows that stay of the rows that a query computes again.

    Raises GoneError if an expectation would remove other rows now.
    """
    for expectation in expectations_of(query.body):
        varies = parse_where(expectation.check).varies if expectation.on_violation in REMOVING else None
        if varies is not None:
            raise GoneError(f"Its expectation {expectation.name} has {varies[0]}, which changes each time.")
    return rows_that_stay(rows, query)


def _place(expectation: Expectation) -> str:
    return f"expect.{expectation.name}.{expectation.property}"


def _is_violated(sql: str, rows: DataFrame) -> Expression:
    """Return whether a row doesn't meet a condition; false for a row that deletes its key."""
    violated = f.coalesce(~f.expr(sql), f.lit(False))
    return violated & ~f.col(CHANGE).eqNullSafe(DELETE) if CHANGE in rows.columns else violated
