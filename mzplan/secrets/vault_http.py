"""How Vault is spoken to: what an answer may be at most, and where it may lead. Imported where it is used."""

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

MAX_ANSWER = 16 * MAX_SECRET  # bytes: a path has several secrets, and JSON escapes what they are made of
_PART = 1 << 16


def guard(session: Session, address: str) -> None:
    """Have a session of `address` read answers of MAX_ANSWER at most, and go from TLS to nothing less."""
    adapter = _Guarded(address.lower().startswith("https:"))
    for scheme in ("https://", "http://"):
        session.mount(scheme, adapter)
    session.headers["Accept-Encoding"] = "identity"  # a few bytes could be packed gigabytes


class _Guarded(HTTPAdapter):
    def __init__(self, is_private: bool):
        super().__init__()
        self._is_private = is_private

    def send(self, request: PreparedRequest, *given: Any, **options: Any) -> Response:
        # As Vault's own command: a standby may name the active one, and is sent the token there.
        if self._is_private and not str(request.url).lower().startswith("https:"):
            raise NotReachableError(
                "Vault names another address, at http://, to which no token is sent.",
                "name the address that answers itself: VAULT_ADDR, where the runner starts.",
            )
        timeout = options.get("timeout")
        until = time.monotonic() + timeout if timeout else float("inf")
        options["stream"] = True
        answer = super().send(request, *given, **options)
        try:
            answer._content = b"".join(_parts(answer, until))
        except ReadTimeoutError:
            raise ReadTimeout from None
        except HTTPError as problem:  # it was cut off, say
            raise ConnectionError from problem
        finally:
            answer.close()
        return answer


def _parts(answer: Response, until: float) -> Iterator[bytes]:
    """The parts of the body as they come: each part may take the whole timeout."""
    size = 0
    while part := answer.raw.read1(_PART, decode_content=False):
        size += len(part)
        if size > MAX_ANSWER:
            raise NotReachableError(
                f"Vault's answer is longer than {MAX_ANSWER >> 20} MiB.",
                "store fewer, or smaller, secrets at one path.",
            )
        if time.monotonic() > until:
            raise ReadTimeout
        yield part
