"""A Delta table that a catalog of the runner's Spark session names, such as `sales.orders`.

Only Spark can ask the catalog. When a sink starts, the runner finds its table there, creates it if the sink
asks for that, and records its folder and id beside the checkpoint. All other parts use the recorded folder.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.api.targets import refused_or_accepted
from mzplan.connectors.frames.types import quoted
from mzplan.connectors.network.folders import folder_of
from mzplan.host.processes import SCRATCH_PREFIX
from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.folder import decoding

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = "table"
"""The property of a sink that names a table of a catalog, instead of `path`."""
_SESSION_CATALOG = "spark_catalog"


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlace:
    """Where a catalog's table is: its folder (a path or URI), and the id that Delta gave to the table."""

    folder: str
    id: str


def table_folder(query: ResolvedQuery) -> str | None:
    """Return the folder of a sink's table. None if no runner has found the table in its catalog yet."""
    if TABLE not in query.body:
        return folder_of(query)
    place = None
    with suppress(OSError):  # the start reports an unreadable record
        place = _recorded(query.checkpoint) if query.checkpoint is not None else None
    return place.folder if place is not None else None


def take_table(session: SparkSession, query: ResolvedQuery, checkpoint: Checkpoint, definition: str) -> str:
    """Find the sink's table in its catalog, record its place, and return its folder.

    Creates the table with `definition`, the text after its name in CREATE TABLE, if it is missing and the
    sink asks for that. Raises MzplanError MZ407, OSError, and Spark's errors.
    """
    parts = query.body[TABLE].split(".")
    place, recorded = _find(session, query, parts), _recorded(checkpoint)
    _refuse(_replaced(query, recorded, place))
    if place is None:
        if not query.body["create"]:
            raise error("MZ407.missing", address=query.address, table=query.body[TABLE])
        _create(session, query, parts, definition)
        place = _find(session, query, parts)
        assert place is not None, f"{query.body[TABLE]} was created"
    if place != recorded:
        checkpoint.record_delivery({"delivery": "exactly-once", "target": asdict(place)})
    return place.folder


def check_recorded(query: ResolvedQuery) -> list[Diagnostic]:
    """Return MZ407 if another table is in the recorded folder. Returns [] if that is unknown."""
    if TABLE not in query.body or query.checkpoint is None:
        return []
    with suppress(OSError):
        recorded = _recorded(query.checkpoint)
        if recorded is not None and (id_ := CollectionLog(recorded.folder).table_id()) is not None:
            return _replaced(query, recorded, TablePlace(folder=recorded.folder, id=id_))
    return []


def _recorded(checkpoint: Checkpoint) -> TablePlace | None:
    """Return the table's place at the last start. Raises OSError."""
    note = checkpoint.delivery()
    if note is None:
        return None
    with decoding(f"{checkpoint.folder}/delivery.json"):
        return TablePlace(folder=str(note["target"]["folder"]), id=str(note["target"]["id"]))


def _replaced(
    query: ResolvedQuery, recorded: TablePlace | None, found: TablePlace | None
) -> list[Diagnostic]:
    """Return MZ407 if the sink has written its steps to another table than the one found now. Raises
    OSError."""
    if recorded is None or (found is not None and found.id == recorded.id):
        return []
    if query.checkpoint is None or query.checkpoint.log.committed() < 0:
        return []  # no step is written yet, so any table will do
    difference = f"Its id is now {found.id} instead of {recorded.id}" if found else "No table has the name"
    refusal = Diagnostic.of(
        "MZ407.another-table",
        address=query.address,
        table=query.body[TABLE],
        difference=difference,
        folder=recorded.folder,
    )
    return [refused_or_accepted(query, refusal)]


def _refuse(diagnostics: list[Diagnostic]) -> None:
    if errors := [diagnostic for diagnostic in diagnostics if diagnostic.severity == "error"]:
        raise MzplanError(errors)


def _find(session: SparkSession, query: ResolvedQuery, parts: list[str]) -> TablePlace | None:
    name = _quoted(parts)
    if not session.catalog.tableExists(name):
        return None
    detail = session.sql(f"DESCRIBE DETAIL {name}").first()
    if detail is None or detail["format"] != "delta":
        found = f"It is a table of {detail['format']}." if detail is not None else "It has no details."
        raise error("MZ407.not-delta", address=query.address, table=query.body[TABLE], found=found)
    return TablePlace(folder=_as_path(detail["location"]), id=detail["id"])


def _create(session: SparkSession, query: ResolvedQuery, parts: list[str], definition: str) -> None:
    schema = _quoted(parts[:-1])
    if why := _why_forgotten(session, parts[:-1]):
        raise error("MZ407.forgets", address=query.address, table=query.body[TABLE], why=why)
    session.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    session.sql(f"CREATE TABLE IF NOT EXISTS {_quoted(parts)} {definition}")


def _why_forgotten(session: SparkSession, schema: list[str]) -> str:
    """Return why a new table of this schema would be gone after a restart of the runner; "" if it stays."""
    catalog = schema[0] if len(schema) > 1 else session.catalog.currentCatalog()
    if catalog != _SESSION_CATALOG:
        return ""
    built_in = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
    is_built_in = session.conf.get("spark.sql.catalog.spark_catalog", None) == built_in
    if is_built_in and session.conf.get("spark.sql.catalogImplementation") != "hive":
        return "Spark's built-in catalog keeps its tables in memory (spark.sql.catalogImplementation)."
    name = _quoted(schema)
    exists = session.catalog.databaseExists(name)
    folder = (
        session.catalog.getDatabase(name).locationUri
        if exists
        else session.conf.get("spark.sql.warehouse.dir")
    )
    if f"/{SCRATCH_PREFIX}" in str(folder):
        return "spark.sql.warehouse.dir isn't set, so its files would be in the runner's temporary folder."
    return ""


def _as_path(location: str) -> str:
    """Return the path or URI of a table from its location, which has no escapes."""
    return f"/{location.removeprefix('file:').lstrip('/')}" if location.startswith("file:") else location


def _quoted(parts: list[str]) -> str:
    return ".".join(map(quoted, parts))
