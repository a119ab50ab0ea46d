"""The content of a sink's target, opened to be compared with the collection: `mzplan verify SINK --content`.

A connector says what the target holds, and what the sink's rows are once they are written there; what differs
between the two is found by `mzplan.spark.content_verification`, the same for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from mzplan.connectors.api.protocols import Output, ResolvedQuery
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError, error

if TYPE_CHECKING:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The result of a compare, up to the step `last` of the sink (-1: it has written nothing). `first`: the
    first step whose rows must all be there, as the target no longer keeps older ones; None where it keeps
    none of those that were written. Numbers of rows: `wanted` by the collection, `found` in the target,
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
