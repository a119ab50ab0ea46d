"""The records of runners that move with a state from one backend to another.

`state pull --out FILE` writes them to `FILE.runners`, and `state push FILE` writes them into an empty store:
the journals (storage still to be removed; past runs; prepared exports with their holds) and the accepted
descriptions (what to go back to, and that a query has run before). The newest epoch goes into any store:
targets refuse a writer with a lower one than they know. Leases and statuses are not moved: a runner writes
them anew.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mzplan.host.local_folder import journal_path
from mzplan.model.codec import decode, encode
from mzplan.model.diagnostics import ExitCode, MzplanError, error
from mzplan.model.json_text import parse
from mzplan.model.stored import OPTIONAL
from mzplan.operations.project import Project
from mzplan.store.backends.backend import ConflictError
from mzplan.store.epochs import newest_epoch, raise_epoch
from mzplan.store.formats import decode_accepted
from mzplan.store.journal import Dropped, PastRun, Prepared, decode_journal
from mzplan.store.store import Store

FORMAT_VERSION = 1
_KEY = re.compile(
    r"journal/[a-z][a-z0-9_]*(\.prepared|\.former)?\.jsonl|status/[a-z][a-z0-9_]*\.accepted\.json"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """What `state pull` writes beside the state."""

    format_version: int = FORMAT_VERSION
    lineage: str
    epoch: int = field(default=0, metadata=OPTIONAL)
    keys: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerRecords:
    """The records that move: blobs by key, and the newest epoch (0 in a file of an earlier mzplan)."""

    keys: dict[str, bytes]
    epoch: int


def beside(file: str) -> Path:
    """The path of the records beside a state file: `FILE.runners`."""
    return Path(f"{file}.runners")


def collect_records(store: Store, lineage: str) -> bytes | None:
    """The file of a store's records, as bytes; None where there are none."""
    keys = [key for prefix in ("journal/", "status/") for key in store.backend.list(prefix)]
    found = {}
    for key in filter(_KEY.fullmatch, keys):
        blob = store.backend.read(key)
        if blob is not None and blob.data.strip():
            found[key] = blob.data.decode(errors="replace")  # what is damaged is refused when it is read
    epoch = newest_epoch(store.backend)
    if not found and not epoch:
        return None
    document = _File(lineage=lineage, epoch=epoch, keys=found)
    return (json.dumps(encode(document), indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def read_records(data: bytes | None, place: str, lineage: str) -> RunnerRecords:
    """The inverse. `place` names the file for people. Raises MZ163 for a damaged one, or of another state."""
    if data is None:
        return RunnerRecords(keys={}, epoch=0)
    try:
        content = decode(_File, parse(data))
        if content.format_version != FORMAT_VERSION:
            raise ValueError("it was written by another version of mzplan")
        if content.lineage != lineage:
            raise ValueError("it is of another state")
        found = {key: text.encode() for key, text in content.keys.items()}
        for key, value in found.items():
            _check(key, value)
    except (ValueError, MzplanError) as problem:
        raise error(
            "MZ163",
            f"{place} can't be taken along",
            f"{problem}. Nothing was changed.",
            "pull anew. Without it, storage that is still to be removed is left where it is, and targets "
            "take the next runner for an older one (MZ068).",
        ) from None
    return RunnerRecords(keys=found, epoch=content.epoch)


def _check(key: str, value: bytes) -> None:
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key[:80]!r} is no key of it")
    if key.startswith("status/"):
        decode_accepted(value, key)
    elif key.endswith(".prepared.jsonl"):
        decode_journal(Prepared, value, key)
    elif key.endswith(".former.jsonl"):
        decode_journal(PastRun, value, key)
    else:
        decode_journal(Dropped, value, key)


def write_records(store: Store, found: RunnerRecords) -> None:
    """Write the records that the store does not have yet. Repeated after a crash, it changes nothing."""
    write_epoch(store, found)
    for key, value in sorted(found.keys.items()):
        try:
            store.backend.write(key, value, expected=None)
        except ConflictError:
            continue


def write_epoch(store: Store, found: RunnerRecords) -> None:
    """Make the next runner's epoch higher than all of the store that the records come from."""
    if found.epoch:
        raise_epoch(store.backend, found.epoch)


def refuse_open_edit(project: Project) -> None:
    """Raise MZ164 while such an edit is open: only the store it began in shows whether it was committed."""
    path = journal_path(project.settings.directory)
    if os.path.lexists(path):
        raise error(
            "MZ164",
            "An edit of `mzplan alter` is still open in this folder",
            f"{path} says so. Only the store that it began in tells whether it was committed. Nothing was "
            "changed.",
            "with `state:` as it was, run `mzplan apply` here, which finishes or forgets it; pull, and push "
            "again.",
            exit_code=ExitCode.REFUSED,
        )
