"""Changes the number of partitions of a stopped view's state, by Spark's own repartition (since Spark 4.2).

Spark plans a repartition as a step that reads nothing, writes the state of all operators into the new
partitions, and records the step as done. So a repartition that was killed is an unfinished step. Spark then
refuses to start the query until the same repartition has run again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.host.spark_lines import repartitions_state
from mzplan.model.diagnostics import Diagnostic, error
from mzplan.spark import failures
from mzplan.spark.tasks.progress import TasksUnderWay
from mzplan.spark.views import own_session
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.stored_state import stored_operators

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class StatePartitions:
    """The partitions of one view's state, before its query starts."""

    def __init__(
        self, spark: SparkSession, query: ResolvedQuery, checkpoint: Checkpoint, under_way: TasksUnderWay
    ):
        self._spark, self._query, self._checkpoint = spark, query, checkpoint
        self._under_way = under_way

    def finish(self) -> None:
        """Repeat a repartition that a killed runner has begun.

        Raises OSError, and MzplanError MZ063 or MZ405.
        """
        number = self._checkpoint.log.unfinished_repartition()
        if number is None:
            return
        if not repartitions_state(self._spark.version):
            raise error(
                "MZ405.unfinished", address=self._query.address, number=number, spark=self._spark.version
            )
        self._repartition(number)

    def adjust(self, finish_step: Callable[[], None]) -> Diagnostic | None:
        """Repartition the state if the view declares another number of partitions.

        `finish_step`: finishes an interrupted step. Returns a warning if this Spark can't do it: then the
        query continues with the former number. Raises OSError, and MzplanError MZ063.
        """
        wanted, log = int(self._query.body["partitions"]), self._checkpoint.log
        number = log.partitions(log.newest())
        if number in (None, wanted) or not stored_operators(self._checkpoint.spark):
            return None
        if not repartitions_state(self._spark.version):
            spark = self._spark.version
            return Diagnostic.of(
                "MZ405.other-number",
                address=self._query.address,
                number=number,
                wanted=wanted,
                spark=spark,
            )
        finish_step()
        self._repartition(wanted)
        return None

    def _repartition(self, number: int) -> None:
        address = self._query.address
        manager: Any = own_session(self._spark)._streamingCheckpointManager
        with (
            self._under_way.running(self._spark, address, f"repartition of its state into {number}"),
            failures.raised_as(
                "MZ063",
                f"The state of {address} could not be repartitioned",
                address,
                f"nothing to do: mzplan retries. Or start with an empty state: --replace {address}",
            ),
        ):
            manager.repartition(self._checkpoint.spark, number)
