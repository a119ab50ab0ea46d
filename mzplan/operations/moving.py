"""What moves with a state from one backend to another: beside the state, what its runners have noted down.

`state pull --out FILE` writes it to `FILE.runners`, and `state push FILE` into an empty store takes it along:
the journals (storage that is still to be removed) and the accepted descriptions (what to go back to, and that
a query has run before). Leases and statuses are not moved: a runner writes them anew.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mzplan.model import reading
from mzplan.model.diagnostics import ExitCode, MzplanError, error
from mzplan.operations.project import Project
from mzplan.state.backend import ConflictError
from mzplan.state.formats import decode_accepted
from mzplan.state.journal import decode_journal
from mzplan.state.store import Store

FORMAT_VERSION = 1
_KEY = re.compile(r"journal/[a-z][a-z0-9_]*\.jsonl|status/[a-z][a-z0-9_]*\.accepted\.json")


def beside(file: str) -> Path:
    """Where the rest of what `state pull --out FILE` wrote is."""
    return Path(f"{file}.runners")


def belongings(store: Store, lineage: str) -> bytes | None:
    """What runners have noted down; None where that is nothing."""
    keys = [key for prefix in ("journal/", "status/") for key in store.backend.list(prefix)]
    found = {}
    for key in filter(_KEY.fullmatch, keys):
        blob = store.backend.read(key)
        if blob is not None and blob.data.strip():
            found[key] = blob.data.decode()
    if not found:
        return None
    document = {"format_version": FORMAT_VERSION, "lineage": lineage, "keys": found}
    return (json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def read_belongings(data: bytes, place: str, lineage: str) -> dict[str, bytes]:
    """By key. Raises MZ163 for what is damaged, or of another state."""
    try:
        content = reading.mapping(reading.parse(data), "it")
        if reading.integer(content, "format_version") != FORMAT_VERSION:
            raise ValueError("it was written by another version of mzplan")
        if reading.text(content, "lineage") != lineage:
            raise ValueError("it is of another state")
        found = {key: str(text).encode() for key, text in reading.mapping(content["keys"], "keys").items()}
        for key, value in found.items():
            _check(key, value)
    except (ValueError, KeyError, MzplanError) as problem:
        raise error(
            "MZ163",
            f"{place} can't be taken along",
            f"{problem}. Nothing was changed.",
            "pull anew; or delete it: then storage that is still to be removed is left where it is.",
        ) from None
    return found


def _check(key: str, value: bytes) -> None:
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key[:80]!r} is no key of it")
    checked: Any = decode_journal(value, key) if key.endswith(".jsonl") else decode_accepted(value, key)
    del checked


def bring(store: Store, found: dict[str, bytes]) -> None:
    """Write them where nothing is yet. Repeated after a crash, it changes nothing."""
    for key, value in sorted(found.items()):
        try:
            store.backend.write(key, value, expected=None)
        except ConflictError:
            continue


def settle_edit(project: Project) -> None:
    """An edit of `alter` that was interrupted is finished or forgotten while its own store is at hand."""
    directory = project.settings.directory
    if (Path(directory) / ".mzplan" / "alter.json").exists():
        from mzplan.operations.alter_journal import settle_left

        settle_left(directory, project.store)


def refuse_open_edit(project: Project) -> None:
    """MZ164 while such an edit is open: whether it was committed, only the store it began in can tell."""
    path = Path(project.settings.directory) / ".mzplan" / "alter.json"
    if path.exists():
        raise error(
            "MZ164",
            "An edit of `mzplan alter` is still open in this folder",
            f"{path} says so. Only the store that it began in tells whether it was committed. Nothing was "
            "changed.",
            "with `state:` as it was, run `mzplan plan` here, which finishes or forgets it; pull, and push "
            "again.",
            exit_code=ExitCode.REFUSED,
        )
