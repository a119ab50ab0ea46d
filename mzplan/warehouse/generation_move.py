"""Moves a sink from the collection of a former generation to the next one, which begins with migrated rows.

First, the sink reads the rest of the former collection in one step, up to the version whose rows were
migrated. Then the offset log of that step and of the step before is changed: both now end after the migrated
rows in the new collection. Both must change, because at a start Spark asks for the data between the ends of
the last two steps, and both ends must belong to one table. No step is added, because targets count steps
without gaps. The index of steps still knows what both steps have read.

It also tells which generation with migrated rows has begun, and which one must not run again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.address import Address, Place
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.state import Predecessor
from mzplan.schema.description import CollectionRead, Description
from mzplan.warehouse.checkpoint_log import table_of
from mzplan.warehouse.checkpoints import Checkpoint, MigratedRows
from mzplan.warehouse.folder import decoding
from mzplan.warehouse.storage import generations_below


def newest_begun(warehouse: str, id_: str, predecessor: Predecessor) -> Predecessor:
    """Return the predecessor that has the rows: the newest one that has begun, otherwise the oldest one.

    Raises OSError."""
    while predecessor.predecessor is not None:
        if Checkpoint.of(warehouse, id_, predecessor.generation).migrated_rows() is not None:
            break
        predecessor = predecessor.predecessor
    return predecessor


def require_not_migrated(warehouse: str, address: Address, place: Place) -> None:
    """Raise MZ063 if a later generation has begun with this generation's rows. Call it before writing.

    The later generation continues where this generation stopped. If this generation ran again, both
    generations would read the same records. Raises OSError."""
    id_, generation = place
    for later in generations_below(warehouse, id_):
        migrated = Checkpoint.of(warehouse, id_, later).migrated_rows() if later > generation else None
        if migrated is not None and migrated.generation == generation:
            raise error(
                "MZ063.not-started-generation-begun", address=address, later=later, generation=generation
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Former:
    """The collection that the sink still reads, and the next one.

    - `table`, `next_table`: the ids of their tables.
    - `migrated`: the rows with which the next one began.
    """

    table: str
    migrated: MigratedRows
    next_table: str


class GenerationMove:
    """The move of one sink. The sink must not run. Raises MzplanError, OSError."""

    def __init__(self, warehouse: str, description: Description, checkpoint: Checkpoint):
        assert description.input is not None, f"{description.address} doesn't read exactly one collection"
        self._warehouse = warehouse
        self._description = description
        self._source = description.input
        self._checkpoint = checkpoint

    def to_read(self) -> Description | None:
        """Return the sink's description for reading the rest of the former collection, and plan that step.

        Returns None if the sink already reads the wanted collection, or has read nothing yet."""
        former = self._former()
        if former is None:
            return None
        log = self._checkpoint.log
        if log.unfinished() is None and log.entry(log.committed()) != self._end(former):
            log.plan(self._end(former))
        return self._earlier(former.migrated)

    def move(self) -> None:
        """Move to the next collection, if the last step has read the former one to its end."""
        former, log = self._former(), self._checkpoint.log
        if former is None or log.entry(log.committed()) != self._end(former):
            return  # the last step began before the move
        committed = log.committed()
        position = _offset(log.entry(committed), former.next_table, former.migrated.written + 1)
        log.replace(committed - 1, position)
        failpoint(Failpoint.MIGRATION_MOVED)
        log.replace(committed, position)

    def _end(self, former: _Former) -> str:
        log = self._checkpoint.log
        return _offset(log.entry(log.newest()), former.table, former.migrated.version + 1)

    def _former(self) -> _Former | None:
        """Return the collection that the sink still reads; None if it already reads the wanted one."""
        log, source = self._checkpoint.log, self._source
        table = table_of(log.offset(log.newest())[0])
        place = Checkpoint.of(self._warehouse, *source.place)
        has_begun = source.predecessor is None or ((rows := place.migrated_rows()) is not None and rows.done)
        if table is not None and not has_begun:
            raise _not_begun(self._description, source)
        next_table = place.collection()
        if table is None or next_table is None or table == next_table:
            return None
        while (migrated := place.migrated_rows()) is not None and migrated.done:
            if migrated.table == table:
                return _Former(table=table, migrated=migrated, next_table=next_table)
            place = Checkpoint.of(self._warehouse, source.id, migrated.generation)
            next_table = place.collection()
            if next_table is None:
                break
        raise _other_generation(self._description, source)

    def _earlier(self, migrated: MigratedRows) -> Description:
        """Return the sink's description when its last step began, which reads the former generation."""
        description, source = self._description, self._source
        descriptions = self._checkpoint.descriptions().entries
        begun = descriptions[-1].earlier(description) if descriptions else description
        former = replace(source, generation=migrated.generation, body=migrated.body, predecessor=None)
        return replace(
            begun,
            reads={source.address.name: former},
            digest=f"{description.digest}-g{migrated.generation}",
        )


def _offset(entry: str | None, table: str, version: int) -> str:
    """Return Delta's offset before all files of a version, in the format of this entry."""
    with decoding("an offset"):
        offset_before: dict[str, Any] = {**json.loads(entry)} if entry is not None else {}
    offset = {**offset_before, "reservoirId": table, "reservoirVersion": version, "index": -1}
    return json.dumps({**offset, "isStartingVersion": False}, separators=(",", ":"))


def _not_begun(description: Description, source: CollectionRead) -> MzplanError:
    return error(
        "MZ063.not-started",
        address=description.address,
        generation=source.generation,
        resource=source.address,
    )


def _other_generation(description: Description, source: CollectionRead) -> MzplanError:
    return error(
        "MZ069.read-another",
        address=description.address,
        resource=source.address,
        generation=source.generation,
    )
