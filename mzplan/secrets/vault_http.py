"""Limits for HTTP with Vault: the size of answers, and redirects. Imported on first use."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from requests.exceptions import ConnectionError, ReadTimeout
from urllib3.exceptions import HTTPError, ReadTimeoutError

from mzplan.secrets.files import MAX_SECRET
from mzplan.secrets.providers import NotReachableError

MAX_ANSWER = 16 * MAX_SECRET  # bytes: a path has several secrets, and JSON escapes their characters
_PART = 1 << 16


def guard(session: Session, address: str) -> None:
    """Limit a session's answers to MAX_ANSWER bytes.

    If Vault's `address` is `https:`, also refuse redirects to `http:`.
    """
    adapter = _GuardedAdapter(address.lower().startswith("https:"))
    for scheme in ("https://", "http://"):
        session.mount(scheme, adapter)
    session.headers["Accept-Encoding"] = "identity"  # a few compressed bytes could hold gigabytes


class _GuardedAdapter(HTTPAdapter):
    def __init__(self, is_private: bool):
        super().__init__()
        self._is_private = is_private

    def send(self, request: PreparedRequest, *arguments: Any, **options: Any) -> Response:
        # A standby may redirect to the active server. It gets the token, as with Vault's own command.
        if self._is_private and not str(request.url).lower().startswith("https:"):
            raise NotReachableError(
                "Vault redirected to an http:// address, and mzplan sends no token there.",
                "set VAULT_ADDR to the address that answers without a redirect, where the runner starts.",
            )
        timeout = options.get("timeout")
        until = time.monotonic() + timeout if timeout else float("inf")
        options["stream"] = True
        answer = super().send(request, *arguments, **options)
        try:
            answer._content = b"".join(_parts(answer, until))
        except ReadTimeoutError:
            raise ReadTimeout from None
        except HTTPError as problem:  # for example, the answer was cut off
            raise ConnectionError from problem
        finally:
            answer.close()
        return answer


def _parts(answer: Response, until: float) -> Iterator[bytes]:
    """Yield the body in parts. Checks the deadline, because requests allows each part the whole timeout."""
    size = 0
    while part := answer.raw.read1(_PART, decode_content=False):
        size += len(part)
        if size > MAX_ANSWER:
            raise NotReachableError(
                f"Vault's answer is longer than {MAX_ANSWER >> 20} MiB.",
                "store fewer or smaller secrets at one path.",
            )
        if time.monotonic() > until:
            raise ReadTimeout
        yield part
