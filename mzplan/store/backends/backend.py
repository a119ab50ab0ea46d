"""The backend of a store: named blobs with compare-and-swap, and one lock.

Every file format stands above this interface (see mzplan.store.store), so a new backend is only these
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
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError, error
from mzplan.model.stored import SPARSE
from mzplan.schema.loading import load_schema
from mzplan.schema.properties import takes_secret
from mzplan.secrets.references import Secrets


class Blob(NamedTuple):
    """The bytes of a key, and their version: an opaque text that differs after every write."""

    data: bytes
    version: str


class ConflictError(Exception):
    """A compare-and-swap found another version than it expected: somebody else has written."""


class CommittedError(MzplanError):
    """The state is replaced, and whoever reads sees it; but something has failed after that (exit 8)."""


class UnknownWriteError(MzplanError):
    """A write, or the removal of a key, whose answer was lost: it may have been done, or be done yet.
    `undone`: what it is where a look shows that it was not done, and will not be."""

    undone: MzplanError | None = None


class _Any:
    """Stands for 'whatever version is there'."""


ANY = _Any()
Expected = str | None | _Any  # a version, None for 'the key must not exist', or ANY


@dataclass(frozen=True, slots=True, kw_only=True)
class LockInfo:
    """Who holds the lock. `time` is ISO 8601, UTC; `pid_started` and `pid_space` as of a Lease."""

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
        """The inverse of encode. Raises ValueError for what was cut, or written by hand."""
        return decode(cls, parse_json(data))

    @classmethod
    def decode_or_somebody(cls, data: bytes) -> LockInfo:
        """The inverse; somebody, where that is to be read by nobody."""
        try:
            return cls.decode(data)
        except ValueError:
            return cls(id="unknown", command="?", user="somebody", host="?", pid=0, time="?")

    @property
    def is_alive(self) -> bool | None:
        """Whether its process lives; None where that can't be seen from here: another machine or container
        (of whatever name), or a boot before this one."""
        if self.host != socket.gethostname() or self.pid_space != pid_space():
            return None
        return is_alive(self.pid, self.pid_started)


class Backend(Protocol):
    """Blobs by key. Keys are relative paths with `/`. Every method raises MzplanError (MZ030 for reads,
    MZ035 for writes, MZ095 where it can't be reached) when the backend itself fails; the old content is then
    intact, unless it is an UnknownWriteError."""

    @property
    def look(self) -> float:
        """Seconds that a command which waits for something leaves between two looks."""

    @property
    def idle(self) -> float:
        """Seconds that a runner with nothing to do leaves between two looks."""

    def read(self, key: str) -> Blob | None:
        """The blob, or None when there is none."""

    def version(self, key: str) -> str | None:
        """The version alone, cheaply: to see whether anything changed."""

    def write(self, key: str, data: bytes, *, expected: Expected = ANY, durable: bool = True) -> str:
        """Replace a blob, whole or not at all; returns the new version. Raises ConflictError when the version
        there is not `expected`: never because of this very write, whose answer was lost and which was tried
        again. `durable=False` may skip waiting for the disk (heartbeats)."""

    def delete(self, key: str) -> None:
        """Remove a blob; no error when there is none."""

    def list(self, prefix: str) -> list[str]:
        """The keys below a prefix (`"proposals/"`), sorted."""

    def lock(self, info: LockInfo, wait: float) -> AbstractContextManager[None]:
        """Hold the store's one lock, waiting at most so many seconds; raises MZ033 (exit 6), with the
        owner, when somebody else holds it."""

    def holder(self) -> LockInfo | None:
        """Who holds the lock now; None when nobody does."""

    def unlock(self, id_: str) -> LockInfo | None:
        """Take the lock with this id from its holder. Returns the holder; None when no lock has this id.
        Raises MZ033 when it can't be taken: its process lives on this machine."""

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Have `wake` called when somebody commits or proposes, where the backend can; returns how to end
        that. Nothing may depend on it."""

    def describe(self) -> str:
        """Where it is, for people."""


def unreachable(place: str, why: str, hint: str) -> MzplanError:
    """MZ095: the backend does not answer, or does not let us in."""
    return error(
        "MZ095",
        f"The state in {place} can't be reached",
        f"{why}. Nothing was changed.",
        hint,
        kind="unreachable",
    )


def unknown_write(
    place: str, key: str, why: str, hint: str, undone: MzplanError | None = None
) -> UnknownWriteError:
    """MZ095: the backend has not answered a write, or not well."""
    failure = UnknownWriteError(
        Diagnostic(
            code="MZ095",
            kind="unreachable",
            summary=f"The state in {place} can't be reached",
            detail=f"{why}. Whether {key} was written before that is not known.",
            hint=hint,
        )
    )
    failure.undone = undone
    return failure


def locked_error(holder: LockInfo | None, place: str, *, by_hand: bool = False) -> MzplanError:
    """MZ033: the state is locked, by whom and since when, and whether that process still lives. `by_hand`:
    with `state lock`, so no process needs to live."""
    alive = holder.is_alive if holder is not None and not by_hand else None
    if holder is None:
        detail = f"Another mzplan command holds the lock of {place}."
    elif by_hand:
        detail = (
            f"{holder.user} on {holder.host} has locked it by hand ({holder.command}), at {holder.time}"
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
        gone = "when they agree" if by_hand else "if that process is gone for certain"
        hint = f"wait for it; {gone}: mzplan state unlock {shlex.quote(holder.id)}"
    return error("MZ033", "The state is locked", detail, hint, exit_code=ExitCode.LOCKED)


def _age(holder: LockInfo) -> str:
    """` (3 min ago)`; "" where the time can't be read."""
    try:
        seconds = (datetime.now(UTC) - datetime.fromisoformat(holder.time)).total_seconds()
    except (ValueError, TypeError):
        return ""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        if seconds >= size:
            return f" ({seconds / size:.0f} {unit} ago)"
    return " (just now)"


def lost_error(place: str, what: str, newest: int, seen: int) -> MzplanError:
    """MZ030: the state at a place `is gone`, or is not the latest. `newest`: the last serial of the history,
    `seen`: the last that a runner has taken in; 0: none."""
    if newest >= seen:
        detail = f"Its history goes to serial {newest}: this is neither a new project nor its latest state."
    else:
        detail = f"A runner has taken in serial {seen}: this is neither a new project nor its latest state."
    hint = "take FILE, the latest, from version control or a backup, then mzplan state push FILE --force"
    if newest:
        hint += (
            f"; or mzplan state pull --serial {newest} --out FILE, then mzplan state push FILE --force: "
            "then `mzplan plan` shows what came after that serial"
        )
    hint += "."
    return error("MZ030", f"{place} {what}", f"{detail} Nothing was changed.", hint, kind="damaged")


def misplaced_error(key: str, what: str, instance: str) -> MzplanError:
    return error(
        "MZ030",
        f"{key} is not the {what} of this instance",
        f"It is that of instance {instance}.",
        "delete it: the runner writes it anew.",
    )


def resolved_settings(settings: Mapping[str, Any], directory: str) -> dict[str, Any]:
    """`state` of mzplan.yaml, with the values of its secrets. Raises MzplanError where one has none."""
    schema = load_schema("project")["properties"]["state"]
    takes = partial(takes_secret, schema)
    return dict(Secrets(directory).fill(settings, takes, "mzplan.yaml, state"))
