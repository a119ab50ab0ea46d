"""Runs a view or sink in batch over what its inputs hold. Writes only temporary files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.frames.types import ddl, quoted, read_parquet
from mzplan.model.previews import PreviewedRows
from mzplan.model.row_comparison import RowsOfBoth
from mzplan.model.trials import GivenRecord
from mzplan.schema.columns import CHANGE, POSITION
from mzplan.schema.description import Description
from mzplan.schema.source_columns import columns_of
from mzplan.spark import failures
from mzplan.spark.collections import read_table
from mzplan.spark.expectations import RowChecks, rows_that_stay
from mzplan.spark.row_comparison import compare_rows
from mzplan.spark.sql.projection import outputs_of, rows_where
from mzplan.spark.sql.view_sql import declared
from mzplan.spark.trials.bench import TrialBench
from mzplan.spark.trials.records import ParsedRecords, parse_records
from mzplan.spark.views import compute_of, own_session, rows_of_view

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class InputExtent:
    """Which rows of an input a preview reads.

    - `collection`: the path or URI of its table.
    - `version`: the version that is read; None for the newest.
    - `snapshot`: the version that a view reads as a table (`snapshots`).
    - `files`: the only files that are read; None for all files of the version.
    """

    collection: str
    version: int | None = None
    snapshot: int | None = None
    files: tuple[str, ...] | None = None


class Preview:
    """Previews of one query.

    - `extents`: what is read of each collection, by its id.
    - `records`: what a source's format parses, in place of its collection's rows.
    """

    def __init__(
        self,
        bench: TrialBench,
        extents: Mapping[str, InputExtent],
        folder: str,
        records: Sequence[GivenRecord] = (),
    ):
        self._bench, self._extents, self._folder, self._records = bench, extents, Path(folder), records
        self._parsed: dict[str, ParsedRecords] = {}

    def rows(self, description: Description, where: str | None, limit: int) -> PreviewedRows:
        """Return the rows that a definition gives. Raises MzplanError."""
        with self._failing(description):
            rows, query = self._computed(description, where)
            stored = self._stored(rows, "rows")
            columns = tuple((field.name, field.type or "") for field in outputs_of(rows))
            keys = _keys(query)
            return PreviewedRows(
                columns=columns,
                keys=keys,
                rows=(stored.orderBy(*map(quoted, keys)) if keys else stored).limit(limit).toArrow(),
                count=stored.count(),
            )

    def compare(self, before: Description, after: Description, where: str | None, limit: int) -> RowsOfBoth:
        """Return how the rows of two definitions differ over the same inputs. Raises MzplanError."""
        with self._failing(after):
            old_rows, old_query = self._computed(before, where)
            new_rows, new_query = self._computed(after, where)
            old_names = {field.name.lower() for field in outputs_of(old_rows)}
            outputs = (field.name for field in outputs_of(new_rows))
            compared = tuple(name for name in outputs if name.lower() in old_names)
            keys = _keys(new_query)
            has_key = bool(keys) and _keys(old_query) == keys
            has_key = has_key and {key.lower() for key in keys} <= {name.lower() for name in compared}
            old, new = self._stored(old_rows, "before"), self._stored(new_rows, "after")
            return compare_rows(old, new, compared, keys if has_key else (), limit)

    def violations(self, description: Description) -> tuple[Mapping[str, int], int]:
        """Return how many rows violate each expectation, by name, and the number of rows. Raises MzplanError.

        A view's rows are the rows that its query gives; a source's are the rows of its collection.
        """
        with self._failing(description):
            rows, query = self._all_rows(description)
            checks = RowChecks(rows, query)
            found = checks.violations_in(rows) | checks.duplicates_in(rows, None)
            return found, rows.count()

    def malformed(self, description: Description) -> Mapping[int, str]:
        """Return why records are malformed, by their numbers from 1. Raises MzplanError."""
        return self._parse(description).malformed if self._records else {}

    def _parse(self, description: Description) -> ParsedRecords:
        """Parse the records with a definition, once."""
        if description.digest not in self._parsed:
            self._parsed[description.digest] = parse_records(self._bench, description, self._records)
        return self._parsed[description.digest]

    def _failing(self, description: Description) -> AbstractContextManager[None]:
        address = description.address
        return failures.raised_as("MZ064", f"{address} can't be previewed", address)

    def _computed(self, description: Description, where: str | None) -> tuple[DataFrame, ResolvedQuery]:
        """Return the rows of a definition, and its query."""
        rows, query = self._all_rows(description)
        rows = rows_that_stay(rows, query)
        return (rows_where(rows, where, query) if where else rows), query

    def _all_rows(self, description: Description) -> tuple[DataFrame, ResolvedQuery]:
        """Return the rows of a definition, also those that its expectations drop, and its query."""
        session = own_session(self._bench.spark)
        query = self._bench.resolve(description)
        if self._records:
            return self._parsed_rows(session, description, query), query
        if not description.address.reads_collections:
            extent = self._extents[description.id]
            return declared(read_table(session, extent.collection, extent.version), description), query
        position = self._bench.connectors.position(description)
        tables = {name: self._table(session, description, name) for name in description.inputs}
        compute = compute_of(self._bench.connectors, query)
        return rows_of_view(session, {}, tables, query, position, compute), query

    def _parsed_rows(
        self, session: SparkSession, description: Description, query: ResolvedQuery
    ) -> DataFrame:
        from pyarrow import parquet

        file = self._folder / f"parsed-{len(list(self._folder.iterdir()))}.parquet"
        parquet.write_table(self._parse(description).rows, file)
        rows = read_parquet(session, [str(file)], ddl(query.columns))
        return rows.selectExpr("*", f"CAST(NULL AS STRING) AS {POSITION}")

    def _table(self, session: SparkSession, description: Description, name: str) -> DataFrame:
        read = description.inputs[name]
        extent = self._extents[read.id]
        if name in description.snapshots:
            return read_table(session, extent.collection, extent.snapshot)
        if extent.files is None:
            return read_table(session, extent.collection, extent.version)
        position = self._bench.connectors.position(read)
        rows = read_parquet(session, extent.files, ddl(columns_of(read.type, read.body)))
        return rows.selectExpr("*", f"CAST(NULL AS {position}) AS {POSITION}")

    def _stored(self, rows: DataFrame, name: str) -> DataFrame:
        """Compute rows once, into a temporary file."""
        folder = str(self._folder / name)
        rows.drop(POSITION, CHANGE).write.parquet(folder)
        return self._bench.spark.read.parquet(folder)


def _keys(query: ResolvedQuery) -> tuple[str, ...]:
    if query.address.writes_collection:
        return query.keys
    own = tuple(query.body.get("key") or ()) if query.body.get("mode", "append") != "append" else ()
    return own or query.keys
