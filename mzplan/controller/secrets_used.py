"""Which values of secrets the queries of an instance run with: digests of them, for the Status; and whether
their references have other values by now."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping, Set
from concurrent.futures import Executor as Pool
from dataclasses import dataclass, field

from mzplan.controller.reconcile import Desired
from mzplan.controller.watches import Sampler
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.schema.description import Description, references_of
from mzplan.secrets.digests import digest_secret, new_salt, salt_of
from mzplan.secrets.references import Secrets

log = logging.getLogger("mzplan.runner")

EVERY = (
    5.0  # seconds between looks at a file; what is remote is remembered for longer (mzplan.secrets.remote)
)
_KEY = os.urandom(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadValues:
    """What references had for values, `at` seconds of the clock."""

    at: float
    by_reference: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """Of a query: what it was started with. `prints`: see _print."""

    at: float
    digests: Mapping[str, str]
    prints: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """At a reference: what its value was, or why it has none."""

    at: float
    print: bytes | None = None
    problem: Diagnostic | None = None


class SecretsWatch:
    """Looks now and then what the references of queries that run have for values. `found` has the newest look
    at each."""

    def __init__(self, secrets: Secrets, pool: Pool, clock: Callable[[], float]):
        self._secrets, self._clock = secrets, clock
        self._sampler: Sampler[str, str, _Look] = Sampler(self._look_at, pool, clock)
        self._prints: dict[str, bytes] = {}
        self.problems: dict[str, Diagnostic] = {}

    @property
    def found(self) -> Mapping[str, _Look]:
        return dict(self._sampler.found)

    def look(self, in_use: Mapping[str, Set[bytes]]) -> Set[str]:
        """Read the references that are due. Returns those whose value has changed since the last call, and
        that a query was started with another value of; `in_use` (see SecretsInUse.changed): what an apply has
        restarted them for is no news."""
        watched = {reference: reference for reference in in_use if self._secrets.is_watched(reference)}
        self._sampler.look(watched, lambda _: EVERY)
        looks = self.found
        changed = set()
        for reference, look in looks.items():
            is_new = look.print is not None and self._prints.get(reference, look.print) != look.print
            if is_new and in_use.get(reference, set()) != {look.print}:
                log.info("%s has another value: plan and drift show what runs with the old one", reference)
                changed.add(reference)
        self._prints = {r: now for r, look in looks.items() if (now := look.print or self._prints.get(r))}
        self._tell({r: look.problem for r, look in looks.items() if look.problem is not None})
        return changed

    def unread(self, references: Collection[str]) -> str | None:
        """Why the first reference that can't be read can't be read; None if all can."""
        problem = next(
            (self.problems[reference] for reference in sorted(references) if reference in self.problems), None
        )
        return f"{problem.summary}: {problem.detail} Fix: {problem.hint}" if problem is not None else None

    def _look_at(self, reference: str) -> _Look:
        at = self._clock()
        try:
            return _Look(at=at, print=_print(self._secrets.resolve(reference, current=True)))
        except MzplanError as problem:
            return _Look(at=at, problem=problem.diagnostics[0])

    def _tell(self, problems: dict[str, Diagnostic]) -> None:
        """Log what goes wrong when it begins, and that it does no more."""
        for reference, problem in problems.items():
            before = self.problems.get(reference)
            if before is None or before.summary != problem.summary:
                log.warning(
                    "[%s] %s: %s Fix: %s", problem.code, problem.summary, problem.detail, problem.hint
                )
        for reference in self.problems.keys() - problems.keys():
            log.info("%s can be read again", reference)
        self.problems = problems


class SecretsInUse:
    """The references of an instance's queries, the values that each was started with, and whether a reference
    has another value by now. Starts are noted from several threads.

    `known` are the digests of an earlier status: they hold for queries that nobody has started since. `clock`
    gives seconds, monotonic.
    """

    def __init__(self, secrets: Secrets, known: Mapping[str, str], pool: Pool, clock: Callable[[], float]):
        self._secrets = secrets
        self._known = known
        self._salt = next(filter(None, map(salt_of, known.values())), None) or new_salt()
        self._clock = clock
        self._watch = SecretsWatch(secrets, pool, clock)
        self._references: dict[Address, tuple[Description, set[str]]] = {}
        self._lock = threading.Lock()
        # In the order of the last start: the first that uses a reference may still have an old value.
        self._used: dict[Address, _Start] = {}

    def read(self, description: Description) -> ReadValues:
        """The values that a query that starts now will have, by reference; none that can't be resolved."""
        at, values = self._clock(), {}
        for reference in references_of(description):
            try:
                values[reference] = self._secrets.resolve(reference)
            except MzplanError:
                continue
        return ReadValues(at=at, by_reference=values)

    def started(self, address: Address, values: ReadValues) -> None:
        """The query runs, with these values."""
        read = values.by_reference
        start = _Start(
            at=values.at,
            digests={r: digest_secret(r, value, self._salt) for r, value in read.items()},
            prints={r: _print(value) for r, value in read.items()},
        )
        with self._lock:
            self._used.pop(address, None)
            self._used[address] = start

    def changed(self) -> Set[str]:
        """The references whose values have changed since the last call."""
        in_use: dict[str, set[bytes]] = {}
        with self._lock:
            for start in self._used.values():
                for reference, used in start.prints.items():
                    in_use.setdefault(reference, set()).add(used)
        return self._watch.look(in_use)

    def of(self, wanted: Mapping[Address, Desired]) -> tuple[dict[str, str], tuple[str, ...]]:
        """Return digests of the values that queries run with, by reference (the oldest value, if a query has
        not been restarted since it changed), and the references that have another value by now."""
        for address in self._references.keys() - wanted.keys():
            del self._references[address]
        running = [(a, desired.description) for a, desired in wanted.items() if not desired.paused]
        used: set[str] = set().union(*(self.references_of(a, description) for a, description in running))
        with self._lock:
            for address in self._used.keys() - {a for a, _ in running}:
                del self._used[address]
            starts = list(self._used.values())
        noted: dict[str, str] = {}
        rotated: set[str] = set()
        looks = self._watch.found
        for start in starts:
            for reference, digest in start.digests.items():
                noted.setdefault(reference, digest)
            for reference, used_print in start.prints.items():
                look = looks.get(reference)
                if look is not None and look.at > start.at and look.print not in (None, used_print):
                    rotated.add(reference)
        digests = {r: d for r, d in sorted({**self._known, **noted}.items()) if r in used}
        return digests, tuple(sorted(rotated & used))

    def unread(self, address: Address, description: Description) -> str | None:
        """Which secret of a query can't be read any more, and why: it goes on with what it has."""
        if not self._watch.problems:
            return None
        return self._watch.unread(self.references_of(address, description))

    def references_of(self, address: Address, description: Description) -> set[str]:
        """Kept for each description: to look through it takes its time."""
        kept = self._references.get(address)
        if kept is None or kept[0] is not description:
            kept = self._references[address] = (description, references_of(description))
        return kept[1]


def _print(value: str) -> bytes:
    """Tells values apart, in this process alone."""
    return hashlib.blake2b(value.encode(), key=_KEY).digest()
