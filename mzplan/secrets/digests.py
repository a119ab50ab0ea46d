"""Digests that show whether a secret has changed, and reveal nothing else of it.

`"keyed:15:<key's name>:<salt>:<digest>"`: an HMAC with a key that is not in the store (mzplan.secrets.keys):
nobody who reads or writes a status can try passwords. It is over scrypt of the value, slow on purpose,
should the key get lost as well. The salt is one per status, and mixed with the reference: two references
to one value differ.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from functools import lru_cache

from mzplan.secrets.keys import find_key, name_of, own_key

_NAME = "keyed"
_COST = 15  # log2 of scrypt's n: 32 MiB and some 90 ms of CPU, for each secret in each plan
_MOST = 20  # the highest cost that is accepted from a status: an edited one must not take gigabytes


def new_salt() -> str:
    """A salt, as hex digits."""
    return os.urandom(16).hex()


def digest_secret(reference: str, value: str, salt: str) -> str:
    """The digest of what a reference resolves to. Raises MzplanError MZ112."""
    key = own_key()
    return f"{_NAME}:{_COST}:{name_of(key)}:{salt}:{_keyed(key, reference, value, salt, _COST)}"


def is_comparable(digest: str) -> bool:
    """Whether this process has the key of a digest. Not for those of earlier versions of mzplan, which had
    none: they can be guessed at, and are not kept. Raises MzplanError MZ112."""
    key = find_key()
    return key is not None and _name_of(digest) == name_of(key)


def is_same_secret(reference: str, value: str, digest: str) -> bool:
    """Whether a value is the one that was digested. True where that can't be seen: of another key, of another
    version of mzplan. Raises MzplanError MZ112."""
    key, salt = find_key(), salt_of(digest)
    if key is None or salt is None or _name_of(digest) != name_of(key):
        return True
    _, cost, _, _, there = digest.split(":")
    if not cost.isdecimal() or not 1 <= int(cost) <= _MOST or not there:
        return True
    try:
        return hmac.compare_digest(_keyed(key, reference, value, salt, int(cost)), there)
    except (ValueError, TypeError):  # the salt is no hex, the digest no ASCII
        return True


def salt_of(digest: str) -> str | None:
    """The salt of a digest; None where it can't be read."""
    parts = digest.split(":")
    return parts[3] if len(parts) == 5 and parts[0] == _NAME else None


def _name_of(digest: str) -> str | None:
    """The name of its key; None for what is no such digest."""
    parts = digest.split(":")
    return parts[2] if len(parts) == 5 and parts[0] == _NAME else None


def _keyed(key: bytes, reference: str, value: str, salt: str, cost: int) -> str:
    return hmac.new(key, _scrypt(reference, value, salt, cost), hashlib.sha256).hexdigest()


@lru_cache(maxsize=256)  # kept in this process only
def _scrypt(reference: str, value: str, salt: str, cost: int) -> bytes:
    whole = bytes.fromhex(salt) + reference.encode()
    return hashlib.scrypt(value.encode(), salt=whole, n=2**cost, r=8, p=1, maxmem=2 ** (cost + 11), dklen=32)
