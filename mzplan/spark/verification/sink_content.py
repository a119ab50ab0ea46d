"""Reads both sides of a sink: the content of its target, and the content that the collection requires.

The target is read first, as of one moment, which shows its last written step. Then the collection is read up
to that step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mzplan.connectors.api.connector import SinkConnector
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.api.targets import Content, HoldsContent, incomparable
from mzplan.connectors.catalogue import Connectors
from mzplan.schema.description import Description
from mzplan.spark.projection import analysed_outputs
from mzplan.spark.verification.former_reads import FormerReads, former_reads
from mzplan.spark.verification.wanted_content import WantedContent
from mzplan.warehouse.step_history import StepHistory
from mzplan.warehouse.step_record import StepRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """The target and the collection, up to the last step that the target holds.

    `first`: the first step whose rows must all be in the target; None if rows of every step may be lost.
    `expected`: the rows that the target should hold, in the target's form, with the columns `_position` and
    MUST.
    `actual`: the rows that the target holds, with the column PLACE.
    `steps`: which steps read the current collection, and which read former generations.
    """

    content: Content
    collection: WantedContent
    first: int | None
    expected: DataFrame
    actual: DataFrame
    steps: FormerReads


class SinkContent:
    """The content of one sink.

    `carries`: whether `_position` includes ROW.
    `content`: the target while it is open.
    """

    def __init__(
        self,
        description: Description,
        resolve: Callable[[Description], ResolvedQuery],
        connectors: Connectors,
        warehouse: str,
        spark: SparkSession,
        *,
        carries: bool = False,
    ):
        source = description.input
        assert source is not None, "a sink reads one collection"
        self._resolve, self._spark, self._carries = resolve, spark, carries
        self.query = resolve(description)
        self._position = connectors.position(source)
        self.sink: SinkConnector = connectors.sink(description.type)
        self._warehouse = warehouse
        self._history = StepHistory(warehouse, (description.id, description.generation), source.place)
        self.content: Content | None = None

    def leave(self) -> None:
        """Close the target."""
        if self.content is not None:
            self.content.close()
            self.content = None

    def sides(self) -> Sides:
        """Read both sides.

        Raises MzplanError MZ177, GoneError, and the errors of a server, the storage or Spark.
        """
        connector = require_content(self.query, self.sink)
        outputs = analysed_outputs(self._spark, self.query, self._position)
        finished = self._history.log.committed()  # read before the target, which has all these steps
        self.content = content = connector.content(self.query, outputs, self._spark)
        records = self._history.read().records
        require_steps(self.query, records, content.frontier, finished)
        held = [record for record in records if record.step <= content.frontier]
        first = _first_complete(held, content)
        steps = former_reads(self._warehouse, self.query, self._history, held)
        target = content.rows(self._spark)
        collection = WantedContent(
            self.query,
            self._resolve,
            self._history.collection,
            self._position,
            self._spark,
            outputs if self._carries else (),
        )
        if held:
            first_complete = first if first is not None else content.frontier + 1
            expected = collection.rows(steps, content, first_complete)
        else:
            expected = collection.empty(content)
        return Sides(
            content=content, collection=collection, first=first, expected=expected, actual=target, steps=steps
        )


def require_content(query: ResolvedQuery, sink: object) -> HoldsContent:
    if not isinstance(sink, HoldsContent):
        source, type_ = query.description.input, query.description.type
        why = f"The target of a sink of type {type_} can't be read."
        hint = f"verify its source: mzplan verify {source.address}" if source is not None else ""
        raise incomparable(query, why, hint)
    return sink


def require_steps(query: ResolvedQuery, records: Sequence[StepRecord], frontier: int, finished: int) -> None:
    """Check that the target's steps belong to this checkpoint and are known. Raises MzplanError.

    `frontier`: the last step that the target claims. `finished`: the last step that Spark had finished.
    """
    known = max((record.step for record in records), default=-1)
    if frontier > known:
        raise incomparable(
            query,
            f"The target has steps up to {frontier}, but the checkpoint only has steps up to {known}. The "
            "checkpoint was restored from a backup, or another sink writes under this sink's name.",
        )
    missing = [record for record in records if frontier < record.step <= finished and record.rows != 0]
    if missing:
        recorded = f"only the steps up to {frontier}" if frontier >= 0 else "none of the sink's steps"
        raise incomparable(
            query,
            f"The target has recorded {recorded}, but not step {missing[-1].step}, which the checkpoint has. "
            "The target was restored from a backup, or its record of steps is gone.",
        )
    if frontier >= 0 and all(record.step != frontier for record in records):
        why = f"The checkpoint no longer knows what step {frontier}, the target's last one, has read."
        raise incomparable(query, why)


def _first_complete(records: Sequence[StepRecord], content: Content) -> int | None:
    """Return the first step that began after all possible losses of the target; None if no step did."""
    if content.since is None:
        return 0
    young = (r.step for r in records if r.time is not None and r.time > content.since)
    return min(young, default=None)
