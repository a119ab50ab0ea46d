"""The store of one project, on any backend: State, Status, leases and proposals.

docs/internals/protocol.md says who reads and writes each file, and what a crash leaves behind.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.host.processes import pid_space, started_at, user
from mzplan.model.address import Address, Place
from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.model.history import CommitOutcome, HistoryEntry
from mzplan.model.observed import Recent, Status
from mzplan.model.resources import ProjectSettings
from mzplan.model.state import State
from mzplan.schema.description import Description
from mzplan.store.backends.backend import (
    ANY,
    Backend,
    ConflictError,
    Expected,
    LockInfo,
    UnknownWriteError,
    locked_error,
    lost_error,
)
from mzplan.store.backends.local import STATE_KEY, LocalBackend
from mzplan.store.formats import (
    FORGO_HINT,
    decode_accepted,
    decode_head,
    decode_outcome,
    decode_recent,
    decode_state,
    decode_status,
    encode_accepted,
    encode_outcome,
    encode_recent,
    encode_state,
    encode_status,
    serial_in_status,
)
from mzplan.store.journal import Dropped, PastRun, Prepared, decode_journal, encode_journal
from mzplan.store.leases import Leases, Sightings, is_blank

if TYPE_CHECKING:
    from mzplan.store.proposals import Proposals

T = TypeVar("T")
HOLD_KEY = "hold.json"
APPEND_WAIT = 60.0  # seconds


def open_store(settings: ProjectSettings) -> Store:
    """Return the store that mzplan.yaml names. It is opened on first use."""
    return Store(
        _backend(settings),
        settings.project,
        environment=settings.environment,
        environments=frozenset(settings.environments),
    )


def _backend(settings: ProjectSettings) -> Backend:
    directory = settings.state_directory
    match settings.state.get("backend"):
        case "postgres":
            from mzplan.store.backends.postgres import PostgresBackend

            return PostgresBackend(settings.state, directory, settings.project)
        case "object-store":
            from mzplan.store.backends.objects import ObjectStoreBackend

            return ObjectStoreBackend(settings.state, directory)
    return LocalBackend(_folder(settings))


def misplaced_state(settings: ProjectSettings) -> MzplanError | None:
    """Return MZ030 if the state's local folder can't exist; otherwise None."""
    local = settings.state.get("backend") not in ("postgres", "object-store")
    return LocalBackend(_folder(settings)).misplaced() if local else None


def _folder(settings: ProjectSettings) -> Path:
    return Path(settings.state_directory) / str(settings.state.get("path", "state"))


class Store:
    """The shared files of one project. Safe for several processes.

    `environment`: the environment that the store belongs to, of the project's `environments`.
    """

    def __init__(
        self,
        backend: Backend,
        project: str,
        sightings: Sightings | None = None,
        environment: str = "",
        environments: frozenset[str] = frozenset(),
    ):
        self.backend = backend
        self.project = project
        self.environment = environment
        self.environments = environments
        self.leases = Leases(backend, sightings or Sightings())

    @cached_property
    def proposals(self) -> Proposals:
        from mzplan.store.proposals import Proposals  # only for live validation

        return Proposals(self.backend)

    # --- State

    def read_state(self) -> State:
        """Return the committed state; without any commit, serial 0 with no lineage.

        Raises MZ030 if the state can't be read, is gone, or is older than the history. Raises MZ034 (exit 7)
        if it belongs to another environment.
        """
        blob = self.backend.read(STATE_KEY)
        place = f"{self.backend.describe()}/{STATE_KEY}"
        state = decode_state(blob.data, place) if blob is not None else State(project=self.project)
        # Don't mistake a lost file for a new project, or an older file for the state. Otherwise, the next
        # commit would reuse serials of the history and drop running queries. Usually, the history has only
        # earlier serials, of which there may be many.
        newest = max(self.serials(state.serial), default=0)
        serial_read = max((serial_in_status(data) for data in self._status_files()), default=0)
        problem = ""
        if blob is None and (newest or serial_read > 0):
            problem = "is gone"
        elif state.serial < max(newest, serial_read):
            problem = f"has serial {state.serial}"
        elif state.serial == newest > 0 and self.read_serial(newest) != state:
            problem = f"differs from serial {state.serial} of its history"
        if problem:
            if self.backend.version(STATE_KEY) != (blob.version if blob is not None else None):
                return self.read_state()  # somebody has committed meanwhile
            raise self._lost_state(problem, max(self.serials(), default=0), serial_read)
        if blob is not None:
            self.ensure_own(state, self.backend.describe())
        return state

    def ensure_own(self, state: State, place: str) -> None:
        """Raise MZ034 (exit 7) if the state belongs to another environment.

        Accepts a state whose environment is no longer declared, because the environment was renamed.
        """
        environment = state.environment
        if environment != self.environment and environment in self.environments:
            raise error(
                "MZ034.state-belongs-environment",
                environment=environment,
                place=place,
                own_environment=self.environment,
            )

    def _status_files(self) -> Iterator[bytes]:
        for key in self.backend.list("status/"):
            if key.count(".") == 1 and (blob := self.backend.read(key)) is not None:
                yield blob.data

    def read_edited(self) -> State:
        """Return the state with manual edits, for display only. Never act on it."""
        blob = self.backend.read(STATE_KEY)
        if blob is None:
            return State(project=self.project)
        return decode_state(blob.data, f"{self.backend.describe()}/{STATE_KEY}", checked=False)

    def serials(self, first: int = 0) -> list[int]:
        """Return the serials in the history, in order, from `first` on."""
        keys = self.backend.list("history/", after=serial_key(first - 1) if first > 0 else "")
        names = (key.removeprefix("history/").removesuffix(".json") for key in keys)
        return sorted(int(name) for name in names if name.isdecimal())

    def read_serial(self, serial: int) -> State | None:
        """Return the state of an earlier serial, or None if the history doesn't have it."""
        key = serial_key(serial)
        blob = self.backend.read(key)
        return decode_state(blob.data, f"{self.backend.describe()}/{key}", hint=FORGO_HINT) if blob else None

    # --- History

    def prune_history(self, keep: int) -> list[int]:
        """Remove the earlier serials except the newest `keep`, and return them. The caller holds the lock."""
        removed = self.serials()[:-keep]
        for serial in removed:
            self.backend.delete(outcome_key(serial))
            self.backend.delete(serial_key(serial))
        return removed

    def read_history(self, limit: int | None = None) -> list[HistoryEntry]:
        """Return at most `limit` committed serials, the newest first. Raises MZ030 for a damaged one."""
        entries: list[HistoryEntry] = []
        current = self.backend.read(STATE_KEY)
        if current is not None:
            entries.append(self._entry(current.data, STATE_KEY, current=True))
        for serial in reversed(self.serials()):
            if limit is not None and len(entries) >= limit:
                break
            blob = self.backend.read(serial_key(serial))
            # After a crash, the history may already contain the current serial.
            if blob is not None and not (entries and entries[-1].serial <= serial):
                entries.append(self._entry(blob.data, serial_key(serial), current=False))
        return entries[:limit]

    def _entry(self, data: bytes, key: str, *, current: bool) -> HistoryEntry:
        place = f"{self.backend.describe()}/{key}"
        head = decode_head(data, place) if current else decode_head(data, place, FORGO_HINT)
        return HistoryEntry(
            serial=head.serial,
            current=current,
            commit=head.commit,
            outcome=self.read_outcome(head.lineage, head.serial),
        )

    def read_outcome(self, lineage: str, serial: int) -> CommitOutcome | None:
        """Return how a serial ended, or None if that isn't recorded."""
        outcome = self._read(outcome_key(serial), decode_outcome, None)
        return outcome if outcome is not None and outcome.lineage == lineage else None

    def write_outcome(self, outcome: CommitOutcome) -> None:
        """Record how a serial ended, unless that is already recorded."""
        with contextlib.suppress(ConflictError):
            self.backend.write(outcome_key(outcome.serial), encode_outcome(outcome), expected=None)

    # ---

    def serial_digest(self, serial: int) -> str | None:
        """Return the SHA-256 of the state file of a serial; None if the store doesn't have that serial."""
        current = self.backend.read(STATE_KEY)
        if current is not None and decode_state(current.data, STATE_KEY).serial == serial:
            return hashlib.sha256(current.data).hexdigest()
        earlier = self.backend.read(serial_key(serial))
        return hashlib.sha256(earlier.data).hexdigest() if earlier is not None else None

    def state_version(self) -> str | None:
        """Return a version that changes with every commit: a cheap check for a new serial."""
        return self.backend.version(STATE_KEY)

    def commit(self, new: State, planned_on: State) -> None:
        """Replace the state by its successor.

        `planned_on` is the state that `read_state` returned under the lock. If the stored state differs,
        raises MZ036 (exit 5) and writes nothing.
        """
        current = self.backend.read(STATE_KEY)
        stored = decode_state(current.data, STATE_KEY) if current else State(project=self.project)
        if (stored.lineage, stored.serial) != (planned_on.lineage, planned_on.serial):
            raise _stale(planned_on, stored)
        failpoint(Failpoint.COMMIT_BEFORE_HISTORY)
        if current is not None:
            self._archive(stored, current.data)
        if not self._put(new, current.version if current else None):
            raise _stale(planned_on, self.read_state())

    def replace_damaged(self, new: State) -> None:
        """Replace an unreadable state by `new`, and keep the unreadable file in the history.

        The caller holds the lock, and the user has asked for the replacement.
        """
        current = self.backend.read(STATE_KEY)
        if current is not None:
            self.backend.write(f"history/damaged-before-{new.serial:08d}.json", current.data)
        self._put(new, ANY)

    def _put(self, new: State, expected: Expected) -> bool:
        """Write the state; return False if another state is in its place.

        Raises MZ175 (exit 8) if the outcome is unknown. mzplan then reports neither success nor "no
        change".
        """
        data = encode_state(new)
        try:
            self.backend.write(STATE_KEY, data, expected=expected)
        except UnknownWriteError as problem:
            raise _unknown(new.serial, problem) from None
        except ConflictError:
            # Perhaps the write succeeded, its answer was lost, and another command has committed a later
            # serial since.
            try:
                return self.serial_digest(new.serial) == hashlib.sha256(data).hexdigest()
            except MzplanError as problem:
                raise _unknown(new.serial, problem) from None
        return True

    def _archive(self, state: State, data: bytes) -> None:
        """Put the state with its file content `data` into the history, if it isn't there yet."""
        try:
            self.backend.write(serial_key(state.serial), data, expected=None)
        except ConflictError:
            if self.read_serial(state.serial) != state:
                problem = f"differs from serial {state.serial} of its history"
                raise self._lost_state(problem, state.serial, 0) from None

    def _lost_state(self, problem: str, newest: int, serial_read: int) -> MzplanError:
        return lost_error(f"{self.backend.describe()}/{STATE_KEY}", problem, newest, serial_read)

    @contextlib.contextmanager
    def lock(self, command: str, wait: float = 0.0) -> Iterator[LockInfo]:
        """Hold the lock while a command works. Raises MZ033 (exit 6), naming the owner, if it is held."""
        info = LockInfo(
            id=secrets.token_hex(6),
            command=command,
            user=user(),
            host=socket.gethostname(),
            pid=os.getpid(),
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            pid_started=started_at(os.getpid()),
            pid_space=pid_space(),
        )
        with self.backend.lock(info, wait):
            if (holder := self._manual_holder()) is not None:
                raise locked_error(holder, self.backend.describe(), by_hand=True)
            yield info

    def lock_for_append(self) -> contextlib.AbstractContextManager[LockInfo]:
        """Hold the lock for an append to steps in an object store, which has no lock of its own.

        Waits for another append or apply to finish.
        """
        return self.lock("append", wait=APPEND_WAIT)

    def hold(self, info: LockInfo) -> None:
        """Lock the state until `release`, even after this process ends.

        The caller holds the lock.
        """
        self.backend.write(HOLD_KEY, info.encode())

    def holder(self) -> LockInfo | None:
        """Return the holder of the lock: the user of `state lock`, or the holder that the backend reports."""
        return self._manual_holder() or self.backend.holder()

    def release(self, id_: str) -> LockInfo | None:
        """Release the lock with this id, whoever holds it. Returns None if no lock has this id."""
        holder = self._manual_holder()
        if holder is not None and holder.id == id_:
            self.backend.delete(HOLD_KEY)
            return holder
        return self.backend.unlock(id_)

    def _manual_holder(self) -> LockInfo | None:
        """Return the user of `state lock`, if any."""
        blob = self.backend.read(HOLD_KEY)
        return LockInfo.decode_or_somebody(blob.data) if blob is not None else None

    # --- Status

    def read_status(self, instance: str) -> Status | None:
        """Return the status, or None if there is none or a power failure emptied it.

        The runner then writes it again.
        """
        key = f"status/{instance}.json"
        blob = self.backend.read(key)
        return decode_status(blob.data, key) if blob and not is_blank(blob.data) else None

    def status_version(self, instance: str) -> str | None:
        """Return a version that changes with every write: a cheap check for a new status."""
        return self.backend.version(f"status/{instance}.json")

    def read_statuses(self) -> dict[str, Status]:
        keys = [k for k in self.backend.list("status/") if k.count(".") == 1]
        statuses = (self.read_status(key.removeprefix("status/").removesuffix(".json")) for key in keys)
        return {status.instance: status for status in statuses if status is not None}

    def write_status(self, status: Status, *, durable: bool = False) -> None:
        """Write a status. `durable`: wait for the disk, because the runner is about to act on the status."""
        self.backend.write(f"status/{status.instance}.json", encode_status(status), durable=durable)

    def read_recent(self, instance: str) -> Recent:
        """Return the samples that the instance's runner recorded in the last hour."""
        return self._read(f"status/{instance}.recent.json", decode_recent, {})

    def write_recent(self, instance: str, recent: Recent) -> None:
        self.backend.write(f"status/{instance}.recent.json", encode_recent(recent))

    def read_accepted(self, instance: str) -> dict[Address, Description]:
        return self._read(f"status/{instance}.accepted.json", decode_accepted, {})

    def write_accepted(self, instance: str, accepted: Mapping[Address, Description]) -> None:
        self.backend.write(f"status/{instance}.accepted.json", encode_accepted(accepted))

    def read_journal(self, instance: str) -> list[Dropped]:
        return self._read(f"journal/{instance}.jsonl", partial(decode_journal, Dropped), [])

    def write_journal(self, instance: str, entries: Iterable[Dropped]) -> None:
        self.backend.write(f"journal/{instance}.jsonl", encode_journal(entries))

    def read_prepared(self, instance: str) -> list[Prepared]:
        """Return the exports that are prepared but not yet created."""
        return self._read(f"journal/{instance}.prepared.jsonl", partial(decode_journal, Prepared), [])

    def read_past_runs(self, instance: str) -> frozenset[Place]:
        """Return the storage of past queries of an instance that no other file records any more.

        The storage was removed, or is claimed again. A rollback may bring such a query back much later. The
        query then resumes from its checkpoint; without the checkpoint, it doesn't start.
        """
        key = f"journal/{instance}.former.jsonl"
        runs: list[PastRun] = self._read(key, partial(decode_journal, PastRun), [])
        return frozenset(run.place for run in runs)

    def write_past_runs(self, instance: str, places: Iterable[Place]) -> None:
        """Durably replace the past runs. Only the instance's leading runner calls this."""
        runs = [PastRun(id=id_, generation=generation) for id_, generation in places]
        self.backend.write(f"journal/{instance}.former.jsonl", encode_journal(runs))

    def write_prepared(self, instance: str, entries: Iterable[Prepared]) -> None:
        self.backend.write(f"journal/{instance}.prepared.jsonl", encode_journal(entries))

    def _read(self, key: str, decode: Callable[[bytes, str], T], missing: T) -> T:
        """Return the decoded content of a key, or `missing` if there is none."""
        blob = self.backend.read(key)
        return decode(blob.data, key) if blob is not None else missing


def serial_key(serial: int) -> str:
    return f"history/{serial:08d}.json"


def outcome_key(serial: int) -> str:
    return f"history/{serial:08d}.outcome.json"


def digest_of_state(state: State) -> str:
    """Return the SHA-256 of a state as `commit` writes it (see `Store.serial_digest`)."""
    return hashlib.sha256(encode_state(state)).hexdigest()


def _stale(planned_on: State, stored: State) -> Exception:
    detail = f"The plan was made on serial {planned_on.serial}; the state now has serial {stored.serial}."
    if planned_on.lineage and stored.lineage and planned_on.lineage != stored.lineage:
        detail = "The state has another lineage: it belongs to another project, or was started again."
    return error("MZ036.plan-stale-nothing-changed", why=detail)


def _unknown(serial: int, problem: MzplanError) -> UnknownWriteError:
    (why, *_) = problem.diagnostics
    return UnknownWriteError(
        Diagnostic.of("MZ175.unknown-whether", serial=serial, what=why.summary, why=why.detail)
    )
