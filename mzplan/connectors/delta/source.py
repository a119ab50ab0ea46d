"""The delta source: Spark's own stream of a table, or of its change feed. Other programs write the table.

Delta's offsets are versions of one table, so mzplan identifies the table by its id. Checks before a query
starts read the table's log without Spark. If the connection has its own credentials, only Spark can read the
log, and it refuses a different table when the query runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.connector import SourceConnector
from mzplan.connectors.api.queries import Probe, ResolvedQuery
from mzplan.connectors.api.upstreams import another_upstream, list_names, start_over_hint
from mzplan.connectors.delta.table import column_types, count_lost_rows, holds, open_table
from mzplan.connectors.formats.parsers import column_parser
from mzplan.connectors.formats.records import MARK, Records, check_records
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.merges import CHANGE_FEED, exists_after, with_change
from mzplan.connectors.frames.types import ddl_of, quoted, row_clock
from mzplan.connectors.network.aws import ROLE as AWS
from mzplan.connectors.network.aws import uri_of, use_s3
from mzplan.connectors.network.folders import folder_of, folder_problems, route
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.losses import FirstCopy, Loss
from mzplan.schema.columns import canonical_type, spark_type
from mzplan.schema.source_columns import record_columns
from mzplan.warehouse.checkpoint_log import table_of
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.folder import decoding
from mzplan.warehouse.step_index import StepIndex

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

_PLACE = "_mzplan_place"
_UPWARDS = r"(?i)/(\.|%2e){2}(/|%2f|$)"
_FEED = "delta.enableChangeDataFeed"


class DeltaSource(SourceConnector):
    """Reads the table's rows, then the rows added to it; with a key, all its changes."""

    position = "STRUCT<version: BIGINT, is_there: INT, file: STRING, row: BIGINT>"
    """With a key, `version` is the version of the change. `is_there` is 1 for a row that exists after the
    change and 0 for a removed row; an update also removes the old row. Without a key, `file` is the row's
    file, and `row` grows along the file."""

    def probe(self, query: ResolvedQuery) -> Probe:
        """Check that the table exists, has the declared columns and, with a key, a change feed."""
        folder = self.folder(query)
        problems = folder_problems(query, folder)
        if problems or not self.reads_log(query):
            return Probe(diagnostics=tuple(problems))
        try:
            id_ = CollectionLog(folder).table_id()
            table = open_table(folder)
        except OSError:
            id_ = None
        if id_ is None:
            return Probe(diagnostics=_missing_table(query, folder))
        diagnostics = tuple(_unfit(query, folder, table)) if table is not None else ()
        return Probe(diagnostics=diagnostics, upstream={"type": "delta", "table": id_})

    def compare(
        self, query: ResolvedQuery, recorded: Mapping[str, Any], found: Mapping[str, Any]
    ) -> Diagnostic | None:
        if recorded.get("table") == found.get("table"):
            return None
        why = (
            f"{self.route(query)}: the table's id is {found.get('table')} instead of {recorded.get('table')}"
        )
        return another_upstream(query, "table", f"{why}: it was re-created")

    def check_position(self, query: ResolvedQuery, position: str) -> Diagnostic | None:
        """Return MZ067 if the table's log no longer has the next version to read. Return MZ043 if the log
        ends before the last version read, because the table is then an older copy."""
        if not self.reads_log(query):
            return None
        folder = self.folder(query)
        try:
            with decoding("an offset"):
                offset = json.loads(position)
                last, next_version = _last_version(offset), int(offset["reservoirVersion"])
            log = CollectionLog(folder)
            versions = log.versions()
            mismatch = self._history_mismatch(query, log)
        except OSError:  # the start reports the problem
            return None
        if mismatch is not None:
            return mismatch
        if not versions or offset.get("isStartingVersion"):  # the first snapshot is still being read
            return None
        if versions[-1] < last:
            why = f"{self.route(query)}: version {last} was read, but the newest is {versions[-1]}"
            return another_upstream(query, "table", f"{why}: an older copy was restored")
        if versions[0] > next_version:
            return self.too_late(query, next_version, versions[0])
        return None

    def folder(self, query: ResolvedQuery) -> str:
        """Return the table's folder."""
        return folder_of(query)

    def reads_log(self, query: ResolvedQuery) -> bool:
        """Return whether the table's log can be read without Spark."""
        return AWS not in query.link.connections

    def too_late(self, query: ResolvedQuery, next_version: int, version: int) -> Diagnostic:
        """Return MZ067: the log begins at `version`, after the next version to read."""
        return Diagnostic.of(
            "MZ067.no-longer",
            address=query.address,
            folder=self.folder(query),
            next_version=next_version,
            version=version,
            start_over_hint=start_over_hint(query),
        )

    def route(self, query: ResolvedQuery) -> str:
        return route(query)

    def loss(self, query: ResolvedQuery, former: Checkpoint) -> Loss | None:
        """Return the number of rows that other programs have deleted. With a key, return None, because the
        collection doesn't have deleted rows either."""
        end, _ = former.log.offset(former.log.newest())
        if query.keys or not self.reads_log(query) or end is None:
            return None
        log = CollectionLog(self.folder(query))
        if self._history_mismatch(replace(query, checkpoint=former), log) is not None:
            where = f"{self.route(query)}: an older copy of the table was restored"
            return Loss(lost=None, read=None, unit="rows", where=where)
        first_end, newest = _first_end(former), StepIndex(former).last()
        counts = count_lost_rows(
            log, _last_version(first_end) if first_end is not None else 0, _last_version(end)
        )
        lost, read = counts.lost_rows, counts.read_rows
        if newest is not None and newest.total is not None and read is not None and newest.total > read:
            # The log begins after the source's first version.
            lost, read = lost + newest.total - read if lost is not None else None, newest.total
        if lost == 0:
            return None
        versions = [f"{version:,}" for version in counts.versions]
        where = f"{self.route(query)}: rows were deleted by versions {list_names(versions, 'versions')}"
        if not versions:
            first_kept = f"{log.oldest():,}, where its log begins"
            where = f"{self.route(query)}: rows were deleted before version {first_kept}"
        return Loss(lost=lost, read=read if lost is not None else None, unit="rows", where=where)

    def guard(self, query: ResolvedQuery) -> Callable[[int], None] | None:
        """Return a check that the table still has the last version read. It then records the last version
        that the new step reads."""
        checkpoint = query.checkpoint
        if checkpoint is None or not self.reads_log(query):  # only Spark can read that log
            return None
        log = CollectionLog(self.folder(query))

        def check(step: int) -> None:
            if (mismatch := self._history_mismatch(query, log)) is not None:
                raise MzplanError(mismatch)
            version = _last_version(checkpoint.log.offset(step)[0])
            if (commit := log.digest(version)) is not None and checkpoint.last_read() != (version, commit):
                checkpoint.record_last_read(version, commit)

        return check

    def first_copy(self, checkpoint: Checkpoint, body: Mapping[str, Any]) -> FirstCopy:
        """The first copy is Delta's own initial snapshot: the version of the table at the first start."""
        position, _ = checkpoint.log.offset(checkpoint.log.committed())
        is_initial = isinstance(position, dict) and bool(position.get("isStartingVersion"))
        table = table_of(position)
        positions = {str(table): _last_version(position)} if table is not None else {}
        return FirstCopy(read=(0 if is_initial else 1,), ends=(1,), positions=positions)

    def migrate_checkpoint(self, earlier: Checkpoint, later: Checkpoint) -> None:
        """Copy the record of the last version read."""
        if (read := earlier.last_read()) is not None:
            later.record_last_read(*read)

    def stream(self, spark: SparkSession, query: ResolvedQuery) -> DataFrame:
        body, folder = query.body, self.folder(query)
        use_s3(spark, query, folder)
        reader = spark.readStream.format("delta").option("maxFilesPerTrigger", body["max_files_per_trigger"])
        if query.keys:
            reader = reader.options(**CHANGE_FEED)
        elif body.get("on_change") == "skip":
            reader = reader.option("skipChangeCommits", "true")
        columns = record_columns(query.description.type, body)
        table = reader.load(folder)
        types = {field.name: _type_of(field.dataType) for field in table.schema.fields}
        if mismatch := _column_mismatch(query, folder, types):  # perhaps only Spark can read the table
            raise MzplanError(mismatch)
        values = [f.col(quoted(c.name)).cast(spark_type(c.type)).alias(c.name) for c in columns]
        file = file_below(uri_of(spark, folder), folder)
        rows = table.select(*values, place_of(file, is_feed=bool(query.keys)).alias(_PLACE))
        records = Records(rows=rows, position=f.col(_PLACE), where=_where)
        checked_rows = check_records(records, column_parser(columns), columns, body["on_error"])
        return with_change(checked_rows, "is_there") if query.keys else checked_rows

    def _history_mismatch(self, query: ResolvedQuery, log: CollectionLog) -> Diagnostic | None:
        """Return MZ043 if the table no longer has the commit that was read last: it is then another copy.
        Returns None if it has that commit, or if that is unknown. Raises OSError."""
        read = query.checkpoint.last_read() if query.checkpoint is not None else None
        if read is None:
            return None
        version, commit = read
        found = log.digest(version)
        newest = max(log.versions(), default=version)
        if found == commit or (found is None and newest >= version):  # Delta removes old entries of its log
            return None
        difference = f"the newest is {newest}" if found is None else "that version is now another commit"
        why = f"{self.route(query)}: version {version} was read, and {difference}"
        return another_upstream(query, "table", f"{why}: an older copy was restored")


def _type_of(type_: DataType) -> str:
    return canonical_type(ddl_of(type_)) or type_.simpleString()


def file_below(uri: str, folder: str) -> Any:
    """Return the file that a row comes from, as an expression. It raises an error for a file outside the
    table's folder, whose URI is `uri`: a table's log may name such files."""
    # Hadoop and Spark disagree about how many slashes a local path begins with.
    root, name = _plain(f.lit(f"{uri.rstrip('/')}/")), f.input_file_name()
    stays = f.startswith(_plain(name), root) & ~name.rlike(_UPWARDS)
    why = f"{MARK}[MZ283]: the log of {folder} names a file outside of it: a row is from "
    return f.when(stays, name).otherwise(f.raise_error(f.concat(f.lit(why), name)))


def _plain(uri: Any) -> Any:
    return f.regexp_replace(uri, "^file:/+", "file:/")


def place_of(file: Any, *, is_feed: bool) -> Any:
    """Return the position of a row: see DeltaSource.position."""
    version, exists = (f.col("_commit_version"), exists_after()) if is_feed else (f.lit(None), f.lit(None))
    return f.struct(
        version.cast("bigint").alias("version"),
        exists.cast("int").alias("is_there"),
        file.alias("file"),
        row_clock().alias("row"),
    )


def _where(position: Any) -> Any:
    return f.concat(f.lit("file "), position["file"])


def _last_version(position: Any) -> int:
    """Return the last version read by a step that ends at this offset of Delta. Raises OSError."""
    with decoding("an offset"):
        version = int(position["reservoirVersion"])
        begins = position.get("isStartingVersion") or int(position.get("index", -1)) >= 0
        return version if begins else version - 1


def _first_end(former: Checkpoint) -> Any:
    """Return the offset after the first step, or None if it isn't known. Raises OSError."""
    if former.migrated_rows() is not None:  # an earlier generation read its first rows
        return None
    first = StepIndex(former).find(0)
    return first.end if first is not None else former.log.offset(0)[0]


def _missing_table(query: ResolvedQuery, folder: str) -> tuple[Diagnostic, ...]:
    """Return MZ052 for a folder without a table; () for a table whose log only Spark can read."""
    try:
        if CollectionLog(folder).versions():
            return ()
    except OSError:
        pass
    return (
        Diagnostic.of("MZ052.no-delta", address=query.address, folder=folder, resource=query.link.address),
    )


def _column_mismatch(query: ResolvedQuery, folder: str, types: Mapping[str, str]) -> Diagnostic | None:
    """Return MZ230 if a table with these columns is missing declared ones, or its types don't fit them."""
    stored = {name.lower(): type_ for name, type_ in types.items()}
    columns = record_columns(query.description.type, query.body)
    missing = [column.name for column in columns if column.name.lower() not in stored]
    problems = [f"it has no column {', '.join(missing)}"] if missing else []
    problems += [
        f"{column.name} is {type_} in the table, but declared as {column.type}"
        for column in columns
        if (type_ := stored.get(column.name.lower()))
        and canonical_type(type_)  # otherwise Spark says whether it can read it
        and (declared := canonical_type(spark_type(column.type)))
        and not holds(declared, type_)
    ]
    if not problems:
        return None
    column_list = ", ".join(f"{name} {type_}" for name, type_ in types.items())
    return Diagnostic.of(
        "MZ230.table-not",
        address=query.address,
        folder=folder,
        resource=query.link.address,
        problems="; ".join(problems),
        column_list=column_list,
    )


def _unfit(query: ResolvedQuery, folder: str, table: DeltaTable) -> Sequence[Diagnostic]:
    """Return MZ230 for a table without the declared columns, or MZ228 if a key needs a change feed and there
    is none."""
    if mismatch := _column_mismatch(query, folder, column_types(table)):
        return [mismatch]
    if query.keys and table.metadata().configuration.get(_FEED) != "true":
        return [Diagnostic.of("MZ228.table-no", address=query.address, folder=folder)]
    return []
