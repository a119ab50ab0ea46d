"""The object-store backend (S3, Google Cloud Storage, Azure): an object per key, conditional writes.

The lock is an object that only one process can create. It outlives its process: the error names the holder,
and `state unlock` removes the lock of a process that is gone. Commits are safe without the lock, because a
write replaces a state only if it is still the one that was read.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.store.backends.backend import (
    ANY,
    Blob,
    ConflictError,
    Expected,
    LockInfo,
    UnknownWriteError,
    locked_error,
    removable,
    resolved_settings,
    unknown_write,
    unreachable,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")
Access = Literal["read", "write"]
_LOCK = "lock"
_MARK = "mzplanwrite"  # object metadata: identifies the write that made the object
_ENDPOINT = "AWS_ENDPOINT_URL_S3"
_OPENING = threading.Lock()  # held while the environment variable is removed
_TIMEOUTS = {"timeout": "20s", "connect_timeout": "5s"}
_RETRIES = {"max_retries": 3, "retry_timeout": timedelta(seconds=15)}
# The settings' names in mzplan.yaml → the library's names, for S3.
_S3 = {
    "endpoint": "aws_endpoint",
    "region": "aws_region",
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
}


class ObjectStoreBackend:
    """The store of one project below a URL (`s3://bucket/prefix`)."""

    poll_interval = 0.5
    idle_interval = 2.0

    def __init__(self, settings: Mapping[str, Any], directory: str):
        """`settings`: `state` of mzplan.yaml, with secret references."""
        self.settings = settings
        self.directory = directory
        self.url = str(settings.get("url", "")).rstrip("/")
        self._opened: ObjectStore | None = None

    def describe(self) -> str:
        return self.url

    def read(self, key: str) -> Blob | None:
        import obstore

        def get(store: ObjectStore) -> Blob | None:
            answer = obstore.get(store, key)
            return Blob(bytes(answer.bytes()), _version(answer.meta))

        return self._run(get, "read", key, None)

    def version(self, key: str) -> str | None:
        import obstore

        return self._run(lambda store: _version(obstore.head(store, key)), "read", key, None)

    def write(self, key: str, data: bytes, *, expected: Expected = ANY, durable: bool = True) -> str:
        mode: Any = "overwrite" if expected is ANY else "create" if expected is None else _expected(expected)
        version = self._put(key, data, mode, secrets.token_hex(8))
        if version is None:
            raise ConflictError(key)
        return version

    def _put(self, key: str, data: bytes, mode: Any, mark: str, *, may_retry: bool = True) -> str | None:
        """Write an object and return its version; None if the condition of `mode` doesn't hold."""
        import obstore

        def put(store: ObjectStore) -> str | None:
            attributes = {_MARK: mark}
            try:
                result = obstore.put(store, key, data, mode=mode, attributes=attributes, use_multipart=False)
            except (obstore.exceptions.AlreadyExistsError, obstore.exceptions.PreconditionError):
                return None
            return _version(result)

        def find_own(store: ObjectStore) -> str | None:
            answer = obstore.get(store, key, options={"head": True})  # the current object, whoever wrote it
            return _version(answer.meta) if answer.attributes.get(_MARK) == mark else None

        problem = None
        try:
            version = self._run(put, "write", key, None)
        except UnknownWriteError as unknown:
            version, problem = None, unknown
        try:
            # The conflict may be with this same write, because the library retries after server errors. Only
            # the mark shows this, because another process may write the same bytes.
            version = version or self._run(find_own, "read", key, None)
        except MzplanError as unseen:
            raise problem or unseen from None
        if version is None and problem is not None:
            if problem.undone is not None:
                raise problem.undone
            if not may_retry:
                raise problem
            # Retry under the same condition, so the write happens once whatever the first try did.
            return self._put(key, data, mode, mark, may_retry=False)
        return version

    def delete(self, key: str) -> None:
        import obstore

        self._run(lambda store: obstore.delete(store, key), "write", key, None)

    def list(self, prefix: str, after: str = "") -> builtins.list[str]:
        import obstore

        def names(store: ObjectStore) -> builtins.list[str]:
            return [
                entry["path"] for page in obstore.list(store, prefix, offset=after or None) for entry in page
            ]

        nothing: builtins.list[str] = []
        paths = self._run(names, "read", prefix, nothing)
        return sorted(path for path in paths if "/" not in path.removeprefix(prefix))

    @contextlib.contextmanager
    def lock(self, info: LockInfo, wait: float) -> Iterator[None]:
        try:
            self._take(info, wait)
        except (KeyboardInterrupt, UnknownWriteError):  # the lock may just have been written
            with contextlib.suppress(MzplanError):
                self._delete_lock(info)
            raise
        try:
            yield
        except BaseException as problem:
            self._release(info, problem)
            raise
        self._release(info, None)

    def holder(self) -> LockInfo | None:
        blob = self.read(_LOCK)
        return LockInfo.decode_or_somebody(blob.data) if blob else None

    def unlock(self, id_: str) -> LockInfo | None:
        holder = removable(self.holder(), id_, self.describe())
        if holder is not None:
            self.delete(_LOCK)
        return holder

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Do nothing: an object store sends no notifications, so runners poll."""
        return lambda: None

    # --- inside

    def _release(self, info: LockInfo, earlier: BaseException | None) -> None:
        """Give the lock back. Raises MZ033 if that fails, together with the error `earlier`, if any."""
        try:
            self._delete_lock(info)
        except KeyboardInterrupt:  # otherwise the lock would outlive this process
            self._delete_lock(info)
            raise
        except MzplanError as problem:
            if earlier is None:
                raise MzplanError(_unreleased(info, self.describe(), problem)) from None
            if isinstance(earlier, MzplanError):
                diagnostics = (*earlier.diagnostics, _unreleased(info, self.describe(), problem))
                raise MzplanError(diagnostics, earlier.exit_code) from None
            # After an interruption, the next command that is refused shows how to remove the lock.

    def _delete_lock(self, info: LockInfo) -> None:
        if (holder := self.holder()) is not None and holder.id == info.id:
            self.delete(_LOCK)

    def _take(self, info: LockInfo, wait: float) -> None:
        until = time.monotonic() + wait
        while True:
            try:
                self.write(_LOCK, info.encode(), expected=None)
                return
            except ConflictError:
                holder = self.holder()
            if time.monotonic() >= until or (holder is not None and holder.is_alive is False):
                raise locked_error(holder, self.describe())
            time.sleep(min(0.3, max(0.0, until - time.monotonic())))

    def _run(self, work: Callable[[ObjectStore], T], access: Access, key: str, missing: T) -> T:
        """Run `work` on the store. Returns `missing` if the key doesn't exist."""
        import obstore

        exceptions = obstore.exceptions
        try:
            return work(self._store())
        except FileNotFoundError:
            if access == "write":  # for a write, the bucket itself is missing
                raise self._failed(access, key, "there is no such bucket or container") from None
            return missing
        except (
            exceptions.PermissionDeniedError,
            exceptions.UnauthenticatedError,
            PermissionError,
        ) as problem:
            raise self._failed(access, key, _first_line(problem)) from None
        except exceptions.BaseError as problem:
            text = _first_line(problem)
            hint = "check url, endpoint and region in mzplan.yaml (state), and the network."
            answered = self._failed(access, key, text) if "status" in text else None
            if access == "write":  # a server may have failed after it wrote
                raise unknown_write(self.describe(), key, text, hint, answered) from None
            raise answered or unreachable(self.describe(), text, hint) from None

    def _store(self) -> ObjectStore:
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _open(self) -> ObjectStore:
        from obstore.store import from_url

        settings = resolved_settings(self.settings, self.directory)
        config = {name: str(value) for name, value in settings.get("options", {}).items()}
        config |= {
            library_name: str(settings[name]) for name, library_name in _S3.items() if name in settings
        }
        plain = str(settings.get("endpoint", "")).startswith("http://")
        options = {"client_options": {**_TIMEOUTS, "allow_http": plain}, "retry_config": _RETRIES}
        connect: Any = from_url  # the library's type has one overload per cloud
        try:
            with _without_endpoint_of_environment(config):
                opened: ObjectStore = connect(self.url, config=config or None, **options)
            return opened
        except Exception as problem:
            raise error("MZ005.state-url", url=self.url, first_line=_first_line(problem)) from None

    def _failed(self, access: Access, key: str, text: str) -> MzplanError:
        intact = " Nothing was changed: what was there before is intact." if access == "write" else ""
        return error(
            "MZ030" if access == "read" else "MZ035",
            f"Cannot {access} {key} in {self.describe()}",
            f"{text}.{intact}",
            "check the bucket, and that these credentials may read, write, list and delete in it.",
            kind="damaged" if access == "read" else "",
        )


@contextlib.contextmanager
def _without_endpoint_of_environment(config: Mapping[str, str]) -> Iterator[None]:
    """Hide the endpoint variable of the environment while a declared endpoint is used.

    The library prefers the variable and has no setting to ignore it.
    """
    if not any("endpoint" in name.lower() for name in config):
        yield
        return
    with _OPENING:
        value = os.environ.pop(_ENDPOINT, None)
        try:
            yield
        finally:
            if value is not None:
                os.environ[_ENDPOINT] = value


def _unreleased(info: LockInfo, place: str, problem: MzplanError) -> Diagnostic:
    return Diagnostic.of("MZ033.lock-not", place=place, what=problem.diagnostics[0].summary, id=info.id)


def _version(meta: Any) -> str:
    return str(meta["version"] or "") + str(meta["e_tag"] or "")


def _expected(version: Expected) -> dict[str, str]:
    """Return the condition of a write.

    The quoted part is an ETag; the part before it is the store's version.
    """
    text = str(version)
    at = text.find('"')
    own, tag = (text[:at], text[at:]) if at >= 0 else ("", text)
    return {"e_tag": tag, "version": own} if own else {"e_tag": tag}


def _first_line(problem: BaseException) -> str:
    """Return the first line of the library's message, at most 300 characters."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return (lines[0] if lines else type(problem).__name__)[:300].rstrip(".")
