"""Checks whether a view can continue from the checkpoint and table of a hand-written query.

Spark identifies the inputs of a checkpoint by the ids and versions of their Delta tables. So the query must
have read the tables that are now the view's collections. Whether Spark can continue the state is checked
where the view will run (spark.trials.adopted_views), before the commit and again before the first start.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from mzplan.features.state.adoption_checks import table_problems
from mzplan.model.words import count, joined
from mzplan.schema.description import CollectionRead, Description
from mzplan.schema.kinds import resource_kind
from mzplan.schema.source_columns import columns_of, keys_of
from mzplan.schema.sql.view_query import is_row_view
from mzplan.warehouse.checkpoint_log import CheckpointLog, table_of
from mzplan.warehouse.checkpoints import Checkpoint, collection_path
from mzplan.warehouse.collection_log import CollectionLog, version_read
from mzplan.warehouse.foreign_query import ForeignQuery, open_table
from mzplan.warehouse.step_index import StepIndex
from mzplan.warehouse.stored_state import stored_operators

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_SPARKS_OWN = "org.apache.spark.sql.execution.streaming."
_COMMITS = 100  # of a table to look at
_KNOWN_OFFSETS = 1  # `sourceVersion`; 3 is that of a stream that tracks the schema of its table


def view_problems(query: ForeignQuery, view: Description, warehouse: str) -> Iterator[str]:
    """Yield every reason why a view can't continue from a query, as far as files show it. Raises OSError."""
    kind = resource_kind(view.address.kind, view.type)
    body = kind.with_defaults(view.body)
    if keys_of(view.type, view.body) or body.get("output", "append") != "append":
        yield (
            "The view updates rows by their key, but a checkpoint doesn't record how the query changed its "
            "table: only a view that appends rows can continue."
        )
    if view.snapshots:
        names = joined((read.address for read in view.snapshots.values()), "and")
        yield f"The view reads {names} as tables, and a checkpoint doesn't record which versions it has read."
    if query.last_done < 0:
        yield "The query has not finished a micro-batch: let it finish one, or declare the view as new."
    if is_row_view(kind, view.body) and len(query.positions) > 1:
        yield f"The query reads {count(len(query.positions), 'table')}, and the view reads one."
    yield from _input_problems(query, view, warehouse)
    yield from _state_problems(query, body, reads_sql=kind.query_property is not None)
    yield from table_problems(query, columns_of(view.type, view.body), "view")


def _input_problems(query: ForeignQuery, view: Description, warehouse: str) -> Iterator[str]:
    """Yield why the query's offsets aren't positions in the collections that the view reads."""
    log = CheckpointLog(query.checkpoint)
    tables = {_table_of(read, warehouse): read for read in view.reads.values()}
    unknown: set[str] = set()
    found: dict[str, list[Mapping[str, Any]]] = {}
    for step in {query.last_done, query.last_planned}:
        for line in log.lines(step)[2:]:
            offset = _parsed(line)
            table = table_of(offset)
            if table is None or "reservoirVersion" not in offset:
                unknown.add(f"It doesn't read only Delta tables: one of its offsets is {line[:80]}.")
            elif table not in tables:
                unknown.add(f"It reads the Delta table {table}, which is none of the view's collections.")
            else:
                found.setdefault(table, []).append(offset)
    yield from sorted(unknown)
    for table, read in tables.items():
        if table is None:
            yield f"{read.address} has no collection yet: start it first."
        elif table in found:
            yield from _position_problems(found[table], read, warehouse)
        else:
            yield f"It doesn't read the Delta table {table}, the collection of {read.address}."


def _table_of(read: CollectionRead, warehouse: str) -> str | None:
    """Return the id of a collection's table; None without a table. Raises OSError."""
    recorded = Checkpoint.of(warehouse, *read.place).collection()
    return recorded or CollectionLog(collection_path(warehouse, *read.place)).table_id()


def _position_problems(
    offsets: list[Mapping[str, Any]], read: CollectionRead, warehouse: str
) -> Iterator[str]:
    """Yield why a collection can't be read on from these offsets in its table. Raises OSError."""
    if any(offset.get("sourceVersion") != _KNOWN_OFFSETS for offset in offsets):
        yield f"Its offset in {read.address} has an unknown format: it may track the schema of the table."
        return
    if any(offset.get("isStartingVersion") for offset in offsets):
        yield (
            f"It is still reading the first copy of {read.address}: let it read all that is there, then stop "
            "it."
        )
        return
    checkpoint = Checkpoint.of(warehouse, *read.place)
    collection = CollectionLog(collection_path(warehouse, *read.place), checkpoint.log.query_id)
    versions = collection.versions()
    last, newest = max(version_read(offset) or 0 for offset in offsets), max(versions, default=-1)
    copied = checkpoint.adopted()
    if versions and last > newest:
        yield f"It has read version {last} of {read.address}, whose collection only has version {newest}."
    elif copied is not None and last > copied:
        yield (
            f"It has read version {last} of a table of which mzplan has copied version {copied} for "
            f"{read.address}. The later versions of copy and original differ, and the checkpoint doesn't say "
            "which of them it has read."
        )
    else:
        first = min(int(offset["reservoirVersion"]) for offset in offsets)
        if (first <= newest or not versions) and not _holds(collection, StepIndex(checkpoint).since(), first):
            yield f"The collection of {read.address} no longer holds the rows since version {first}."


def _holds(collection: CollectionLog, since: int, first: int) -> bool:
    """Whether a collection has all versions from `first` on, and still holds their steps."""
    if collection.commit(first) is None:
        return False
    steps = (commit.step for commit in collection.following(first - 1))
    return next((step for step in steps if step is not None), since) >= since


def _state_problems(query: ForeignQuery, body: Mapping[str, Any], *, reads_sql: bool) -> Iterator[str]:
    """Yield why the view can't continue with the query's state, as far as files show it."""
    state = body.get("state")  # of SQL, a digest of the query; of a function, its author's word
    operators = stored_operators(query.checkpoint)
    kinds = joined((operator.kind for operator in operators), "and")
    if query.keeps_state and not operators:
        yield "Its state doesn't name its operators: let the query run once with Spark 4.0 or later."
    if query.keeps_state and state in (None, "none"):
        yield f"The query keeps state ({kinds or 'of unknown kind'}), but the view keeps none."
    elif not query.keeps_state:
        if reads_sql and state is not None:
            yield "The view keeps state, but the checkpoint has none."
        return
    for operator in operators:
        if not operator.is_known:
            yield f"mzplan can't compare the state of its operator {operator.kind}."
    mode = _output_mode(query)
    if mode != "append":
        yield f"By its table's log, it writes in {mode or 'an unknown'} mode, but the view appends rows."
    if state not in (None, "none"):
        yield from _setting_problems(query, body, reads_sql=reads_sql)


def _setting_problems(query: ForeignQuery, body: Mapping[str, Any], *, reads_sql: bool) -> Iterator[str]:
    """Yield why the settings of a view with state don't fit the query's state."""
    log = CheckpointLog(query.checkpoint)
    partitions = log.partitions(query.last_planned)
    if partitions != body.get("partitions"):
        yield f"Its state has {partitions} partitions: declare partitions: {partitions}."
    provider = log.settings(query.last_planned).get(_PROVIDER, _SPARKS_OWN)
    if not provider.startswith(_SPARKS_OWN):
        yield f"A program of others keeps its state: {provider[:120]}."
    has_watermark = bool(body.get("watermarks"))
    if reads_sql and log.has_watermark() != has_watermark:
        yield (
            "The view declares watermarks, but the query has none."
            if has_watermark
            else "The query has a watermark, but the view declares no watermarks."
        )
    word, is_said = "state: kept", body.get("state") == "kept"
    if reads_sql:
        word, is_said = "on_query_change: resume", body.get("on_query_change") == "resume"
    if not is_said:
        yield (
            "mzplan compares the types and names of the state, but can't know how the query computed its "
            f"values: if the view computes the same, say so with {word}."
        )


def _output_mode(query: ForeignQuery) -> str | None:
    """Return the mode in which the query last wrote its table; None if that is unknown. Raises OSError."""
    for commit in open_table(query.table).history(_COMMITS):
        parameters = commit.get("operationParameters") or {}
        if parameters.get("queryId") == query.query_id:
            return str(parameters.get("outputMode", "")).lower() or None
    return None


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
