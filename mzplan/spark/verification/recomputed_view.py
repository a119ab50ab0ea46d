"""Compares the recomputed rows of a view (see recomputed_rows) with its collection, as of a step."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.catalogue import Connectors
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.row_hash import row_hash
from mzplan.connectors.frames.types import quoted
from mzplan.model.words import count
from mzplan.schema.expectations import deciding_rows
from mzplan.schema.kinds import resource_kind
from mzplan.schema.sql.view_query import gives_same_rows
from mzplan.spark import failures
from mzplan.spark.collections import read_table
from mzplan.spark.current.affected import computed_digest
from mzplan.spark.process.command_session import QueryToVerify, close_command_session
from mzplan.spark.verification.recomputed_rows import RecomputedRows, not_repeatable
from mzplan.spark.verification.source import Exactness
from mzplan.spark.views import is_current_view
from mzplan.warehouse.checkpoints import collection_path
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.current_steps import CurrentSteps
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.step_record import StepRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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


_EXAMPLES = 5
_LONGEST = 200  # characters of an example


class RecomputedView:
    """One view with its own Spark session, which `close` closes."""

    def __init__(self, session: SparkSession, query: ResolvedQuery, warehouse: str, connectors: Connectors):
        self._session, self._query, self._warehouse = session, query, warehouse
        assert query.checkpoint is not None, "verifying needs the checkpoint"
        self._checkpoint = query.checkpoint
        self._rows = RecomputedRows(
            session=session,
            query=query,
            warehouse=warehouse,
            connectors=connectors,
            checkpoint=query.checkpoint,
        )

    @classmethod
    def open(cls, verified: QueryToVerify) -> RecomputedView:
        """Start Spark in this process. Raises MzplanError."""
        return cls(verified.open_session(), verified.resolve(), verified.warehouse, Connectors())

    def close(self) -> None:
        """Close the session."""
        close_command_session(self._session)

    def compare(self, record: StepRecord) -> RecomputationResult:
        """Compare the recomputed rows with the collection as of a step of the view.

        Raises GoneError if the step's input can't be read again, and MzplanError MZ092 if the query may
        return other rows each time.
        """
        with failures.raised_as_gone("Its inputs or its collection"):
            if is_current_view(self._query):
                wanted, exactness = self._computed_in_batch(record)
                return _compared(wanted, self._collection(record), record, exactness, self._query)
            self._require_one_query()
            with tempfile.TemporaryDirectory(prefix="mzplan-verify-") as folder:
                wanted, exactness = self._rows.of_streams(record.step, folder)
                return _compared(wanted, self._collection(record), record, exactness, self._query)

    def _computed_in_batch(self, record: StepRecord) -> tuple[DataFrame, Exactness]:
        """Return the query's rows over the inputs' versions of a step or, for the last step with a
        difference, of the last step."""
        query = self._query
        steps, log = CurrentSteps(self._checkpoint.folder), self._checkpoint.log
        path = collection_path(self._warehouse, *query.description.place)
        writes = (commit.step for commit in CollectionLog(path, log.query_id).after(record.version or 0))
        is_last = not any(step is not None and step > record.step for step in writes)
        step = steps.before(log.committed() + 1) if is_last else steps.at(record.step)
        if step is None:
            raise GoneError(f"Which versions of its inputs step {record.step} has read is no longer known.")
        if step.computed != computed_digest(query):
            raise not_repeatable(query, "Its query has changed, and no step has computed its rows since.")
        return self._rows.of_current(step)

    def _require_one_query(self) -> None:
        """Raise MZ092 if an earlier query produced rows of the collection."""
        kind = resource_kind(self._query.address.kind, self._query.description.type)
        now = {name: self._query.description.body.get(name) for name in kind.row_properties}
        for begun in self._checkpoint.descriptions().entries:
            earlier = {name: begun.rows.get(name) for name in kind.row_properties}
            if not gives_same_rows(kind, deciding_rows(earlier), deciding_rows(now)):
                why = f"Its query was a different one at step {begun.step}, whose rows stay as they are."
                raise not_repeatable(self._query, why)

    def _collection(self, record: StepRecord) -> DataFrame:
        if record.version is None:
            raise GoneError(f"Which version of the collection holds step {record.step} is unknown.")
        path = collection_path(self._warehouse, *self._query.description.place)
        return read_table(self._session, path, record.version)


def _compared(
    wanted: DataFrame, found: DataFrame, record: StepRecord, exactness: Exactness, query: ResolvedQuery
) -> RecomputationResult:
    columns = [column.name for column in query.columns]
    not_compared = [name for name in columns if exactness.adds_floats and _has_floats(wanted, name)]
    compared = [quoted(name) for name in columns if name not in not_compared]
    sides = [
        rows.select(
            row_hash(rows.select(*compared)).alias("_hash"),
            f.lit(is_wanted).cast("bigint").alias("_wanted"),
            f.lit(1 - is_wanted).cast("bigint").alias("_found"),
            f.to_json(f.struct(*compared)).alias("_row"),
        )
        for rows, is_wanted in ((wanted, 1), (found, 0))
    ]
    sums = [f.sum(name).alias(name) for name in ("_wanted", "_found")]
    hashes = sides[0].unionByName(sides[1]).groupBy("_hash").agg(*sums, f.max("_row").alias("_row"))
    numbers = _numbers(hashes)
    kind = resource_kind(query.address.kind, query.description.type)
    late = record.late if query.body.get("watermarks") or kind.query_property is None else 0
    return RecomputationResult(
        step=record.step,
        **numbers,
        examples=_examples(hashes) if numbers["missing"] or numbers["more"] else (),
        not_compared=tuple(not_compared),
        late=late,
        explanation=_explanation(late, numbers, exactness, query),
    )


def _numbers(hashes: DataFrame) -> dict[str, int]:
    wanted, found = f.col("_wanted"), f.col("_found")
    counted = {
        "expected_rows": wanted,
        "collection_rows": found,
        "missing": f.greatest(wanted - found, f.lit(0)),
        "more": f.greatest(found - wanted, f.lit(0)),
    }
    totals = hashes.agg(*(f.sum(number).alias(name) for name, number in counted.items())).first()
    assert totals is not None
    return {name: int(totals[name] or 0) for name in counted}


def _examples(hashes: DataFrame) -> tuple[str, ...]:
    rows = hashes.where("_wanted <> _found").orderBy("_row").limit(_EXAMPLES).collect()
    return tuple(f"{'-' if row['_wanted'] > row['_found'] else '+'} {row['_row'][:_LONGEST]}" for row in rows)


def _explanation(
    late: int | None, numbers: Mapping[str, int], exactness: Exactness, query: ResolvedQuery
) -> str:
    """Return why the rows may differ although nothing is wrong; "" without such a reason."""
    if not (numbers["missing"] or numbers["more"]):
        return ""
    if exactness.problem:  # of a current view, whose query should return the same rows each time
        return exactness.problem
    if late and not (exactness.one_row_each and max(numbers["missing"], numbers["more"]) > late):
        return f"The view has dropped {count(late, 'late row')}, which its query counts when it runs again."
    if query.keys and exactness.filters_groups and not numbers["missing"]:
        return (
            "Rows of groups that no longer meet a condition of the query stay: Spark doesn't take them back."
        )
    return ""


def _has_floats(rows: DataFrame, name: str) -> bool:
    text = rows.schema[name].dataType.simpleString()
    return "float" in text or "double" in text
