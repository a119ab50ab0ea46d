"""Helpers for probes: a time limit, and a cache, because a project has many sources on few connections."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")

PROBE_TIMEOUT_S = 5.0
"""The time limit for one request to one server, in seconds."""


def fingerprint(settings: Mapping[str, Any]) -> str:
    """Return a key for connection settings. It holds no secrets, unlike the settings."""
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


class Memo(Generic[Value]):
    """A cache whose values expire after `seconds`.

    One thread makes a value, and other threads that need it wait. If a server is dead, only the first thread
    waits for the time limit."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._key_locks: dict[str, threading.Lock] = {}
        self._values: dict[str, tuple[float, Value]] = {}

    def get(self, key: str, make: Callable[[], Value]) -> Value:
        """Return the value of the key. Makes it if it is missing or expired; exceptions aren't cached."""
        with self._lock:
            key_lock = self._key_locks.setdefault(key, threading.Lock())
        with key_lock:
            now = time.monotonic()
            with self._lock:
                self._forget_old(now)
                entry = self._values.get(key)
            if entry is not None:
                return entry[1]
            value = make()
            with self._lock:
                self._values[key] = (time.monotonic(), value)
            return value

    def put(self, key: str, value: Value) -> None:
        """Replace a value."""
        with self._lock:
            self._values[key] = (time.monotonic(), value)
            self._key_locks.setdefault(key, threading.Lock())

    def drop(self, key: str) -> None:
        """Forget a value."""
        with self._lock:
            self._values.pop(key, None)

    def _forget_old(self, now: float) -> None:
        for key in [key for key, (made_at, _) in self._values.items() if now - made_at > self._seconds]:
            del self._values[key]
            if not self._key_locks[key].locked():
                del self._key_locks[key]


def with_time_limit(work: Callable[[], Value], seconds: float = PROBE_TIMEOUT_S + 1) -> Value:
    """Return the result of `work`. Raises TimeoutError after `seconds`.

    The client's own time limit isn't enough: libpq, for example, doesn't limit the look-up of a host name."""
    results: list[Value] = []
    problems: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=run, name="mzplan-probe", daemon=True)
    thread.start()
    thread.join(seconds)
    if problems:
        raise problems[0]
    if not results:
        raise TimeoutError(f"no answer within {seconds:.0f} s")
    return results[0]
