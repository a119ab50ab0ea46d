"""Digests that show whether a secret has changed, and reveal nothing else of it.

`"scrypt:12:<salt>:<digest>"`: salted per status, and slow on purpose, as more people may read a status than
the secret. The salt is mixed with the reference, so that two references to one value differ.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from functools import lru_cache

_COST = 12  # log2 of scrypt's n: 4 MiB and some 12 ms of CPU, for each secret in each plan
_MOST = 20  # the highest cost that is accepted from a status: an edited one must not take gigabytes


def new_salt() -> str:
    """A salt, as hex digits."""
    return os.urandom(16).hex()


def digest_secret(reference: str, value: str, salt: str) -> str:
    """The digest of what a reference resolves to."""
    return f"scrypt:{_COST}:{salt}:{_scrypt(reference, value, salt, _COST)}"


def is_same_secret(reference: str, value: str, digest: str) -> bool:
    """Whether a value is the one that was digested. True for a digest that can't be read (of another version
    of mzplan): it can't show a change."""
    name, _, rest = digest.partition(":")
    cost, _, rest = rest.partition(":")
    salt, _, there = rest.partition(":")
    if name != "scrypt" or not cost.isdecimal() or not 1 <= int(cost) <= _MOST or not there:
        return True
    try:
        return hmac.compare_digest(_scrypt(reference, value, salt, int(cost)), there)
    except ValueError:  # the salt is no hex
        return True


def salt_of(digest: str) -> str | None:
    """The salt of a digest; None where it can't be read."""
    parts = digest.split(":")
    return parts[2] if len(parts) == 4 and parts[0] == "scrypt" else None


@lru_cache(maxsize=256)  # kept in this process only
def _scrypt(reference: str, value: str, salt: str, cost: int) -> str:
    whole = bytes.fromhex(salt) + reference.encode()
    found = hashlib.scrypt(value.encode(), salt=whole, n=2**cost, r=8, p=1, maxmem=2 ** (cost + 11), dklen=32)
    return found.hex()
