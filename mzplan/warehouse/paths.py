"""Paths and URIs of the warehouse, made absolute and split."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlparse

_STORAGE = re.compile(r"(.*)/((?:collections|checkpoints)/[^/]+/g\d+(?:/.*)?)")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|file:/")


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
    except ValueError:  # such as `s3://[x`; opening the path reports the error
        return None
    return Path(unquote(parsed.path)) if parsed.scheme == "file" else None


def split_storage(path: Path) -> tuple[Path, str]:
    """Split the path of a collection or checkpoint into the warehouse and the part below it.

    The user chose the warehouse's path, but a checkout may have brought links below it. Any other path is
    returned whole, with "" as its second part."""
    match = _STORAGE.fullmatch(str(path))
    return (Path(match[1] or "/"), match[2]) if match is not None else (path, "")
