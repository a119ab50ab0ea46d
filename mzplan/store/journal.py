"""The journal of an instance: what a committed serial can't carry, and a crash must not forget.

Three files, one line of JSON per entry. `<instance>.jsonl`: storage that no resource claims any more, written
down before the runner forgets what it ran, and removed once `retain_dropped` has passed and the storage is
gone. `<instance>.prepared.jsonl`: exports that are prepared and not created yet, with what they hold.
`<instance>.former.jsonl`: storage that has left the first one, whose query has run: it never begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from mzplan.model.address import Address, Kind, Place, is_valid_name
from mzplan.model.codec import encode
from mzplan.model.stored import Id, Positive, text_like
from mzplan.store.formats import canonical, load_as


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Dropped:
    """Storage of one generation of a query. `dropped_at` in seconds since the epoch; `kind` and `name` are
    what it was called."""

    id: Id
    generation: Positive
    kind: Kind
    name: Annotated[str, text_like(is_valid_name, "a name")]
    dropped_at: float

    @property
    def place(self) -> Place:
        return (self.id, self.generation)

    @classmethod
    def of(cls, address: Address, id_: str, generation: int, now: float) -> Dropped:
        return cls(id=id_, generation=generation, kind=address.kind, name=address.name, dropped_at=now)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Prepared:
    """An export that is prepared: its id, the collection that it will read, and from which step on."""

    id: Id
    from_id: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PastRun:
    """Storage of one generation of a query that has run and was dropped."""

    id: Id
    generation: Positive

    @property
    def place(self) -> Place:
        return (self.id, self.generation)


Entry = TypeVar("Entry", Dropped, Prepared, PastRun)


def encode_journal(entries: Iterable[Entry]) -> bytes:
    """A line per entry, sorted."""
    return "".join(f"{canonical(encode(entry))}\n" for entry in sorted(entries)).encode()


def decode_journal(type_: type[Entry], data: bytes, place: str) -> list[Entry]:
    """The inverse of encode_journal. Raises MZ030 for a line that is no such entry."""
    return [
        load_as(type_, line, f"{place}:{number}", "remove that line.")
        for number, line in enumerate(data.splitlines(), 1)
        if line.strip()
    ]
