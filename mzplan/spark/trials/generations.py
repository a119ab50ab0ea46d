"""Compares the collections of two generations of a query."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.types import quoted
from mzplan.model.address import Address
from mzplan.model.diagnostics import error
from mzplan.model.row_comparison import RowsOfBoth
from mzplan.schema.columns import POSITION
from mzplan.spark import failures
from mzplan.spark.collections import read_table
from mzplan.spark.process.command_session import close_command_session, open_command_session
from mzplan.spark.row_comparison import compare_rows
from mzplan.spark.views import own_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Collections:
    """The collections of two generations of a query, by path or URI. `keys`: the key of the newer one."""

    address: Address
    before: str
    after: str
    keys: tuple[str, ...]


def compare_collections(
    collections: Collections,
    by: Sequence[str],
    limit: int,
    starting: Callable[[], None],
    packages: Mapping[str, tuple[str, ...]],
) -> RowsOfBoth:
    """Return how the newest rows of two collections differ, with Spark in this process.

    Rows are compared by the key. If it doesn't identify a row in both, whole rows are compared. `by`: the
    columns to compare by instead; they must identify a row in both. Raises MzplanError; for the last two
    parameters, see open_command_session.
    """
    address = collections.address
    session = open_command_session(starting, packages)
    try:
        with failures.raised_as("MZ064", f"The generations of {address} can't be compared", address):
            return _compared(own_session(session), collections, by, limit)
    finally:
        close_command_session(session)


def _compared(session: SparkSession, collections: Collections, by: Sequence[str], limit: int) -> RowsOfBoth:
    address, paths = collections.address, (collections.before, collections.after)
    old, new = (read_table(session, path).drop(POSITION) for path in paths)
    old_names = {name.lower() for name in old.columns}
    compared = tuple(name for name in new.columns if name.lower() in old_names)
    keys = _named(by or collections.keys, compared)
    if by and not keys:
        raise error("MZ094.by-unknown", address=address, by=by, columns=compared)
    identify = bool(keys) and all(_identify(rows, keys) for rows in (old, new))
    if by and not identify:
        raise error("MZ094.by-several", address=address, by=by)
    return compare_rows(old, new, compared, keys if identify else (), limit)


def _named(wanted: Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns with these names, in any case; none if one is missing."""
    by_name = {name.lower(): name for name in columns}
    found = tuple(by_name[name.lower()] for name in wanted if name.lower() in by_name)
    return found if len(found) == len(wanted) else ()


def _identify(rows: DataFrame, keys: Sequence[str]) -> bool:
    """Return whether no two rows have the same values in these columns."""
    groups = rows.groupBy(*(f.col(quoted(key)) for key in keys))
    return groups.agg(f.count(f.lit(1)).alias("rows")).where("rows > 1").isEmpty()
