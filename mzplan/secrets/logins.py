"""Logins where none may be: inside an address, where only a server should stand; and as a connection's secret
what a runner itself signs in with to where secrets are kept. Whoever writes a configuration could send that
to a server of his, and read all that the runner may."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from mzplan.model.diagnostics import error

# `sasl_ssl://`, `jdbc:postgresql://`; `//` alone is one that was left out.
_SCHEME = re.compile(r"(?:[A-Za-z][\w.+-]*:)*//")
_USER = re.compile(r"[^\s/'\"(){}\[\]:@]*")
_HOST = re.compile(r"[^\s'\"(){}@]+")
_PORT = re.compile(r"\d+/")  # a path behind it may have anything in it
_BUCKETS = ("s3://", "s3a://", "s3n://", "gs://")  # whose names have no port
# A parameter that is one by its name: `?password=…`, `&X-Amz-Signature=…`, `;AccountKey=…`.
_TOKEN = re.compile(
    r"(?i)[?&;#][^\s=?&;#]*"
    r"(?:pass|pwd|secret|token|jaas|credential|private|signature|(?:api|access|account|shared).?key|\bsig)"
    r"[^\s=?&;#]*=[^\s&;#]"
)
_WEB = ("http://", "https://")


def holds_login(value: object) -> bool:
    """Whether it is an address (a URI, a broker, a host, or several with commas) that contains a login: a
    user and a password, a password alone, or a token as a parameter. A text of several words is none."""
    if not isinstance(value, str):
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
        return False  # a path, or an expression
    if not colon:  # a container at its account, a user at a server; of the web it is a token
        return text.lower().startswith(_WEB) and "/" not in login
    is_port = _PORT.match(password) is not None and not text.lower().startswith(_BUCKETS)
    return bool(password) and not password.startswith("//") and not is_port


def has_login(value: object) -> bool:
    """Whether it is, or lists, what may be an address that contains a user, and so perhaps a password."""
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
    """Where Vault's own command and its agent leave a token; None for a user without a home."""
    home = _home()
    return home / ".vault-token" if home is not None else None


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:
        return None


def kubernetes_token_file() -> Path:
    """The token of the pod's service account, or one that the operator has projected for Vault."""
    return Path(os.environ.get(KUBERNETES_TOKEN_FILE) or _SERVICE_ACCOUNT)


def require_no_login(provider: str, name: str, directory: Path) -> None:
    """Raise MzplanError MZ263 for a reference to such a login."""
    if (provider == "env" and name in _VARIABLES) or (provider == "file" and _is_login(directory / name)):
        raise error(
            "MZ263",
            f"${{{provider}:{name}}} is how the runner itself signs in",
            "It is not a secret of a connection: with it, a server could read whatever the runner may.",
            "name the secret that the server itself asks for.",
        )


def _is_login(path: Path) -> bool:
    try:
        real = os.path.realpath(path)
        if real.startswith("/proc/") and real.endswith("/environ"):  # all variables of a process
            return True
    except (OSError, ValueError):  # no name of a file: nothing to read
        return False
    return any(_is_same(login_file, real) for login_file in _files())


def _is_same(login: Path, real: str) -> bool:
    try:
        return os.path.samefile(login, real)  # noqa: PTH121 - also by another name
    except (OSError, ValueError):
        return False


def _files() -> Iterator[Path]:
    if (home := _home()) is not None:
        yield home / ".vault-token"
        yield home / ".aws/credentials"
    if given := os.environ.get(SECRET_ID_FILE):
        yield Path(given)
    if os.environ.get(KUBERNETES_ROLE):
        yield kubernetes_token_file()
    for variable in _AWS_FILES:
        if given := os.environ.get(variable):
            yield Path(given)
