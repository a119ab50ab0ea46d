"""What the engine says of one run of a query, from the report of the run to the Status.

A field that is added here is stored with the Observation. One with a `measure` is also shown in the JSON of
`status`, among the metrics of the runner and on the page of its query, without another line of code there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from mzplan.model.stored import OPTIONAL, SPARSE, FromMinusOne

DIGITS = 3  # of a measure, after the point


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """The releases that a runner is made of: `kafka` is that of Spark's connector for it."""

    mzplan: str
    spark: str
    delta: str
    kafka: str

    def __str__(self) -> str:
        return f"Spark {self.spark} and Delta {self.delta}"

    def stores_as(self, other: Versions) -> bool:
        """Whether both write a checkpoint with the same Spark and Delta."""
        return (self.spark, self.delta, self.kafka) == (other.spark, other.delta, other.kafka)


class Measure(NamedTuple):
    """How a number of seconds is shown. `title`: to people; `help`: by Prometheus."""

    title: str
    help: str


def measure(title: str, help_: str) -> dict[str, Measure]:
    """The metadata of a field with a Measure."""
    return {"measure": Measure(title, help_)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a QueryReport and an Observation say in the same words.

    - `step`: the number of the last finished micro-batch; -1 before the first one.
    - `input_rows_per_second`, `processed_rows_per_second`: of the last micro-batch.
    - `left_out`: malformed records that this run has skipped or kept aside (`on_error`).
    - `resumed`: where this run has gone on: `step`, the last one before it, and `position`, Spark's entry in
      the offset log after that; None of one that has begun anew. `run_rows`: rows since.
    - `written_with`: with what its checkpoint was last written, where this run has others and no step yet.
    - `backfilled`: the serial of the newest backfill that is done; 0 for none.
    - `batch_seconds`: how long the last micro-batch of this run has taken. `latency_seconds`: how long the
      oldest record of it was on its way when it ended (docs/how-to/watch-a-runner.md); None where that is
      not known.
    """

    step: FromMinusOne = field(default=-1, metadata=OPTIONAL)
    input_rows_per_second: float = field(default=0.0, metadata=OPTIONAL)
    processed_rows_per_second: float = field(default=0.0, metadata=OPTIONAL)
    left_out: int = field(default=0, metadata=OPTIONAL)
    resumed: Mapping[str, Any] | None = None
    run_rows: int | None = None
    written_with: Versions | None = field(default=None, metadata=SPARSE)
    backfilled: int = field(default=0, metadata=SPARSE)
    batch_seconds: float | None = field(
        default=None, metadata=measure("Batch took", "What the last micro-batch has taken.")
    )
    latency_seconds: float | None = field(
        default=None,
        metadata=measure(
            "Latency", "How long the oldest record of the last micro-batch was on its way, where known."
        ),
    )


MEASURES: Mapping[str, Measure] = {
    one.name: one.metadata["measure"] for one in fields(RunFacts) if "measure" in one.metadata
}


def facts_of(run: RunFacts) -> dict[str, Any]:
    """The fields of RunFacts, with measures as exact as they are stored."""
    found = {one.name: getattr(run, one.name) for one in fields(RunFacts)}
    return found | {name: round(found[name], DIGITS) for name in MEASURES if found[name] is not None}
