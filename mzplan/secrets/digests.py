"""Digests that show whether a secret has changed, and reveal nothing else of it.

`"keyed:15:<key's name>:<salt>:<digest>"`: an HMAC with a key that is not in the store: nobody who reads or
writes a status can try passwords. It is over scrypt of the value, slow on purpose, should the key get lost as
well. The salt is one per status, and mixed with the reference: two references to one value differ.

The key is given (`MZPLAN_SECRETS_KEY`, for runners that are deployed and the jobs that shall see rotations),
or a file of this user on this machine, which a runner makes.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
import secrets
from functools import cache, lru_cache
from pathlib import Path

from mzplan.model.diagnostics import error

VARIABLE = "MZPLAN_SECRETS_KEY"
_LEAST = 32  # characters of a key that is given: a short one could be guessed as a secret can
_KEY_BYTES = 4096  # of the file, at most
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
                f"It keeps readers of the store from guessing secrets, and needs {_LEAST} characters.",
                "make one with `openssl rand -hex 32`, the same for the runner and for jobs that plan.",
            )
        return given.encode()
    try:
        handle = os.open(key_path(), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            return file.read(_KEY_BYTES) or None
    except (OSError, RuntimeError):
        return None


def own_key() -> bytes:
    """The key, which is made where there is none. Where no file can be made it is one of this process alone,
    and nobody else can compare its digests. Raises MzplanError MZ112."""
    key = find_key()
    if key is None:
        with contextlib.suppress(OSError, RuntimeError):
            _make(key_path())
        key = find_key()
    return key if key is not None else _key_of_this_process()


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


_NAME = "keyed"
_COST = 15  # log2 of scrypt's n: 32 MiB and some 90 ms of CPU, for each secret in each plan
_MOST_COST = 20  # the highest cost that is accepted from a status: an edited one must not take gigabytes


def new_salt() -> str:
    """A salt, as hex digits."""
    return os.urandom(16).hex()


def digest_secret(reference: str, value: str, salt: str) -> str:
    """The digest of what a reference resolves to. Raises MzplanError MZ112."""
    key = own_key()
    return f"{_NAME}:{_COST}:{name_of(key)}:{salt}:{_keyed(key, reference, value, salt, _COST)}"


def is_comparable(digest: str) -> bool:
    """Whether this process has the key of a digest. Raises MzplanError MZ112."""
    key = find_key()
    return key is not None and _name_of(digest) == name_of(key)


def is_same_secret(reference: str, value: str, digest: str) -> bool:
    """Whether a value is the one that was digested. True where that can't be seen: of another key, or
    damaged. Raises MzplanError MZ112."""
    key, salt = find_key(), salt_of(digest)
    if key is None or salt is None or _name_of(digest) != name_of(key):
        return True
    _, cost, _, _, expected = digest.split(":")
    if not cost.isdecimal() or not 1 <= int(cost) <= _MOST_COST or not expected:
        return True
    try:
        return hmac.compare_digest(_keyed(key, reference, value, salt, int(cost)), expected)
    except (ValueError, TypeError):  # the salt is no hex, the digest no ASCII
        return True


def salt_of(digest: str) -> str | None:
    """The salt of a digest; None where it can't be read."""
    parts = digest.split(":")
    return parts[3] if len(parts) == 5 and parts[0] == _NAME else None


def _name_of(digest: str) -> str | None:
    """The name of a digest's key; None for another text."""
    parts = digest.split(":")
    return parts[2] if len(parts) == 5 and parts[0] == _NAME else None


def _keyed(key: bytes, reference: str, value: str, salt: str, cost: int) -> str:
    return hmac.new(key, _scrypt(reference, value, salt, cost), hashlib.sha256).hexdigest()


@lru_cache(maxsize=256)  # kept in this process only
def _scrypt(reference: str, value: str, salt: str, cost: int) -> bytes:
    whole = bytes.fromhex(salt) + reference.encode()
    return hashlib.scrypt(value.encode(), salt=whole, n=2**cost, r=8, p=1, maxmem=2 ** (cost + 11), dklen=32)
