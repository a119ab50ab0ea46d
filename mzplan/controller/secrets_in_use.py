"""The secret values that the queries of an instance run with, and changes of these values.

The Status gets digests of the values.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, field

from mzplan.controller.decision import WantedQuery
from mzplan.controller.jobs import Jobs, Recurring
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.schema.description import Description, references_of
from mzplan.secrets.digests import digest_secret, new_salt, salt_of
from mzplan.secrets.references import Secrets

log = logging.getLogger("mzplan.runner")

READ_INTERVAL = 5.0  # seconds between reads; remote values are cached longer (mzplan.secrets.providers)
_KEY = os.urandom(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadValues:
    """The values of references when they were read, `at` seconds of the clock."""

    at: float
    by_reference: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """The values that a query was started with, as digests and hashes (see _hash) by reference."""

    at: float
    digests: Mapping[str, str]
    hashes: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """A read of a reference: the hash of its value, or the problem that prevented it."""

    at: float
    hash: bytes | None = None
    problem: Diagnostic | None = None


class SecretsWatch:
    """Reads the secret references of running queries periodically. `reads` has the newest results."""

    def __init__(self, secrets: Secrets, jobs: Jobs, clock: Callable[[], float]):
        self._secrets, self._clock = secrets, clock
        self._recurring: Recurring[str, str, _Read] = Recurring(jobs, "secret", self._read, clock)
        self._hashes: dict[str, bytes] = {}
        self.problems: dict[str, Diagnostic] = {}

    @property
    def reads(self) -> Mapping[str, _Read]:
        return dict(self._recurring.results)

    def poll(self, in_use: Mapping[str, Set[bytes]]) -> Set[str]:
        """Read the references that are due, and return the references with a changed value.

        A changed value differs from the last call's value. A change doesn't count if all queries already
        started with the new value, as after an apply. `in_use`: the hashes of the values that queries use, by
        reference.
        """
        watched = {reference: reference for reference in in_use if self._secrets.is_watched(reference)}
        self._recurring.poll(watched, lambda _: READ_INTERVAL)
        reads = self.reads
        changed = set()
        for reference, read in reads.items():
            is_new = read.hash is not None and self._hashes.get(reference, read.hash) != read.hash
            if is_new and in_use.get(reference, set()) != {read.hash}:
                log.info("%s has a new value: plan and drift show what still uses the old one", reference)
                changed.add(reference)
        self._hashes = {r: now for r, read in reads.items() if (now := read.hash or self._hashes.get(r))}
        self._log_problems({r: read.problem for r, read in reads.items() if read.problem is not None})
        return changed

    def problem(self, references: Collection[str]) -> str | None:
        """Describe the problem of the first unreadable reference; None if all can be read."""
        problem = next(
            (self.problems[reference] for reference in sorted(references) if reference in self.problems), None
        )
        return f"{problem.summary}: {problem.detail} Fix: {problem.hint}" if problem is not None else None

    def _read(self, reference: str) -> _Read:
        at = self._clock()
        try:
            return _Read(at=at, hash=_hash(self._secrets.resolve(reference, current=True)))
        except MzplanError as problem:
            return _Read(at=at, problem=problem.diagnostics[0])

    def _log_problems(self, problems: dict[str, Diagnostic]) -> None:
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

    Several threads record starts. `previous` has the digests of an earlier status, which still hold for
    queries that haven't restarted. `clock` returns monotonic seconds.
    """

    def __init__(self, secrets: Secrets, previous: Mapping[str, str], jobs: Jobs, clock: Callable[[], float]):
        self._secrets = secrets
        self._previous = previous
        self._salt = next(filter(None, map(salt_of, previous.values())), None) or new_salt()
        self._clock = clock
        self._watch = SecretsWatch(secrets, jobs, clock)
        self._references: dict[Address, tuple[Description, set[str]]] = {}
        self._lock = threading.Lock()
        # In the order of the last start: the first query that uses a reference has its oldest value.
        self._starts: dict[Address, _Start] = {}

    def read(self, description: Description) -> ReadValues:
        """Return the values that a query gets if it starts now. Leaves out references without a value."""
        at, values = self._clock(), {}
        for reference in references_of(description):
            try:
                values[reference] = self._secrets.resolve(reference)
            except MzplanError:
                continue
        return ReadValues(at=at, by_reference=values)

    def record_start(self, address: Address, values: ReadValues) -> None:
        """Record that the query was started with these values."""
        read = values.by_reference
        start = _Start(
            at=values.at,
            digests={r: digest_secret(r, value, self._salt) for r, value in read.items()},
            hashes={r: _hash(value) for r, value in read.items()},
        )
        with self._lock:
            self._starts.pop(address, None)
            self._starts[address] = start

    def changed_references(self) -> Set[str]:
        """Return the references whose values have changed since the last call."""
        in_use: dict[str, set[bytes]] = {}
        with self._lock:
            for start in self._starts.values():
                for reference, used in start.hashes.items():
                    in_use.setdefault(reference, set()).add(used)
        return self._watch.poll(in_use)

    def digests(self, wanted: Mapping[Address, WantedQuery]) -> tuple[dict[str, str], tuple[str, ...]]:
        """Return the digests of the values that queries run with, and the changed references.

        Digests are by reference. A reference has the digest of its oldest value that a query still uses.
        """
        for address in self._references.keys() - wanted.keys():
            del self._references[address]
        running = [
            (a, wanted_query.description) for a, wanted_query in wanted.items() if not wanted_query.paused
        ]
        used: set[str] = set().union(*(self.references_of(a, description) for a, description in running))
        with self._lock:
            for address in self._starts.keys() - {a for a, _ in running}:
                del self._starts[address]
            starts = list(self._starts.values())
        current: dict[str, str] = {}
        rotated: set[str] = set()
        reads = self._watch.reads
        for start in starts:
            for reference, digest in start.digests.items():
                current.setdefault(reference, digest)
            for reference, used_hash in start.hashes.items():
                read = reads.get(reference)
                if read is not None and read.at > start.at and read.hash not in (None, used_hash):
                    rotated.add(reference)
        digests = {r: d for r, d in sorted({**self._previous, **current}.items()) if r in used}
        return digests, tuple(sorted(rotated & used))

    def problem(self, address: Address, description: Description) -> str | None:
        """Describe a secret of a query that can no longer be read. The query still runs with its value."""
        if not self._watch.problems:
            return None
        return self._watch.problem(self.references_of(address, description))

    def references_of(self, address: Address, description: Description) -> set[str]:
        """Return the references of a description. Cached, because the search is slow."""
        cached = self._references.get(address)
        if cached is None or cached[0] is not description:
            cached = self._references[address] = (description, references_of(description))
        return cached[1]


def _hash(value: str) -> bytes:
    """Return a keyed hash that distinguishes values within this process."""
    return hashlib.blake2b(value.encode(), key=_KEY).digest()
