"""What the target of a sink holds: of its rows (`mzplan verify SINK --content`), of its steps (`mzplan
verify`), and what is reported when it is another one, or when a step is pushed again that it has already.

A connector says what the target holds, and what the sink's rows are once they are written there; what
differs between the two is found by `mzplan.spark.verification.content_comparison`, the same for all. After
a crash Spark runs its last micro-batch again, from the same files of the collection, and under the
description that began it (mzplan.warehouse.checkpoints). The rows are the same, unless that could not be,
or they hold something like rand() or current_timestamp(): the output rule is mzplan.endpoints.replay, here
is what people see.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from mzplan.connectors.api.queries import Output, ResolvedQuery, SinkRun
from mzplan.endpoints.interface import Written
from mzplan.endpoints.replay import LATER
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError, error
from mzplan.warehouse.content_hash import content_hash
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.partitions import with_values
from mzplan.warehouse.replay import read_batches

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Scalar
    from pyspark.sql import DataFrame, SparkSession

PLACE = "_mzplan_place"
"""The column that says where in the target a row is, for people: a file, a partition and an offset."""


class Content(Protocol):
    """What a target holds at one moment, which stays the same however long it is looked at.

    `keys` are the columns that identify a row; empty: rows are only added. `frontier` is the last step of
    the sink whose rows are in it (-1: none): all of them, and none of a later one. `since`: rows that were
    written before then (seconds since the epoch) may be gone, as the target keeps its rows for a while; None:
    it keeps them all. `repeats`: the sink may have written a row more than once. `unseen` says what of it is
    not compared."""

    keys: Sequence[str] = ()
    frontier: int
    since: float | None = None
    repeats: bool = False
    unseen: Sequence[str] = ()

    def rows(self, spark: SparkSession) -> DataFrame:
        """What it holds: the columns that are compared, and PLACE. Of a key that is there more than once in
        the target's own way (the records of a topic), only the last."""

    def held(self, rows: DataFrame, query: ResolvedQuery) -> DataFrame:
        """The sink's rows as the target holds them once they are written: the same columns, of the same
        types, and `_position` as it comes. `query`: the sink as it was when it wrote them."""

    def taken(self) -> int:
        """How many rows were read by now, where Spark does not count them; else 0."""
        return 0

    def close(self) -> None:
        """Leave the server, where something is open."""
        return


@runtime_checkable
class HoldsContent(Protocol):
    """A sink whose target can be read again."""

    def content(self, query: ResolvedQuery, outputs: Sequence[Output], spark: SparkSession) -> Content:
        """What the target holds now. `outputs`: the sink's columns, as Spark analysed them. Raises
        MzplanError: MZ177, and for what a server did."""


class Recorded(Protocol):
    """What a target has recorded of a sink's steps, or still holds of them. `keys`: of each of these keys,
    only the last row of a step counts; empty: all rows do. `partitions`: its partition columns."""

    keys: Sequence[str] = ()
    partitions: Sequence[str] = ()

    def step(self, step: int) -> Written | None:
        """Count and content hash; None where the target knows nothing of that step (any more). Raises
        MzplanError for what a server did, GoneError where the rows of a step can't be read."""

    def close(self) -> None:
        """Leave the server, where something is open."""
        return


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The result of a compare, up to the step `last` of the sink (-1: it has written nothing). `first`: the
    first step whose rows must all be there, as the target no longer keeps older ones; None where it keeps
    none of the written steps. Numbers of rows: `wanted` by the collection, `found` in the target,
    `missing`, `doubled` (there more often than they should), and `more`: in the target, and not among the
    sink's rows, at least not with these values. `repeats`: doubled ones are none that the sink promised to
    avoid. `examples` of the three, by their names. `unseen`: what was not compared."""

    address: Address
    target: str
    first: int | None
    last: int
    wanted: int
    found: int
    missing: int = 0
    doubled: int = 0
    more: int = 0
    repeats: bool = False
    examples: dict[str, tuple[str, ...]]
    unseen: tuple[str, ...] = ()

    def is_equal(self, *, shared: bool) -> bool:
        """Whether each row is there once; `shared`: beside those that others have written."""
        return not (self.missing or (self.doubled and not self.repeats) or (self.more and not shared))


def incomparable(query: ResolvedQuery, why: str, hint: str = "") -> MzplanError:
    """MZ177."""
    return error(
        "MZ177",
        f"The target of {query.address} can't be compared with its collection",
        why,
        hint or f"verify without --content: what the target has recorded (mzplan verify {query.address}).",
        address=query.address,
    )


def nothing_recorded(query: ResolvedQuery, why: str, *, has_content: bool = False) -> MzplanError:
    """MZ177. `has_content`: what the target holds can be compared."""
    also = f"; or what the target holds: mzplan verify {query.address} --content" if has_content else ""
    return error(
        "MZ177",
        f"The target of {query.address} keeps no record of its steps",
        why,
        f"verify its source: mzplan verify {query.description.rows_of.address}{also}",
        address=query.address,
    )


def held(files: Iterable[tuple[str, Mapping[str, Scalar[Any]]]]) -> Written:
    """The rows of Parquet files, with the values of columns that are not in each. Raises GoneError,
    OSError."""

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
    """Report what the replay of a step has warned of, in the log and the status."""
    for text in texts:
        run.warn(later_steps(run, text) if LATER in text else differs(run.query.address, text))


def differs(address: Address, text: str) -> Diagnostic:
    """MZ088: the rows that are pushed again are not those that are written, as `text` says."""
    return Diagnostic(
        severity="warning",
        code="MZ088",
        summary=f"A step of {address} is written again with other rows",
        detail=_WHY.format(text=_sentence(text)),
        hint="nothing was added to what is written, and it stays as it is; compare both.",
        address=address,
    )


def refused(address: Address, text: str) -> MzplanError:
    """MZ088 as an error, with which `compare: fail` refuses a step whose rows are not those that are
    written."""
    hint = "what is written stays as it is; look at it, then let the sink go on with compare: warn."
    return MzplanError(replace(differs(address, text), severity="error", hint=hint))


def later_steps(run: SinkRun, text: str) -> Diagnostic:
    """MZ069: what the target holds already is beyond the step that is pushed, as `text` says."""
    return Diagnostic(
        severity="warning",
        code="MZ069",
        summary=f"The target of {run.query.address} is ahead of its checkpoint",
        detail=f"{_sentence(text)}. It is discarded. The checkpoint was restored, so rows may be missing.",
        hint="compare the target with the collection, or begin anew: "
        f"mzplan apply --replace {run.query.address} --allow-replace",
        address=run.query.address,
    )


def unknown_step(run: SinkRun, step: int, last: int) -> Diagnostic:
    """MZ069 of a step of which the target keeps no record any more, so that its rows can't be counted."""
    return later_steps(run, f"step {step} is written again, {LATER}{last}")


_WHY = (
    "{text}. select or where changed between two attempts at the step, or hold something that differs each "
    "time, such as rand()."
)


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def another_target(query: ResolvedQuery, what: str) -> Diagnostic:
    """MZ043: `what` says where, and what it is instead."""
    refusal = Diagnostic(
        code="MZ043",
        kind="another-upstream",
        summary=f"{query.address} would write to another target",
        detail=f"{what}. The former target has the rows that were written so far.",
        hint="point the connection back; or, if the new target has them, set on_target_change: accept in the "
        f"sink; or write all rows again: mzplan apply --replace {query.address} --allow-replace",
        address=query.address,
        exit_code=ExitCode.REFUSED,
    )
    return refused_or_accepted(query, refusal)


def lacking_steps(query: ResolvedQuery, target: str, first: int, last: int) -> Diagnostic:
    """MZ069 for a target without these steps, which the checkpoint knows to be written: it was restored."""
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    refusal = Diagnostic(
        code="MZ069",
        kind="target-restored",
        summary=f"The target of {query.address} lacks {steps}, which its checkpoint says were written",
        detail=f"{target} does not hold {steps}: it was restored to an older copy",
        hint="put back the copy that holds them; or set on_target_change: accept in the sink and run mzplan "
        f"replay {query.address} --missing; or write all rows again: mzplan apply --replace {query.address} "
        "--allow-replace (with append, set on_replace: truncate).",
        address=query.address,
        exit_code=ExitCode.REFUSED,
    )
    return refused_or_accepted(query, refusal)


def refused_or_accepted(query: ResolvedQuery, refusal: Diagnostic) -> Diagnostic:
    """The refusal; or, where the sink accepts it, a notice of what will be done."""
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
    """MZ063: a checkpoint that does not say what it has read, or where it has written."""
    return Diagnostic(
        code="MZ063",
        summary=f"The checkpoint of {query.address} can't be read",
        detail=str(problem),
        hint="check the warehouse and its rights.",
        address=query.address,
    )


def unfit_target(query: ResolvedQuery, summary: str, why: str, fix: str) -> Diagnostic:
    """Return MZ053: the target can't take the columns of the sink."""
    return Diagnostic(
        code="MZ053",
        kind="target-behind",
        summary=summary,
        detail=f"{query.link.address}: {why}",
        hint=fix,
        address=query.address,
    )
