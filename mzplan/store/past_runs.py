"""What has run on an instance and is written down nowhere else any more: its storage was removed, or is
claimed again. A rollback may bring it back long after: it goes on from its checkpoint, or not at all."""

from __future__ import annotations

from collections.abc import Iterable

from mzplan.model.address import Place
from mzplan.store.journal import PastRun, decode_journal, encode_journal
from mzplan.store.store import Store


def read_past_runs(store: Store, instance: str) -> frozenset[Place]:
    """Storage of what has run and was dropped. Raises MzplanError."""
    key = _key(instance)
    blob = store.backend.read(key)
    entries = decode_journal(PastRun, blob.data, key) if blob is not None else []
    return frozenset(entry.place for entry in entries)


def write_past_runs(store: Store, instance: str, places: Iterable[Place]) -> None:
    """Durably, all of them. Only the runner that leads the instance does. Raises MzplanError."""
    entries = [PastRun(id=id_, generation=generation) for id_, generation in places]
    store.backend.write(_key(instance), encode_journal(entries))


def _key(instance: str) -> str:
    return f"journal/{instance}.former.jsonl"
