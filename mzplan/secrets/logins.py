"""Logins inside addresses: a user and a password, or a token, where only a server should stand."""

from __future__ import annotations

import re

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
