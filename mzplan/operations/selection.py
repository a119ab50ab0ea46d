"""Selects queries for a command: by address, by glob, and by common properties."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import takewhile

from mzplan.model.address import KINDS, Address, is_glob, natural
from mzplan.model.diagnostics import error
from mzplan.model.observed import Condition
from mzplan.model.state import ResourceState, State, unknown_address
from mzplan.model.words import nearest, scalar_text
from mzplan.operations.connections import users_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The criteria for choosing queries.

    `named`: addresses, and globs over them (`sink.pg_*`); a query must match one of them; empty for all
    queries.
    `connections`: names of connections; a query must use one of them.
    `labels`: labels that a query must have, all of them.
    `conditions`: a query must be in one of these conditions.
    """

    named: tuple[Address | str, ...] = ()
    connections: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    conditions: tuple[Condition, ...] = ()

    @property
    def is_everything(self) -> bool:
        """Return whether no criterion was given."""
        return self == ALL

    @property
    def single(self) -> Address | None:
        """Return the address if a single address is the only criterion, else None."""
        (*_, last) = self.named or ("",)
        return last if isinstance(last, Address) and self == Selection(named=(last,)) else None

    @property
    def chose_nothing(self) -> str:
        """Return the message for a selection without queries."""
        return f"No query of the state matches: {self}"

    def __str__(self) -> str:
        """Return the selection as it is typed on a command line."""
        options = [
            *(f"--connection {name}" for name in self.connections),
            *(f"--label {key}={value}" for key, value in self.labels),
            *(f"--condition {condition}" for condition in self.conditions),
        ]
        return " ".join([*map(str, self.named), *options])


ALL = Selection()
Conditions = Callable[[], Mapping[Address, Condition]]
"""Returns the condition of each query. Called only if a selection needs it."""


def choose(selection: Selection, state: State, conditions: Conditions) -> list[ResourceState]:
    """Return the selected committed queries, each once, sorted by address.

    Raises MzplanError MZ070 (usage) for an unknown address or connection, or a glob without matches. An empty
    result after narrowing is no error.
    """
    queries = {a: r for a, r in state.resources.items() if a.is_query}
    addresses = set(queries)
    if selection.named:
        addresses = {address for named in selection.named for address in _named(named, queries, state)}
    if selection.connections:
        addresses &= {user for name in selection.connections for user in _users(name, state)}
    addresses = {a for a in addresses if _has(queries[a].body.get("labels"), selection.labels)}
    if selection.conditions and addresses:
        seen = conditions()
        addresses = {address for address in addresses if seen.get(address) in selection.conditions}
    return [queries[address] for address in sorted(addresses, key=natural)]


def _named(name: Address | str, queries: Collection[Address], state: State) -> list[Address]:
    if isinstance(name, Address):
        if name not in queries:
            raise unknown_address(name, state)
        return [name]
    if matching := [address for address in queries if fnmatchcase(str(address), name)]:
        return matching
    near = next(_near(name, sorted(map(str, queries))), None)
    raise error(
        "MZ070.no-query" if near else "MZ070.no-query-state",
        name=name,
        number=len(state.resources),
        near=near,
    )


def _near(glob: str, addresses: list[str]) -> Iterator[str]:
    """Yield globs with matches: with a kind in front, or with the fixed part corrected."""
    stem = "".join(takewhile(lambda letter: not is_glob(letter), glob))
    lengths = (len(stem), len(stem) + 1, len(stem) - 1)  # a wrong, missing or extra letter
    beginnings = (address[:length] for length in lengths if length > 0 for address in addresses)
    for kind in (*(f"{query}." for query in KINDS if query != "connection"), "*."):
        yield from _matching(kind + glob, addresses)
    if corrected := nearest(stem, dict.fromkeys(beginnings)):
        yield from _matching(corrected + glob[len(stem) :], addresses)


def _matching(glob: str, addresses: list[str]) -> list[str]:
    return [glob] if any(fnmatchcase(address, glob) for address in addresses) else []


def _users(name: str, state: State) -> list[Address]:
    connection = Address("connection", name)
    if connection not in state.resources:
        raise unknown_address(connection, state)
    return [query.address for query in users_of(state, connection)]


def _has(labels: object, required: tuple[tuple[str, str], ...]) -> bool:
    own = labels if isinstance(labels, dict) else {}
    return all(key in own and scalar_text(own[key]) == value for key, value in required)
