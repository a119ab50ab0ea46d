"""The journal of an instance: facts that aren't part of the state, and that a crash must not lose.

It has three files, with one line of JSON per entry:
- `<instance>.jsonl`: storage that no resource claims any more. The runner writes the entry before it forgets
  the query. It removes the entry once `retain_dropped` has passed and the storage is gone.
- `<instance>.prepared.jsonl`: exports that are prepared but not yet created, with their holds.
- `<instance>.former.jsonl`: storage that isn't in the first file any more, and whose query has run. Such a
  query never starts from the beginning again.
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
    """Dropped storage of one generation of a query.

    `kind` and `name` are from its former address; `dropped_at` is in seconds since the epoch.
    """

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
    """A prepared export: its id, the collection it will read, and the first step."""

    id: Id
    from_id: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PastRun:
    """The storage of a generation that has run and was dropped."""

    id: Id
    generation: Positive

    @property
    def place(self) -> Place:
        return (self.id, self.generation)


Entry = TypeVar("Entry", Dropped, Prepared, PastRun)


def encode_journal(entries: Iterable[Entry]) -> bytes:
    """Return a line per entry, sorted."""
    return "".join(f"{canonical(encode(entry))}\n" for entry in sorted(entries)).encode()


def decode_journal(type_: type[Entry], data: bytes, place: str) -> list[Entry]:
    """Decode the output of encode_journal. Raises MZ030 for an invalid line."""
    return [
        load_as(type_, line, f"{place}:{number}", "remove that line.")
        for number, line in enumerate(data.splitlines(), 1)
        if line.strip()
    ]
