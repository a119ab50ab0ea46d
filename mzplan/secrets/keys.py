"""The key of secrets' digests: who reads or writes the store does not have it, and so can't guess at secrets.

It is given (`MZPLAN_SECRETS_KEY`, for runners that are deployed and the jobs that shall see rotations), or a
file of this user on this machine, which a runner makes.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
from functools import cache
from pathlib import Path

from mzplan.model.diagnostics import error

VARIABLE = "MZPLAN_SECRETS_KEY"
_LEAST = 32  # characters of a key that is given: a short one could be guessed as a secret can
_MOST = 4096  # bytes of the file
log = logging.getLogger("mzplan.secrets")


def key_path() -> Path:
    """Where a user's key is. Raises RuntimeError for a user without a home."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".config") / "mzplan" / "secrets.key"


def find_key() -> bytes | None:
    """The key, if there is one. Raises MzplanError MZ112 for one that is given and too short."""
    given = os.environ.get(VARIABLE, "")
    if given:
        if len(given) < _LEAST:
            raise error(
                "MZ112",
                f"{VARIABLE} is too short",
                f"It keeps secrets from being guessed by what the store has of them: {_LEAST} characters or "
                "more.",
                "make one with `openssl rand -hex 32`, the same for the runner and for jobs that plan.",
            )
        return given.encode()
    try:
        handle = os.open(key_path(), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            return file.read(_MOST) or None
    except (OSError, RuntimeError):
        return None


def own_key() -> bytes:
    """The key, which is made where there is none. Where no file can be made it is one of this process alone,
    and nobody else can compare its digests. Raises MzplanError MZ112."""
    found = find_key()
    if found is None:
        with contextlib.suppress(OSError, RuntimeError):
            _make(key_path())
        found = find_key()
    return found if found is not None else _key_of_this_process()


def name_of(key: bytes) -> str:
    """A short name, by which two processes see whether they have one key; it does not give the key away."""
    return hashlib.sha256(b"mzplan secrets key\0" + key).hexdigest()[:12]


@cache
def _key_of_this_process() -> bytes:
    log.warning(
        "no key of secrets' digests can be kept here: set %s for rotated secrets to be seen", VARIABLE
    )
    return secrets.token_bytes(32)


def _make(path: Path) -> None:
    """A new key, whole at once, for its owner alone; the first of several processes wins."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_hex(32).encode())
        os.link(fresh, path)
    finally:
        fresh.unlink()
