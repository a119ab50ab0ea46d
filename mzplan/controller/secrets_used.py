"""The secret values that the queries of an instance run with, and changes of these values.

The Status gets digests of the values.
"""

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

EVERY = 5.0  # seconds between reads of a file; remote values are cached for longer (mzplan.secrets.remote)
_KEY = os.urandom(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadValues:
    """The values of references when they were read, `at` seconds of the clock."""

    at: float
    by_reference: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """The values that a query was started with, as digests and prints (see _print) by reference."""

    at: float
    digests: Mapping[str, str]
    prints: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """A read of a reference: the print of its value, or the problem that prevented it."""

    at: float
    print: bytes | None = None
    problem: Diagnostic | None = None


class SecretsWatch:
    """Reads the references of running queries from time to time. `found` has the newest reads."""

    def __init__(self, secrets: Secrets, pool: Pool, clock: Callable[[], float]):
        self._secrets, self._clock = secrets, clock
        self._sampler: Sampler[str, str, _Look] = Sampler(self._look_at, pool, clock)
        self._prints: dict[str, bytes] = {}
        self.problems: dict[str, Diagnostic] = {}

    @property
    def found(self) -> Mapping[str, _Look]:
        return dict(self._sampler.found)

    def look(self, in_use: Mapping[str, Set[bytes]]) -> Set[str]:
        """Read the references that are due, and return the references with a changed value.

        A value is changed if it differs from the last call, unless all queries were already started with the
        new value, as by an apply. `in_use`: the prints of the values that queries use, by reference.
        """
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
        """Describe the problem of the first unreadable reference; None if all can be read."""
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
        """Log each problem when it starts and when it ends."""
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
    """Tracks the secret values that queries were started with, and changes of these values.

    Several threads record starts. `known` has the digests of an earlier status, which hold for queries that
    haven't been started since. `clock` returns monotonic seconds.
    """

    def __init__(self, secrets: Secrets, known: Mapping[str, str], pool: Pool, clock: Callable[[], float]):
        self._secrets = secrets
        self._known = known
        self._salt = next(filter(None, map(salt_of, known.values())), None) or new_salt()
        self._clock = clock
        self._watch = SecretsWatch(secrets, pool, clock)
        self._references: dict[Address, tuple[Description, set[str]]] = {}
        self._lock = threading.Lock()
        # In the order of the last start: the first query that uses a reference has its oldest value.
        self._used: dict[Address, _Start] = {}

    def read(self, description: Description) -> ReadValues:
        """Return the values that a query gets if it starts now, without unresolvable references."""
        at, values = self._clock(), {}
        for reference in references_of(description):
            try:
                values[reference] = self._secrets.resolve(reference)
            except MzplanError:
                continue
        return ReadValues(at=at, by_reference=values)

    def started(self, address: Address, values: ReadValues) -> None:
        """Record that the query was started with these values."""
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
        """Return the references whose values have changed since the last call."""
        in_use: dict[str, set[bytes]] = {}
        with self._lock:
            for start in self._used.values():
                for reference, used in start.prints.items():
                    in_use.setdefault(reference, set()).add(used)
        return self._watch.look(in_use)

    def of(self, wanted: Mapping[Address, Desired]) -> tuple[dict[str, str], tuple[str, ...]]:
        """Return the digests of the values that queries run with, and the changed references.

        Digests are by reference. A reference has the digest of its oldest value that a query still uses.
        """
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
        """Describe a query's secret that can't be read any more. The query still runs with it."""
        if not self._watch.problems:
            return None
        return self._watch.unread(self.references_of(address, description))

    def references_of(self, address: Address, description: Description) -> set[str]:
        """Return the references of a description. Cached, because the search is slow."""
        kept = self._references.get(address)
        if kept is None or kept[0] is not description:
            kept = self._references[address] = (description, references_of(description))
        return kept[1]


def _print(value: str) -> bytes:
    """Return a keyed hash that distinguishes values within this process."""
    return hashlib.blake2b(value.encode(), key=_KEY).digest()
