"""The journal of an instance: what a committed serial can't carry, and a crash must not forget.

Three files, one line of JSON per entry. `<instance>.jsonl`: storage that no resource claims any more, written
down before the runner forgets what it ran, and removed once `retain_dropped` has passed and the storage is
gone. `<instance>.prepared.jsonl`: exports that are prepared and not created yet, with what they hold.
`<instance>.former.jsonl`: storage that has left the first one, whose query has run: it never begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from mzplan.model import reading
from mzplan.model.address import Address, Place
from mzplan.store.formats import canonical, decode


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Dropped:
    """Storage of one generation of a query. `dropped_at` in seconds since the epoch; `kind` and `name` are
    what it was called."""

    id: str
    generation: int
    kind: str
    name: str
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

    id: str
    from_id: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PastRun:
    """Storage of one generation of a query that has run and was dropped."""

    id: str
    generation: int

    @property
    def place(self) -> Place:
        return (self.id, self.generation)


Entry = TypeVar("Entry", Dropped, Prepared, PastRun)


def encode_journal(entries: Iterable[Entry]) -> bytes:
    """A line per entry, sorted."""
    return "".join(f"{canonical(asdict(entry))}\n" for entry in sorted(entries)).encode()


def decode_journal(data: bytes, place: str) -> list[Dropped]:
    """The inverse. Raises MZ030 for a line that is no entry."""
    return _decoded(data, place, _entry)


def _entry(content: Any) -> Dropped:
    fields = reading.mapping(content, "the entry")
    address = Address.parse(f"{reading.text(fields, 'kind')}.{reading.text(fields, 'name')}")
    return Dropped(
        id=reading.identifier(fields),
        generation=reading.integer(fields, "generation", least=1),
        kind=address.kind,
        name=address.name,
        dropped_at=reading.number(fields, "dropped_at"),
    )


def decode_prepared(data: bytes, place: str) -> list[Prepared]:
    """The inverse of `encode_journal` for these. Raises MZ030 for a line that is no entry."""
    return _decoded(data, place, _prepared)


def decode_past_runs(data: bytes, place: str) -> list[PastRun]:
    """The same for these."""
    return _decoded(data, place, _past_run)


def _past_run(content: Any) -> PastRun:
    fields = reading.mapping(content, "the entry")
    return PastRun(id=reading.identifier(fields), generation=reading.integer(fields, "generation", least=1))


def _decoded(data: bytes, place: str, build: Callable[[Any], Entry]) -> list[Entry]:
    return [
        decode(line, f"{place}:{number}", build, "remove that line.")
        for number, line in enumerate(data.splitlines(), 1)
        if line.strip()
    ]


def _prepared(content: Any) -> Prepared:
    fields = reading.mapping(content, "the entry")
    return Prepared(
        id=reading.identifier(fields),
        from_id=reading.text(fields, "from_id"),
        step=reading.integer(fields, "step", least=0),
    )
