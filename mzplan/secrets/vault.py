"""HashiCorp Vault, and the compatible OpenBao: `${vault:PATH#KEY}`, with PATH as for `vault kv get`.

The address and the runner's login come from the process's environment: from the variables of Vault's own
command (VAULT_ADDR, VAULT_NAMESPACE, VAULT_CACERT, VAULT_TOKEN), and from mzplan's variables below. A command
that hands secret values to its runner can't set them.

The size of answers and redirects are limited. Imported on first use.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from requests.exceptions import ConnectionError, ReadTimeout
from urllib3.exceptions import HTTPError, ReadTimeoutError

from mzplan.secrets.files import MAX_SECRET, read_secret
from mzplan.secrets.logins import (
    KUBERNETES_ROLE,
    SECRET_ID,
    SECRET_ID_FILE,
    VAULT_TOKEN,
    kubernetes_token_file,
    vault_token_file,
)
from mzplan.secrets.providers import Content, NotReachableError, RefusedError
from mzplan.secrets.resolved import remember

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


TIMEOUT = 5.0  # seconds to connect, and to receive an answer
ROLE_ID = "MZPLAN_VAULT_ROLE_ID"
AUTH_MOUNT = "MZPLAN_VAULT_AUTH_MOUNT"
_PATH = re.compile(r"[\w.@:=+,~-]+(?:/[\w.@:=+,~-]+)+", re.ASCII)
_INSTALL = "pip install 'mzplan[vault]' where the runner is, and start it again."
_DENIED = (
    "grant the runner `read` on that path in a Vault policy (for KV version 2, on MOUNT/data/PATH), or "
    "correct the path."
)
_EXPIRED = (
    "give the runner a new token in VAULT_TOKEN (then restart it) or ~/.vault-token; or a login that it can "
    f"renew: {ROLE_ID}, or {KUBERNETES_ROLE}."
)
_LOGIN = f"check {ROLE_ID} and {SECRET_ID}, or {KUBERNETES_ROLE}, and {AUTH_MOUNT}, where the runner starts."


class Vault:
    """One Vault server, and this process's session with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: Any = None
        self._login_in_use: tuple[str, ...] = ()  # to sign in again if it changes

    def fault_of(self, name: str) -> str | None:
        """Return a sentence that says what is wrong with a secret's name, or None."""
        path, _, key = name.partition("#")
        if not key:
            return "It has no key: ${vault:PATH#KEY}."
        if not _PATH.fullmatch(path) or any(set(part) <= {"."} for part in path.split("/")):
            return "Its path isn't MOUNT/PATH with letters, digits and _ . @ : = + , ~ -."
        return None

    def read(self, path: str) -> Content:
        """Return the newest version of the secret at `MOUNT/PATH` in a KV engine, version 1 or 2."""
        if fault := self.fault_of(f"{path}#key"):
            raise RefusedError(fault, "write the path as you would for `vault kv get`.")
        with self._lock, _translated_errors(path):
            return self._read(path)

    def _read(self, path: str) -> Content:
        from hvac import exceptions

        client = self._signed_in_client()
        try:
            return _read_secret(client, path)
        except (exceptions.Forbidden, exceptions.Unauthorized):
            if _is_valid(client):
                raise
        self._client = None  # the token has expired: sign in again, once
        client = self._signed_in_client()
        if not _is_valid(client):
            raise RefusedError("The runner's token for Vault has expired, or was revoked.", _EXPIRED)
        return _read_secret(client, path)

    def _signed_in_client(self) -> Any:
        login = _login()
        if self._client is None or login != self._login_in_use:
            self._client, self._login_in_use = _sign_in(login), login
        return self._client


provider = Vault()


def _login() -> tuple[str, ...]:
    """Return address, namespace, mount and login.

    The login is ("token", TOKEN), ("approle", ROLE, SECRET) or ("kubernetes", ROLE, JWT). Files are read on
    each use, because other programs renew them.
    """
    get = os.environ.get
    server = (get("VAULT_ADDR", ""), get("VAULT_NAMESPACE", ""), get(AUTH_MOUNT, ""))
    if not server[0]:
        raise RefusedError(
            "The runner has no Vault address: VAULT_ADDR is not set.",
            "set VAULT_ADDR where the runner starts.",
        )
    if role := get(ROLE_ID):
        return (
            *server,
            "approle",
            role,
            get(SECRET_ID) or _text_of(Path(get(SECRET_ID_FILE) or ""), SECRET_ID),
        )
    if role := get(KUBERNETES_ROLE):
        return (*server, "kubernetes", role, _text_of(kubernetes_token_file(), KUBERNETES_ROLE))
    if token := get(VAULT_TOKEN):
        return (*server, "token", token)
    if (file := vault_token_file()) is not None and file.is_file():
        return (*server, "token", _text_of(file, VAULT_TOKEN).strip())
    raise RefusedError(
        "The runner has no login for Vault.",
        f"set VAULT_TOKEN, {ROLE_ID} and {SECRET_ID}, or {KUBERNETES_ROLE}, where the runner starts.",
    )


def _text_of(file: Path, variable: str) -> str:
    text = read_secret(file, str(file)) if str(file) != "." else None
    if not text:
        raise RefusedError(f"The runner's login for Vault is missing or empty: {variable}.", _LOGIN)
    return text


def _sign_in(login: tuple[str, ...]) -> Any:
    import hvac

    address, namespace, mount, method, *credentials = login
    remember(credentials[-1])
    client = hvac.Client(url=address, namespace=namespace or None, timeout=TIMEOUT, token="")
    guard(client.session, address)
    if method == "token":
        client.token = credentials[0]
        return client
    try:
        if method == "approle":
            client.auth.approle.login(*credentials, mount_point=mount or method)
        else:
            client.auth.kubernetes.login(*credentials, mount_point=mount or method)
    except (hvac.exceptions.InvalidRequest, hvac.exceptions.Forbidden, hvac.exceptions.InvalidPath):
        raise RefusedError(f"Vault refused the runner's {method} login.", _LOGIN) from None
    remember(client.token)
    return client


def _is_valid(client: Any) -> bool:
    """Return whether Vault accepts the token. It may still not allow access to the path."""
    from hvac import exceptions

    try:
        client.auth.token.lookup_self()
    except (exceptions.Forbidden, exceptions.Unauthorized):
        return False
    return True


def _read_secret(client: Any, path: str) -> Content:
    from hvac import exceptions

    # Find the engine that serves this path, as `vault kv get` does.
    try:
        mount = client.adapter.get(f"/v1/sys/internal/ui/mounts/{path}")["data"]
    except exceptions.InvalidPath:
        return None
    point, kind = str(mount.get("path", "")), str(mount.get("type", ""))
    if kind not in ("kv", "generic") or not path.startswith(point):
        raise RefusedError(
            f"{path} is in an engine of type {kind[:40]!r}, not in a KV engine.",
            "name a path in a KV engine, version 1 or 2.",
        )
    inner, point = path[len(point) :], point.rstrip("/")
    try:
        if (mount.get("options") or {}).get("version") == "2":
            answer = client.secrets.kv.v2.read_secret_version(
                inner, mount_point=point, raise_on_deleted_version=True
            )["data"]
        else:
            answer = client.secrets.kv.v1.read_secret(inner, mount_point=point)
    except exceptions.InvalidPath:  # missing, or its newest version is deleted
        return None
    content = answer["data"]
    return content if isinstance(content, Mapping) else None


@contextmanager
def _translated_errors(path: str) -> Iterator[None]:
    """Translate hvac's exceptions, because their text may contain anything that a server sent."""
    try:
        import hvac
        import requests
    except ModuleNotFoundError as missing:
        raise RefusedError(f"The package {missing.name} is not installed.", _INSTALL) from None
    errors = hvac.exceptions
    address = _without_login(os.environ.get("VAULT_ADDR", ""))
    look = f"check VAULT_ADDR, and that the runner can reach {address}."
    try:
        yield
    except (errors.Forbidden, errors.Unauthorized):
        raise RefusedError(f"Vault doesn't let the runner read {path}.", _DENIED) from None
    except errors.VaultDown:
        raise NotReachableError(
            "Vault is sealed.", f"unseal it: `vault operator unseal`, at {address}."
        ) from None
    except errors.VaultNotInitialized:
        raise NotReachableError(
            "Vault is not initialized.", "initialize it: `vault operator init`."
        ) from None
    except errors.InvalidRequest:
        raise RefusedError(f"Vault rejected the request for {path} as invalid.", _DENIED) from None
    except errors.VaultError as problem:
        raise NotReachableError(f"Vault failed: {type(problem).__name__}.", look) from None
    except requests.exceptions.SSLError:
        raise NotReachableError(
            "Vault's certificate isn't trusted.",
            "set VAULT_CACERT to its CA certificate, where the runner starts.",
        ) from None
    except requests.exceptions.Timeout:
        raise NotReachableError(f"Vault didn't answer within {TIMEOUT:g} s.", look) from None
    except (
        requests.exceptions.RequestException,
        KeyError,
        TypeError,
        AttributeError,
        ValueError,
        RecursionError,
    ):
        raise NotReachableError("The answer didn't come from Vault.", look) from None


def _without_login(address: str) -> str:
    return re.sub(r"//[^/]*@", "//", address)[:200]
