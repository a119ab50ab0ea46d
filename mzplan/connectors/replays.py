"""The output rule of seed 003 for a step that the target has already: what is pushed again is discarded up to
the written length and compared, and what is beyond it is appended.

After a crash Spark runs its last micro-batch again, from the same files of the collection. The rows are the
same, unless `select` or `where` changed meanwhile, or hold something like rand() or current_timestamp().
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mzplan.connectors.interface import SinkRun
from mzplan.connectors.spark_types import quoted
from mzplan.model.diagnostics import Diagnostic, MzplanError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HASH = "_mzplan_hash"
"""The column that carries a row's content hash on its way to a target."""

Measure = Callable[[int | None], tuple[int, str]]
"""Count and content hash of the rows pushed again; of the first so many, or of all (None)."""


def measure(rows: DataFrame, hash_column: str) -> tuple[int, str]:
    """Count and content hash of rows that carry their hash in a column."""
    from pyspark.sql import functions as f

    from mzplan.spark.content_hash import of_sums, sums

    aggregates = sums(f.col(quoted(hash_column)))
    found = rows.agg(*(expression.alias(name) for name, expression in aggregates.items())).first()
    assert found is not None
    content = of_sums(found.asDict())
    return content.rows, str(content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The last step that is written, as the target has recorded it (`hash` None: not known)."""

    run: SinkRun
    step: int
    rows: int
    hash: str | None

    def beyond(self, measure: Measure) -> int:
        """How many of the rows pushed again are beyond the written length, to be appended. Warns, or with
        `compare: fail` raises MzplanError MZ088, when the others are not those that were written."""
        rows, found = measure(None)
        if self.run.query.body["compare"] != "off":
            if rows < self.rows:
                self._differs(f"it has {rows} rows now, and {self.rows} were written")
            elif self.hash is not None:
                again = found if rows == self.rows else measure(self.rows)[1]
                if again != self.hash:
                    self._differs(f"its first {self.rows} rows are not those that were written")
        return max(rows - self.rows, 0)

    def _differs(self, how: str) -> None:
        fails = self.run.query.body["compare"] == "fail"
        found = Diagnostic(
            severity="error" if fails else "warning",
            code="MZ088",
            summary=f"Step {self.step} of {self.run.query.address} is pushed again and is not what it was",
            detail=f"{how[0].upper()}{how[1:]}: select or where changed between two attempts at the step, or "
            "hold something that differs each time, such as rand().",
            hint="what is written stays as it is; "
            + ("look at it, then let the sink go on with compare: warn." if fails else "look at it."),
            address=self.run.query.address,
        )
        if fails:
            raise MzplanError(found)
        self.run.warn(found)


def later_steps(run: SinkRun, step: int, last: int) -> Diagnostic:
    """MZ089: what the target holds already is beyond the step that is pushed."""
    return Diagnostic(
        severity="warning",
        code="MZ089",
        summary=f"The target of {run.query.address} is ahead of its checkpoint",
        detail=f"Step {step} is pushed again, and the target already has steps up to {last}. It is "
        "discarded, and nothing is appended behind later steps. The checkpoint was restored from a backup: "
        "where its steps end elsewhere than those that are written, rows are lost or there twice.",
        hint="compare the target with the collection; to be sure, begin anew: "
        f"mzplan apply --replace {run.query.address} --allow-replace",
        address=run.query.address,
    )
