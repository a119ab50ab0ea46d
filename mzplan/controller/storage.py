"""What the controller asks of the storage of collections and checkpoints.

Two implementations: DeltaStorage (mzplan.spark.delta_storage) and InMemoryStorage (mzplan.controller.memory).
Storage decides nothing: which step may be given up, and when, is the controller's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mzplan.controller.types import AppendCommand, CollectionDescription, Diff, Row, Step
from mzplan.model.address import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """How far a query's storage reaches: `since`, the oldest step that was not given up; `upper`, the next
    one."""

    since: Step = 0
    upper: Step = 0


class Storage(Protocol):
    """Called from several threads, for one place at a time. Every method raises OSError for what the storage
    did, with a message that says what."""

    def extent(self, place: Place) -> Extent:
        """Of a collection. Of one that has no storage yet: no steps at all."""

    def first_young(self, place: Place, when: float) -> Step:
        """The first step of a collection that became durable at `when` (seconds since the epoch) or later;
        the newest, where all are older; 0 when there is none."""

    def needed(self, export: Place, source: Place) -> Step:
        """The oldest step of its collection that an export has still to read; the collection's upper if there
        is none."""

    def maintain(self, place: Place, since: Step) -> None:
        """Give up what only steps below `since` need: reclaim it, and merge small files so that a collection
        that is fed in small steps does not rot. May take long. Again, it finds nothing to do; stopped
        half-way, the next time finishes it."""

    def append(self, commands: Sequence[tuple[CollectionDescription, AppendCommand]]) -> None:
        """Make the updates durable steps of local inputs, but for those of which an append of this key has.
        Those of a command are there all or not at all. Raises StorageError (see StorageController.append)
        and, where others keep the lock for long, MzplanError MZ033; then nothing was written, of none."""

    def snapshot(self, place: Place, as_of: Step) -> list[tuple[Row, Diff]]:
        """All updates up to a step that is there, consolidated. Raises ReadBeforeSinceError for what was
        removed."""

    def migrate(self, places: Sequence[Place]) -> None:
        """Bring the storage of these to today's layout. Raises StorageError for a later one."""

    def listed(self) -> list[Place]:
        """All places that there is any storage of."""
