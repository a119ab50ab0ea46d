"""Makes paths absolute: relative ones start at the project's folder; URIs stay unchanged."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlparse

_STORAGE = re.compile(r"(.*)/((?:collections|checkpoints)/[^/]+/g\d+(?:/.*)?)")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|file:/")
_ELSEWHERE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")  # an absolute path, or a scheme of any kind


def is_uri(path: str) -> bool:
    """Whether the path begins with a scheme (`s3://…`, `file:/…`)."""
    return _SCHEME.match(path) is not None


def absolute(directory: str, *parts: str) -> str:
    """Join `directory` and the parts to an absolute path. An absolute part replaces everything before it."""
    result = directory
    for part in parts:
        if is_uri(part):
            result = part.rstrip("/")
        elif part.startswith("/") or not is_uri(result):
            result = str(Path(result) / part)
        else:
            result = f"{result.rstrip('/')}/{part.removeprefix('./').strip('/')}"
    return result if is_uri(result) else str(Path(result).absolute())


def local_path(path: str) -> Path | None:
    """Return the path on this machine's file system; None for an object store."""
    if not is_uri(path):
        return Path(path)
    try:
        parsed = urlparse(path)
    except ValueError:  # `s3://[x`: opening it reports the error
        return None
    return Path(unquote(parsed.path)) if parsed.scheme == "file" else None


def split_storage(path: Path) -> tuple[Path, str]:
    """Split the path of a collection or checkpoint into the warehouse and the part below it.

    The user chose the warehouse; others may have put links below it. Any other path is returned whole."""
    match = _STORAGE.fullmatch(str(path))
    return (Path(match[1] or "/"), match[2]) if match is not None else (path, "")


def stays_below(name: str) -> bool:
    """Whether an untrusted relative path stays inside its base folder.

    Checks the path with its escapes (`%2e`) decoded once and twice, because readers may decode it."""
    once = unquote(name)
    elsewhere = any(not form or _ELSEWHERE.match(form) or "\0" in form for form in (name, once))
    # A folder named after a value with slashes contains their escapes: `kind=a%2F..%2Fb`.
    parts = (*name.split("/"), *(part for entry in once.split("/") for part in (entry, unquote(entry))))
    return not elsewhere and ".." not in parts
