"""Finds the provider that answers `${provider:name}`, and caches the answers of remote providers.

A path costs one request a minute, regardless of the number of references and of query starts.

env and file are built in. mzplan's other providers are listed here. Other packages register a provider as an
entry point in the group `mzplan.secrets`:

    [project.entry-points."mzplan.secrets"]
    keeper = "mzplan_keeper:provider"        # answers ${keeper:PATH} and ${keeper:PATH#KEY}

A provider is one of these:

- **Remote**: an object with `read(path)`. Only runners call it, and cache the result.
- **Local**: a callable from name to value or None. Runners and commands call it.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from mzplan.model.diagnostics import MzplanError, error
from mzplan.secrets.files import MAX_SECRET

GROUP = "mzplan.secrets"
OWN_PROVIDERS = {"vault": "mzplan.secrets.vault:provider", "aws-sm": "mzplan.secrets.aws_secrets:provider"}
"""The providers of mzplan, written like entry points. Another package can't take their names."""

Content = str | Mapping[str, Any] | None
"""The content at a path: text, texts by key, or None. `#KEY` also selects a key of a text that is a JSON
object."""


class ProviderError(Exception):
    """A provider returns no value. `why` and `fix` are sentences for people, without any secret."""

    def __init__(self, why: str, fix: str):
        super().__init__(why)
        self.why, self.fix = why, fix


class NotReachableError(ProviderError):
    """The provider is down, sealed or slow. Cached values stay in use."""


class RefusedError(ProviderError):
    """The provider answered, but refused to return the secret."""


@runtime_checkable
class RemoteProvider(Protocol):
    """Reads secrets from a server. Address and login come from the process's environment only."""

    def read(self, path: str) -> Content:
        """Return the content of a path, or None if there is none. Takes at most some seconds.

        Raises NotReachableError or RefusedError. The text of any other exception is never shown.
        """


LocalProvider = Callable[[str], str | None]
Provider = RemoteProvider | LocalProvider


def find_provider(name: str) -> Provider | None:
    """Return the provider of that name, or None if no package has it. Raises the errors of its import."""
    from importlib.metadata import EntryPoint, entry_points

    if name in OWN_PROVIDERS:
        loaded: Provider = EntryPoint(name=name, value=OWN_PROVIDERS[name], group=GROUP).load()
        return loaded
    entries = list(entry_points(group=GROUP, name=name))
    if not entries:
        return None
    loaded = entries[0].load()
    assert callable(loaded) or isinstance(loaded, RemoteProvider), f"{entries[0].value} is not a provider"
    return loaded


def has_provider(name: str) -> bool:
    """Return whether the provider exists, without importing it."""
    from importlib.metadata import entry_points

    return name in OWN_PROVIDERS or bool(entry_points(group=GROUP, name=name))


def fault_of_name(provider: str, name: str) -> str | None:
    """Return a sentence that says what is wrong with a secret's name, or None.

    Only mzplan's own providers check names. This doesn't run code of other packages.
    """
    if provider not in OWN_PROVIDERS:
        return None
    own: Any = find_provider(provider)
    fault: str | None = own.fault_of(name)
    return fault


REFRESH_VARIABLE = "MZPLAN_SECRETS_REFRESH"
REFRESH = 60.0  # seconds for which an answer is cached
RETRY_AFTER = 10.0  # seconds until the next request after a failure
NOT_READ, REFUSED, UNUSABLE = "MZ260", "MZ261", "MZ103"
_BROKEN = "check the package of this provider, and the log of its server."
log = logging.getLogger("mzplan.secrets")


@dataclass(frozen=True, slots=True)
class _CachedContent:
    """The last content read from a path, and the error of the last request if it failed.

    `read_at`: when the content was requested; None if it never was.
    """

    content: Content = field(default=None, repr=False)
    read_at: float | None = None
    problem: ProviderError | None = None
    failed_at: float = 0.0


_NOT_CACHED = _CachedContent()


class RemoteSecrets:
    """The cached values of remote providers; thread-safe.

    `refresh`: for how many seconds a value is cached (default: refresh_s()).
    `clock`: returns monotonic seconds.
    """

    def __init__(self, refresh: float | None = None, clock: Callable[[], float] = time.monotonic):
        self._refresh = refresh_s() if refresh is None else refresh
        self._clock = clock
        self._lock = threading.Lock()
        self._request_locks: dict[str, threading.Lock] = {}  # one request at a time for each provider
        self._cache: dict[tuple[str, str], _CachedContent] = {}
        self._unreachable: dict[str, tuple[NotReachableError, float]] = {}

    def value(
        self, reference: str, kind: str, provider: RemoteProvider, name: str, *, current: bool = False
    ) -> str | None:
        """Return the value of `${kind:name}`, or None if there is none; name is `PATH` or `PATH#KEY`.

        If the provider can't be reached, returns the cached value, unless `current` is set. Raises
        MzplanError: MZ260 if the provider can't be reached, MZ261 if it refuses, MZ103 if the content can't
        be a secret.
        """
        path, _, key = name.partition("#")
        cached = self._read(kind, provider, path, current)
        if cached.problem is not None:
            uses_cache = isinstance(cached.problem, NotReachableError) and not current
            if not uses_cache or cached.read_at is None:
                raise _provider_error(reference, cached.problem)
        return _select_value(reference, cached.content, key)

    def _read(self, kind: str, provider: RemoteProvider, path: str, current: bool) -> _CachedContent:
        with self._lock:
            request_lock = self._request_locks.setdefault(kind, threading.Lock())
            cached = self._cache.get((kind, path), _NOT_CACHED)
        # With a cached value, a query's start doesn't wait for a slow provider.
        if not request_lock.acquire(blocking=current or cached.read_at is None):
            return cached
        try:
            cached = self._cache.get((kind, path), _NOT_CACHED)  # another thread may just have asked
            if not self._is_due(cached):
                return cached
            fresh = self._request(kind, provider, path, cached)
            with self._lock:
                self._cache[kind, path] = fresh
            return fresh
        finally:
            request_lock.release()

    def _is_due(self, cached: _CachedContent) -> bool:
        now = self._clock()
        if cached.problem is not None:
            return now - cached.failed_at >= RETRY_AFTER
        return cached.read_at is None or now - cached.read_at >= self._refresh

    def _request(
        self, kind: str, provider: RemoteProvider, path: str, cached: _CachedContent
    ) -> _CachedContent:
        now = self._clock()
        problem, at = self._unreachable.get(kind, (None, 0.0))
        if problem is not None and now - at < RETRY_AFTER:  # the server can't be reached, for any path
            return replace(cached, problem=problem, failed_at=at)
        self._unreachable.pop(kind, None)
        try:
            return _CachedContent(content=provider.read(path), read_at=now)
        except NotReachableError as down:
            self._unreachable[kind] = (down, self._clock())
            return replace(cached, problem=down, failed_at=self._clock())
        except ProviderError as refused:
            return replace(cached, problem=refused, failed_at=self._clock())
        except Exception as defect:  # its text may contain a secret
            log.warning("the provider of ${%s:…} failed: %s", kind, type(defect).__name__)
            why = RefusedError(f"The provider {kind} failed: {type(defect).__name__}.", _BROKEN)
            return replace(cached, problem=why, failed_at=self._clock())


def refresh_s() -> float:
    """Return the seconds for which an answer is cached. The environment can override REFRESH."""
    text = os.environ.get(REFRESH_VARIABLE, "")
    try:
        seconds = float(text) if text else REFRESH
    except ValueError:
        seconds = 0.0
    if not 1.0 <= seconds <= 86400.0:
        log.warning("%s must be a number of seconds from 1 to 86400; using %g", REFRESH_VARIABLE, REFRESH)
        return REFRESH
    return seconds


def _provider_error(reference: str, problem: ProviderError) -> MzplanError:
    if isinstance(problem, NotReachableError):
        return error("MZ260.unread-secret", reference=reference, why=problem.why, fix=problem.fix)
    return error("MZ261.refused-secret", reference=reference, why=problem.why, fix=problem.fix)


def _select_value(reference: str, content: Content, key: str) -> str | None:
    if content is None:
        return None
    if isinstance(content, str) and key:
        content = _parse_object(reference, content)
    if isinstance(content, Mapping):
        if not key:
            raise _unusable_error(reference, "has several values", "name one of them: ${…:PATH#KEY}.")
        content = content.get(key)
        if content is None:
            return None
    if not isinstance(content, str):
        raise _unusable_error(reference, "is not text", "store it as text.")
    try:
        size = len(content.encode())
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can contain
        raise _unusable_error(reference, "is not text in UTF-8", "store it as text.") from None
    if size > MAX_SECRET:
        raise _unusable_error(reference, f"holds more than {MAX_SECRET >> 20} MiB", "store only the secret.")
    return content


def _parse_object(reference: str, text: str) -> Mapping[str, object]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise _unusable_error(
            reference, "names a key, but the value isn't a JSON object", "remove the # and the key."
        )
    return content


def _unusable_error(reference: str, what: str, fix: str) -> MzplanError:
    return error("MZ103.unusable-secret", reference=reference, what=what, mebibytes=MAX_SECRET >> 20, fix=fix)
