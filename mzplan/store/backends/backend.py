"""The backend of a store: named blobs with compare-and-swap, and one lock.

Every file format is built on this interface (see mzplan.store.store), so a new backend needs only these
few methods.
"""

from __future__ import annotations

import json
import shlex
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, Protocol

from mzplan.host.processes import is_alive, pid_space
from mzplan.model.codec import decode, encode, parse_json
from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.model.stored import SPARSE
from mzplan.schema.loading import load_schema
from mzplan.schema.properties import takes_secret
from mzplan.secrets.references import Secrets


class Blob(NamedTuple):
    """The bytes of a key and their version, an opaque text that changes with every write."""

    data: bytes
    version: str


class ConflictError(Exception):
    """A compare-and-swap found another version than it expected: another process has written."""


class CommittedError(MzplanError):
    """The state is replaced and visible to readers, but a later step failed (exit 8)."""


class UnknownWriteError(MzplanError):
    """A write or removal whose answer was lost, so that its outcome is unknown.

    `undone`: the error to raise if a read shows that the write didn't happen and won't happen.
    """

    undone: MzplanError | None = None


class _Any:
    """The type of ANY, which stands for any current version."""


ANY = _Any()
Expected = str | None | _Any  # a version, None for "the key must not exist", or ANY


@dataclass(frozen=True, slots=True, kw_only=True)
class LockInfo:
    """The holder of the lock.

    - `time`: when the holder took the lock, ISO 8601 in UTC.
    - `pid_started`, `pid_space`: see Lease.
    """

    id: str
    command: str
    user: str
    host: str
    pid: int
    time: str
    pid_started: float = field(default=0.0, metadata=SPARSE)
    pid_space: str = field(default="", metadata=SPARSE)

    def encode(self) -> bytes:
        return json.dumps(encode(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> LockInfo:
        """Decode the output of encode. Raises ValueError for truncated or hand-written data."""
        return decode(cls, parse_json(data))

    @classmethod
    def decode_or_somebody(cls, data: bytes) -> LockInfo:
        """Decode the output of encode; return an unknown holder for unreadable data."""
        try:
            return cls.decode(data)
        except ValueError:
            return cls(id="unknown", command="?", user="somebody", host="?", pid=0, time="?")

    @property
    def is_alive(self) -> bool | None:
        """Whether its process lives; None if this process can't check that.

        It can't check processes of another machine, of another container (even with this host name), or of
        an earlier boot.
        """
        if self.host != socket.gethostname() or self.pid_space != pid_space():
            return None
        return is_alive(self.pid, self.pid_started)


class Backend(Protocol):
    """Blobs by key. Keys are relative paths with `/`.

    Every method raises MzplanError if the backend fails: MZ030 for reads, MZ035 for writes, MZ095 if it can't
    be reached. The old content is then intact, except after an UnknownWriteError.
    """

    @property
    def poll_interval(self) -> float:
        """Seconds between two polls of a command that waits for something."""

    @property
    def idle_interval(self) -> float:
        """Seconds between two polls of an idle runner."""

    def read(self, key: str) -> Blob | None:
        """Return the blob, or None if there is none."""

    def version(self, key: str) -> str | None:
        """Return only the version: a cheap check for changes."""

    def write(self, key: str, data: bytes, *, expected: Expected = ANY, durable: bool = True) -> str:
        """Replace a blob atomically and return the new version.

        Raises ConflictError if the current version isn't `expected`, unless an earlier attempt of this same
        write has already succeeded. With `durable=False`, the backend needn't wait for the disk
        (heartbeats).
        """

    def delete(self, key: str) -> None:
        """Remove a blob if it exists."""

    def list(self, prefix: str, after: str = "") -> list[str]:
        """Return the keys below a prefix (`"proposals/"`), sorted; only those that sort after `after`."""

    def lock(self, info: LockInfo, wait: float) -> AbstractContextManager[None]:
        """Hold the store's one lock, waiting at most `wait` seconds.

        Raises MZ033 (exit 6), naming the owner, if another process holds it.
        """

    def holder(self) -> LockInfo | None:
        """Return the holder of the lock, or None."""

    def unlock(self, id_: str) -> LockInfo | None:
        """Take the lock with this id from its holder.

        Returns the holder, or None if no lock has this id. Raises MZ033 if the holder's process lives on this
        machine.
        """

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` on every commit or proposal, if the backend can. Return a function that stops this.

        No caller may depend on these calls.
        """

    def describe(self) -> str:
        """Return the location, for people."""


def unreachable(place: str, why: str, hint: str) -> MzplanError:
    """Return MZ095: the backend doesn't answer or refuses access."""
    return error("MZ095.state-cannot", place=place, why=why, how=hint)


def unknown_write(
    place: str, key: str, why: str, hint: str, undone: MzplanError | None = None
) -> UnknownWriteError:
    """Return MZ095: the backend's answer to a write is missing or unclear."""
    failure = UnknownWriteError(
        Diagnostic.of("MZ095.state-cannot-reached", place=place, why=why, key=key, how=hint)
    )
    failure.undone = undone
    return failure


def locked_error(holder: LockInfo | None, place: str, *, by_hand: bool = False) -> MzplanError:
    """Return MZ033: who holds the state's lock, since when, and whether the holder's process still lives.

    `by_hand`: whether `state lock` holds the lock, which needs no live process.
    """
    alive = holder.is_alive if holder is not None and not by_hand else None
    if holder is None:
        detail = f"Another mzplan command holds the lock of {place}."
    elif by_hand:
        detail = (
            f"{holder.user} on {holder.host} locked it by hand ({holder.command}) at {holder.time}"
            f"{_age(holder)}. Lock id: {holder.id}."
        )
    else:
        life = {True: ", alive", False: ", no longer alive", None: ""}[alive]
        detail = (
            f"`mzplan {holder.command}` of {holder.user} on {holder.host} (pid {holder.pid}{life}) has held "
            f"it since {holder.time}{_age(holder)}. Lock id: {holder.id}."
        )
    hint = "wait until it has finished, then run the command again."
    if holder is not None and (by_hand or not alive):
        end, condition = "it has finished", "that process is gone for certain"
        if by_hand:
            end, condition = f"{holder.user} releases it", "they agree"
        hint = f"wait until {end}. If {condition}: mzplan state unlock {shlex.quote(holder.id)}"
    return error("MZ033.state-locked", why=detail, how=hint)


def removable(holder: LockInfo | None, id_: str, place: str) -> LockInfo | None:
    """Return the holder if it has this lock id, so that `unlock` may take the lock from it; else None.

    Raises MZ033 if the holder's process lives on this machine.
    """
    if holder is None or holder.id != id_:
        return None
    if holder.is_alive:
        raise locked_error(holder, place)
    return holder


def _age(holder: LockInfo) -> str:
    """Return text like ` (3 min ago)`; "" if the time can't be read."""
    try:
        seconds = (datetime.now(UTC) - datetime.fromisoformat(holder.time)).total_seconds()
    except (ValueError, TypeError):
        return ""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        if seconds >= size:
            return f" ({seconds / size:.0f} {unit} ago)"
    return " (just now)"


def lost_error(place: str, problem: str, newest: int, serial_read: int) -> MzplanError:
    """Return MZ030: the state at `place` is gone or isn't the latest one; `problem` says which.

    `newest`: the last serial of the history, or 0. `serial_read`: the last serial that a runner read, or 0.
    """
    if newest >= serial_read:
        proof = f"Its history goes to serial {newest}"
    else:
        proof = f"A runner has read serial {serial_read}"
    detail = f"{proof}, so the project isn't new, and its latest state is missing."
    hint = "get the latest FILE from version control or a backup, then run mzplan state push FILE --force"
    if newest:
        hint += (
            f"; or run mzplan state pull --serial {newest} --out FILE, then mzplan state push FILE --force; "
            "`mzplan plan` then shows which changes since that serial are lost"
        )
    hint += "."
    return error("MZ030.nothing-changed", place=place, problem=problem, why=detail, how=hint)


def resolved_settings(settings: Mapping[str, Any], directory: str) -> dict[str, Any]:
    """Return the `state:` settings with their secrets filled in. Raises MzplanError for a missing secret."""
    schema = load_schema("project")["properties"]["state"]
    takes = partial(takes_secret, schema)
    return dict(Secrets(directory).fill(settings, takes, "mzplan.yaml, state"))
