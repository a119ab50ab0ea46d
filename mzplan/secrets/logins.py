"""Detects logins in addresses, and secrets that are the runner's own login to a secret store.

An address must not contain a login. A connection must not use the runner's own login. Otherwise the author of
a configuration could send that login to their server, and then read everything that the runner may read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from mzplan.model.diagnostics import error

# `sasl_ssl://`, `jdbc:postgresql://`, or `//` alone, without a scheme.
_SCHEME = re.compile(r"(?:[A-Za-z][\w.+-]*:)*//")
_USER = re.compile(r"[^\s/'\"(){}\[\]:@]*")
_HOST = re.compile(r"[^\s'\"(){}@]+")
_PORT = re.compile(r"\d+/")  # a path follows, which may also contain an @
_BUCKETS = ("s3://", "s3a://", "s3n://", "gs://")  # bucket names have no port
# Parameters with the name of a secret: `?password=…`, `&X-Amz-Signature=…`, `;AccountKey=…`.
_TOKEN = re.compile(
    r"(?i)[?&;#][^\s=?&;#]*"
    r"(?:pass|pwd|secret|token|jaas|credential|private|signature|(?:api|access|account|shared).?key|\bsig)"
    r"[^\s=?&;#]*=[^\s&;#]"
)
_WEB = ("http://", "https://")


def holds_login(value: object) -> bool:
    """Return whether the value is an address that contains a login.

    An address is a URI, a broker, a host, or a list of these with commas. Text of several words isn't an
    address. A login is a user with a password, a password alone, or a token as a parameter.
    """
    if not isinstance(value, str):
        return False
    if "@" not in value and "=" not in value:
        return False
    text = value.strip()
    if not re.search(r"\s", text) and _TOKEN.search(text):
        return True
    scheme = _SCHEME.match(text)
    login, at, rest = text[scheme.end() if scheme else 0 :].rpartition("@")
    if not at or not _HOST.fullmatch(rest):
        return False
    user, colon, password = login.partition(":")
    if not _USER.fullmatch(user):
        return False  # it is a path or an expression
    if not colon:  # container@account, user@server, or TOKEN@server in a web address
        return text.lower().startswith(_WEB) and "/" not in login
    is_port = _PORT.match(password) is not None and not text.lower().startswith(_BUCKETS)
    return bool(password) and not password.startswith("//") and not is_port


def has_login(value: object) -> bool:
    """Return whether the value, or an item of it, may be an address with a user, and so with a password."""
    if isinstance(value, list | tuple):
        return any(has_login(item) for item in value)
    if not isinstance(value, str):
        return False
    return re.search(r"://[^/\s]*@|:.*@", value, re.DOTALL) is not None or holds_login(value)


VAULT_TOKEN = "VAULT_TOKEN"
SECRET_ID = "MZPLAN_VAULT_SECRET_ID"
SECRET_ID_FILE = "MZPLAN_VAULT_SECRET_ID_FILE"
KUBERNETES_ROLE = "MZPLAN_VAULT_KUBERNETES_ROLE"
KUBERNETES_TOKEN_FILE = "MZPLAN_VAULT_KUBERNETES_TOKEN_FILE"
_VARIABLES = frozenset({VAULT_TOKEN, SECRET_ID})
_AWS_FILES = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
)
_SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount/token"


def vault_token_file() -> Path | None:
    """Return the file in which Vault's command stores a token, or None for a user without a home."""
    try:
        return Path.home() / ".vault-token"
    except RuntimeError:
        return None


def kubernetes_token_file() -> Path:
    """Return the path of the Kubernetes token for Vault, or of the pod's own token."""
    return Path(os.environ.get(KUBERNETES_TOKEN_FILE) or _SERVICE_ACCOUNT)


def require_no_login(provider: str, name: str, directory: Path) -> None:
    """Raise MzplanError MZ263 for a reference to the runner's own login."""
    if (provider == "env" and name in _VARIABLES) or (provider == "file" and _is_login(directory / name)):
        raise error("MZ263.runner-own", provider=provider, name=name)


def _is_login(path: Path) -> bool:
    try:
        real = os.path.realpath(path)
        if real.startswith("/proc/") and real.endswith("/environ"):  # all environment variables of a process
            return True
    except (OSError, ValueError):  # not a valid file name, so it can't be read
        return False
    return any(_is_same_file(login_file, real) for login_file in _login_files())


def _is_same_file(login: Path, real: str) -> bool:
    try:
        return os.path.samefile(login, real)  # noqa: PTH121 - also finds hard links
    except (OSError, ValueError):
        return False


def _login_files() -> Iterator[Path]:
    if (token := vault_token_file()) is not None:
        yield token
        yield token.with_name(".aws") / "credentials"
    if path := os.environ.get(SECRET_ID_FILE):
        yield Path(path)
    if os.environ.get(KUBERNETES_ROLE):
        yield kubernetes_token_file()
    for variable in _AWS_FILES:
        if path := os.environ.get(variable):
            yield Path(path)
