"""Reads a sink's target for `mzplan verify`, and makes the diagnostics about targets and repeated steps.

A connector returns the target's content, and the sink's rows in the form in which the target holds them.
`mzplan.spark.verification.content_comparison` compares the two.

After a crash, Spark repeats its last micro-batch, with the same files and the description under which it
began (mzplan.warehouse.checkpoints). Usually its rows are the same. They differ if they contain, for example,
rand() or current_timestamp(). `mzplan.endpoints.replay` decides about such steps; the messages are here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from mzplan.connectors.api.queries import Output, ResolvedQuery, SinkRun
from mzplan.endpoints.interface import Step, Written
from mzplan.endpoints.replay import LATER
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.foreign_changes import ForeignChanges
from mzplan.warehouse.partitions import with_values
from mzplan.warehouse.rows.content_hash import content_hash
from mzplan.warehouse.rows.replay import read_batches

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Scalar
    from pyspark.sql import DataFrame, SparkSession

PLACE = "_mzplan_place"
"""The column that says, for people, where in the target a row is: a file, or a partition and an offset."""


class Content(Protocol):
    """The content of a target at one moment. Later writes don't change it.

    - `keys`: the columns that identify a row; empty if rows are only added.
    - `frontier`: the last step that the content includes. The content has all rows up to this step, and no
      rows of later steps. -1 if it includes no step.
    - `since`: rows written before this time (seconds since the epoch) may have expired; None if rows never
      expire.
    - `repeats`: whether the sink may have written a row more than once.
    - `not_compared`: the parts that aren't compared.
    """

    keys: Sequence[str] = ()
    frontier: int
    since: float | None = None
    repeats: bool = False
    not_compared: Sequence[str] = ()

    def rows(self, spark: SparkSession) -> DataFrame:
        """Return the target's rows: the compared columns, and the column PLACE.

        If the target itself keeps several records of a key, as a topic does, only the last record is
        included."""

    def stored_form(self, rows: DataFrame, query: ResolvedQuery) -> DataFrame:
        """Return the sink's rows as the target holds them after writing: the same columns and types.

        `_position` is unchanged. `query` is the sink as it was when it wrote the rows."""

    def rows_read(self) -> int:
        """Return how many rows were read so far, or 0 if Spark counts them."""
        return 0

    def close(self) -> None:
        """Close the connection to the server, if one is open."""
        return


@runtime_checkable
class HoldsContent(Protocol):
    """A sink whose target can be read again."""

    def content(self, query: ResolvedQuery, outputs: Sequence[Output], spark: SparkSession) -> Content:
        """Return the target's current content. `outputs` are the sink's columns, as Spark analysed them.
        Raises MzplanError MZ177, and for a server's errors."""


class Recorded(Protocol):
    """A target's record of a sink's steps, or the rows of these steps that it still holds.

    - `keys`: only the last row of each key in a step counts; empty if all rows count.
    - `partitions`: the target's partition columns.
    """

    keys: Sequence[str] = ()
    partitions: Sequence[str] = ()

    def step(self, step: int) -> Written | None:
        """Return the step's row count and content hash, or None if the target doesn't know the step.

        Raises MzplanError for a server's errors, and GoneError if the step's rows can't be read."""

    def foreign_changes(self, first: Step, *, shared: bool) -> ForeignChanges | None:
        """Return what other writers changed in the target since a step; None if nothing, or if unknown.

        `shared`: other writers may add rows. Raises OSError."""
        return None

    def close(self) -> None:
        """Close the connection to the server, if one is open."""
        return


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonResult:
    """The comparison of a target with the rows that its sink should have written.

    - `first`: the first step whose rows must all be in the target. The rows of earlier steps may have
      expired. None if the rows of every step may have expired.
    - `last`: the last step that was compared; -1 if the sink has written nothing.
    - `expected_rows`, `target_rows`: the number of rows that the target should have, and has.
    - `missing`: how many rows the target is missing.
    - `doubled`: how many rows the target has more often than it should.
    - `more`: how many rows of the target the sink has never written, or only with other values.
    - `repeats`: whether the sink is allowed to write rows twice.
    - `examples`: some rows of the groups `missing`, `doubled` and `more`, by the name of the group.
    - `not_compared`: the parts that weren't compared.
    """

    address: Address
    target: str
    first: int | None
    last: int
    expected_rows: int
    target_rows: int
    missing: int = 0
    doubled: int = 0
    more: int = 0
    repeats: bool = False
    examples: dict[str, tuple[str, ...]]
    not_compared: tuple[str, ...] = ()

    def is_equal(self, *, shared: bool) -> bool:
        """Whether the target has each row once.

        `shared`: other writers use the target, so `more` is allowed.
        """
        return not (self.missing or (self.doubled and not self.repeats) or (self.more and not shared))


def incomparable(query: ResolvedQuery, why: str, hint: str = "") -> MzplanError:
    """Return MZ177 for a target that can't be compared with its collection."""
    return error(
        "MZ177.target-cannot",
        address=query.address,
        why=why,
        how=hint or f"verify the target's record instead, without --content: mzplan verify {query.address}.",
    )


def nothing_recorded(query: ResolvedQuery, why: str, *, has_content: bool = False) -> MzplanError:
    """Return MZ177 for a target without a record of its steps. `has_content`: verify can read its rows."""
    also = (
        f"; or compare the target's content: mzplan verify {query.address} --content" if has_content else ""
    )
    return error(
        "MZ177.target-keeps",
        address=query.address,
        why=why,
        resource=query.description.rows_of.address,
        also=also,
    )


def hash_files(files: Iterable[tuple[str, Mapping[str, Scalar[Any]]]]) -> Written:
    """Return the count and content hash of the rows of Parquet files.

    Each file comes with the values of its partition columns. Raises GoneError, OSError."""

    def batches() -> Iterator[RecordBatch]:
        for file, values in files:
            try:
                for batch in read_batches(file):
                    yield with_values(batch, values)
            except FileNotFoundError:
                raise GoneError(f"{file}, which the target says this step has written, is gone.") from None

    hashed = content_hash(batches())
    return Written(rows=hashed.rows, digest=str(hashed))


def warn_repeated(run: SinkRun, texts: Iterable[str]) -> None:
    """Report the warnings of a repeated step in the log and the status."""
    for text in texts:
        run.warn(later_steps(run, text) if LATER in text else different_rows(run.query.address, text))


def different_rows(address: Address, text: str) -> Diagnostic:
    """Return MZ088: the rows of a repeated step differ from the target's rows, as `text` says."""
    return Diagnostic.of("MZ088.step-written", address=address, why=_WHY.format(text=_sentence(text)))


def different_rows_error(address: Address, text: str) -> MzplanError:
    """Return MZ088 as an error, for `compare: fail`."""
    hint = "the written rows stay as they are; check them, then let the sink continue with compare: warn."
    return MzplanError(replace(different_rows(address, text), severity="error", hint=hint))


def later_steps(run: SinkRun, text: str) -> Diagnostic:
    """Return MZ069: the target already holds later steps than the one to write, as `text` says."""
    return Diagnostic.of("MZ069.target-ahead", address=run.query.address, sentence=_sentence(text))


def unknown_step(run: SinkRun, step: int, last: int) -> Diagnostic:
    """Return MZ069 for a step whose record the target no longer has, so its rows can't be compared."""
    return later_steps(run, f"step {step} is written again, {LATER}{last}")


_WHY = (
    "{text}. Between two attempts at the step, select or where changed, or they contain an expression that "
    "differs each time, such as rand()."
)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def another_target(query: ResolvedQuery, difference: str) -> Diagnostic:
    """Return MZ043: the sink would write to another target. `difference` says where they differ."""
    refusal = Diagnostic.of("MZ043.write-another", address=query.address, difference=difference)
    return refused_or_accepted(query, refusal)


def missing_steps(query: ResolvedQuery, target: str, first: int, last: int) -> Diagnostic:
    """Return MZ069: the target was restored to a copy without steps that the checkpoint has recorded."""
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    refusal = Diagnostic.of("MZ069.target-missing", address=query.address, steps=steps, target=target)
    return refused_or_accepted(query, refusal)


def refused_or_accepted(query: ResolvedQuery, refusal: Diagnostic) -> Diagnostic:
    """Return the refusal, or a notice that the sink continues if it accepts another target."""
    if query.body.get("on_target_change") != "accept":
        return refusal
    return Diagnostic(
        severity="notice",
        code=refusal.code,
        kind=refusal.kind,
        summary=f"{query.address} continues with its next step there (on_target_change: accept)",
        detail=refusal.detail.partition(". ")[0] + ".",
        address=query.address,
    )


def unreadable(query: ResolvedQuery, problem: OSError) -> Diagnostic:
    """Return MZ063 for a checkpoint whose record of the upstream or target can't be read."""
    return Diagnostic.of("MZ063.checkpoint-cannot", address=query.address, problem=problem)


def unfit_target(query: ResolvedQuery, summary: str, why: str, fix: str) -> Diagnostic:
    """Return MZ053: the target can't take the columns of the sink."""
    resource = query.connection.address if query.connection is not None else query.address
    return Diagnostic.of(
        "MZ053.object", address=query.address, what=summary, resource=resource, why=why, fix=fix
    )
