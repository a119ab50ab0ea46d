"""Caches the answers of remote providers.

However many references name a path, and however often queries start, a path costs one request a minute.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from mzplan.model.diagnostics import MzplanError, error
from mzplan.secrets.files import MAX_SECRET
from mzplan.secrets.providers import Content, NotReachableError, ProviderError, RefusedError, RemoteProvider

REFRESH_VARIABLE = "MZPLAN_SECRETS_REFRESH"
REFRESH = 60.0  # seconds for which an answer is cached
AGAIN = 10.0  # seconds until the next request after a failure
NOT_READ, REFUSED, UNUSABLE = "MZ260", "MZ261", "MZ103"
_BROKEN = "look at the package that brings this provider, and at the log of what it asks."
log = logging.getLogger("mzplan.secrets")


@dataclass(frozen=True, slots=True)
class _Known:
    """The last content read from a path, and the error of the last attempt, if it failed.

    `read_at`: when the content was requested.
    """

    content: Content = field(default=None, repr=False)
    read_at: float | None = None
    problem: ProviderError | None = None
    failed_at: float = 0.0


_UNKNOWN = _Known()


class RemoteSecrets:
    """The cached values of remote providers; thread-safe.

    `refresh` is in seconds (default: refresh_s()). `clock` returns monotonic seconds.
    """

    def __init__(self, refresh: float | None = None, clock: Callable[[], float] = time.monotonic):
        self._refresh = refresh_s() if refresh is None else refresh
        self._clock = clock
        self._lock = threading.Lock()
        self._asking: dict[str, threading.Lock] = {}  # one request at a time for each provider
        self._known: dict[tuple[str, str], _Known] = {}
        self._down: dict[str, tuple[NotReachableError, float]] = {}

    def value(
        self, reference: str, kind: str, provider: RemoteProvider, name: str, *, current: bool = False
    ) -> str | None:
        """Return the value of `${kind:name}`, or None if there is none; name is `PATH` or `PATH#KEY`.

        If the provider can't be reached, the cached value counts, unless `current` is set. Raises
        MzplanError: MZ260 if the provider can't be reached, MZ261 if it refuses, MZ103 if the content
        isn't text.
        """
        path, _, key = name.partition("#")
        known = self._read(kind, provider, path, current)
        if known.problem is not None:
            passes = isinstance(known.problem, NotReachableError) and not current
            if not passes or known.read_at is None:
                raise _failed(reference, known.problem)
        return _picked(reference, known.content, key)

    def _read(self, kind: str, provider: RemoteProvider, path: str, current: bool) -> _Known:
        with self._lock:
            asking = self._asking.setdefault(kind, threading.Lock())
            known = self._known.get((kind, path), _UNKNOWN)
        # If a value is cached, starting a query doesn't wait for a slow provider.
        if not asking.acquire(blocking=current or known.read_at is None):
            return known
        try:
            known = self._known.get((kind, path), _UNKNOWN)  # another thread may just have asked
            if not self._is_due(known):
                return known
            fresh = self._asked(kind, provider, path, known)
            with self._lock:
                self._known[kind, path] = fresh
            return fresh
        finally:
            asking.release()

    def _is_due(self, known: _Known) -> bool:
        now = self._clock()
        if known.problem is not None:
            return now - known.failed_at >= AGAIN
        return known.read_at is None or now - known.read_at >= self._refresh

    def _asked(self, kind: str, provider: RemoteProvider, path: str, known: _Known) -> _Known:
        now = self._clock()
        problem, at = self._down.get(kind, (None, 0.0))
        if problem is not None and now - at < AGAIN:  # if one path can't be reached, none can
            return replace(known, problem=problem, failed_at=at)
        self._down.pop(kind, None)
        try:
            return _Known(content=provider.read(path), read_at=now)
        except NotReachableError as down:
            self._down[kind] = (down, self._clock())
            return replace(known, problem=down, failed_at=self._clock())
        except ProviderError as refused:
            return replace(known, problem=refused, failed_at=self._clock())
        except Exception as defect:  # its text may contain a secret
            log.warning("the provider of ${%s:…} has failed: %s", kind, type(defect).__name__)
            why = RefusedError(f"The provider {kind} has failed: {type(defect).__name__}.", _BROKEN)
            return replace(known, problem=why, failed_at=self._clock())


def refresh_s() -> float:
    """Return the seconds for which an answer is cached: REFRESH, unless the environment sets another
    number."""
    given = os.environ.get(REFRESH_VARIABLE, "")
    try:
        seconds = float(given) if given else REFRESH
    except ValueError:
        seconds = 0.0
    if not 1.0 <= seconds <= 86400.0:
        log.warning("%s is not a number of seconds from 1 to 86400: it is %g", REFRESH_VARIABLE, REFRESH)
        return REFRESH
    return seconds


def _failed(reference: str, problem: ProviderError) -> MzplanError:
    if isinstance(problem, NotReachableError):
        return error(
            NOT_READ,
            f"Secret {reference} can't be read now",
            f"{problem.why} Queries that run go on with the value that they have.",
            problem.fix,
        )
    return error(REFUSED, f"Secret {reference} is refused", problem.why, problem.fix)


def _picked(reference: str, content: Content, key: str) -> str | None:
    if content is None:
        return None
    if isinstance(content, str) and key:
        content = _parsed(reference, content)
    if isinstance(content, Mapping):
        if not key:
            raise _unusable(reference, "names several values", "name one of them: ${…:PATH#KEY}.")
        content = content.get(key)
        if content is None:
            return None
    if not isinstance(content, str):
        raise _unusable(reference, "is not text", "store it as a text.")
    try:
        size = len(content.encode())
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can contain
        raise _unusable(reference, "is not text in UTF-8", "store it as a text.") from None
    if size > MAX_SECRET:
        raise _unusable(reference, f"holds more than {MAX_SECRET >> 20} MiB", "store the secret alone.")
    return content


def _parsed(reference: str, text: str) -> Mapping[str, object]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise _unusable(
            reference, "names a key, but the value isn't a JSON object", "leave out # and what follows it."
        )
    return content


def _unusable(reference: str, what: str, fix: str) -> MzplanError:
    return error(
        UNUSABLE,
        f"{reference} can't be a secret: it {what}",
        f"A secret is a text of at most {MAX_SECRET >> 20} MiB.",
        fix,
    )
