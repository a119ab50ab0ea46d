"""Digests that reveal whether a secret has changed, and nothing else about it.

The format is `"keyed:15:<key name>:<salt>:<digest>"`. The digest is an HMAC whose key isn't in the store, so
a reader of a status can't try passwords. The HMAC covers scrypt of the value, which is slow on purpose, in
case the key leaks. Each status has one salt. It is combined with the reference, so two references to one
value have different digests.

Deployed runners, and jobs that should detect rotations, get the key from `MZPLAN_SECRETS_KEY`. Otherwise a
runner creates it in a file of this user on this machine.
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
_MIN_KEY_LENGTH = 32  # characters of a key from the environment: a shorter key could be guessed
_KEY_BYTES = 4096  # read from the key file at most
log = logging.getLogger("mzplan.secrets")


def key_path() -> Path:
    """Return the path of this user's key file. Raises RuntimeError for a user without a home."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".config") / "mzplan" / "secrets.key"


def find_key() -> bytes | None:
    """Return the key, or None if there is none. Raises MzplanError MZ112 for a key that is too short."""
    text = os.environ.get(VARIABLE, "")
    if text:
        if len(text) < _MIN_KEY_LENGTH:
            raise error("MZ112.mzplan-secrets", min_key_length=_MIN_KEY_LENGTH)
        return text.encode()
    try:
        handle = os.open(key_path(), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            return file.read(_KEY_BYTES) or None
    except (OSError, RuntimeError):
        return None


def ensure_key() -> bytes:
    """Return the key, creating the key file if it is missing.

    If the file can't be created, returns a key that only this process knows. Then no other process can
    compare its digests. Raises MzplanError MZ112.
    """
    key = find_key()
    if key is None:
        with contextlib.suppress(OSError, RuntimeError):
            _create_key(key_path())
        key = find_key()
    return key if key is not None else _key_of_this_process()


def key_name(key: bytes) -> str:
    """Return a short name that identifies a key without revealing it."""
    return hashlib.sha256(b"mzplan secrets key\0" + key).hexdigest()[:12]


@cache
def _key_of_this_process() -> bytes:
    log.warning(
        "the key for digests of secrets can't be stored here: set %s, so that plans detect rotated secrets",
        VARIABLE,
    )
    return secrets.token_bytes(32)


def _create_key(path: Path) -> None:
    """Create a key file atomically, readable only by its owner. The first of several processes wins."""
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
_COST = 15  # log2 of scrypt's n: 32 MiB and about 90 ms of CPU per secret and plan


def new_salt() -> str:
    """Return a random salt, as hex digits."""
    return os.urandom(16).hex()


def digest_secret(reference: str, value: str, salt: str) -> str:
    """Return the digest of the value of a reference. Raises MzplanError MZ112."""
    key = ensure_key()
    return f"{_NAME}:{_COST}:{key_name(key)}:{salt}:{_hmac_digest(key, reference, value, salt, _COST)}"


def is_comparable(digest: str) -> bool:
    """Return whether this process has the key of a digest. Raises MzplanError MZ112."""
    key = find_key()
    return key is not None and _fields(digest)[1] == key_name(key)


def is_same_secret(reference: str, value: str, digest: str) -> bool:
    """Return whether the value matches the digest, or True if the digest can't be compared here.

    Raises MzplanError MZ112.
    """
    key = find_key()
    cost, name, salt, expected = _fields(digest)
    if key is None or name != key_name(key):
        return True
    return hmac.compare_digest(_hmac_digest(key, reference, value, salt, int(cost)), expected)


def salt_of(digest: str) -> str | None:
    """Return the salt of a digest, or None for a text of another format."""
    return _fields(digest)[2] or None


def _fields(digest: str) -> tuple[str, str, str, str]:
    """Return cost, key name, salt and HMAC of a digest, all empty for a text of another format."""
    match digest.split(":"):
        case [name, cost, key, salt, expected] if name == _NAME:
            return cost, key, salt, expected
    return "", "", "", ""


def _hmac_digest(key: bytes, reference: str, value: str, salt: str, cost: int) -> str:
    return hmac.new(key, _scrypt(reference, value, salt, cost), hashlib.sha256).hexdigest()


@lru_cache(maxsize=256)  # in this process's memory only
def _scrypt(reference: str, value: str, salt: str, cost: int) -> bytes:
    whole = bytes.fromhex(salt) + reference.encode()
    return hashlib.scrypt(value.encode(), salt=whole, n=2**cost, r=8, p=1, maxmem=2 ** (cost + 11), dklen=32)
