"""state pull and push: move a state and its runners' records to another backend.

`state pull --out FILE` writes the records to `FILE.runners`; `state push FILE` writes them into an empty
store. The records are the journals (storage to remove, past runs, prepared exports with their holds) and the
accepted descriptions (for a rollback, and to know that a query has run before). The newest epoch goes into
any store, because targets refuse a writer with a lower one. Leases and statuses aren't moved: runners write
them again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mzplan.features.state.edit_plans import plan_restore
from mzplan.features.state.state_edits import wake
from mzplan.host.checkout import journal_path
from mzplan.model.address import natural
from mzplan.model.codec import decode, encode, parse_json
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.state import State
from mzplan.operations.commits import no_serial, record_of, record_outcome
from mzplan.operations.project import Project, Reporter, Workbench, committing, locked, read_state
from mzplan.operations.validation import ensure_validated, validate_changed
from mzplan.secrets.guards import AllowingGuard
from mzplan.store.backends.backend import ConflictError
from mzplan.store.backends.local import STATE_KEY
from mzplan.store.formats import decode_accepted, decode_state, encode_state
from mzplan.store.journal import Dropped, PastRun, Prepared, decode_journal
from mzplan.store.leases import newest_epoch, raise_epoch
from mzplan.store.store import Store, serial_key

FORMAT_VERSION = 1
_KEY = re.compile(
    r"journal/[a-z][a-z0-9_]*(\.prepared|\.former)?\.jsonl|status/[a-z][a-z0-9_]*\.accepted\.json"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerRecords:
    """The file of records beside the state file.

    - `epoch`: the newest epoch; 0 if there is none.
    - `keys`: the content of each of the store's records, by key.
    """

    format_version: int = FORMAT_VERSION
    lineage: str
    epoch: int
    keys: Mapping[str, str]


def records_path(file: str) -> Path:
    """Return the path of the records beside a state file: `FILE.runners`."""
    return Path(f"{file}.runners")


def collect_records(store: Store, lineage: str) -> bytes | None:
    """Return the file of a store's records, or None if it has none."""
    keys = [key for prefix in ("journal/", "status/") for key in store.backend.list(prefix)]
    records = {}
    for key in filter(_KEY.fullmatch, keys):
        blob = store.backend.read(key)
        if blob is not None and blob.data.strip():
            records[key] = blob.data.decode(errors="replace")  # damaged text is refused when it is read
    epoch = newest_epoch(store.backend)
    if not records and not epoch:
        return None
    document = RunnerRecords(lineage=lineage, epoch=epoch, keys=records)
    return (json.dumps(encode(document), indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def read_records(data: bytes | None, place: str, lineage: str) -> RunnerRecords:
    """Decode the output of collect_records. `place` names the file in messages.

    Raises MZ038 for a damaged file, or for another state's records."""
    if data is None:
        return RunnerRecords(lineage=lineage, epoch=0, keys={})
    try:
        records = decode(RunnerRecords, parse_json(data))
        if records.format_version != FORMAT_VERSION:
            raise ValueError("it was written by another version of mzplan")
        if records.lineage != lineage:
            raise ValueError("it belongs to another state")
        for key, text in records.keys.items():
            _check(key, text.encode())
    except (ValueError, MzplanError) as problem:
        raise error("MZ038.cannot-moved", place=place, problem=problem) from None
    return records


def _check(key: str, value: bytes) -> None:
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key[:80]!r} isn't a key of such a file")
    if key.startswith("status/"):
        decode_accepted(value, key)
    elif key.endswith(".prepared.jsonl"):
        decode_journal(Prepared, value, key)
    elif key.endswith(".former.jsonl"):
        decode_journal(PastRun, value, key)
    else:
        decode_journal(Dropped, value, key)


def write_records(store: Store, records: RunnerRecords) -> None:
    """Write the records that the store doesn't have yet. After a crash, it can be repeated."""
    write_epoch(store, records)
    for key, text in sorted(records.keys.items()):
        with suppress(ConflictError):
            store.backend.write(key, text.encode(), expected=None)


def write_epoch(store: Store, records: RunnerRecords) -> None:
    """Make the next runner's epoch higher than all epochs of the store that the records come from."""
    if records.epoch:
        raise_epoch(store.backend, records.epoch)


def refuse_open_edit(project: Project) -> None:
    """Raise MZ038 while an edit by `mzplan alter` is open: only its store knows whether it was committed."""
    path = journal_path(project.settings.directory)
    if os.path.lexists(path):
        raise error("MZ038.edit-mzplan", path=path)


def pull(project: Project, serial: int | None = None) -> tuple[bytes, bytes | None, list[str]]:
    """Return the data for `state pull`. Raises MZ030 if there is no state.

    Returns the file of the state or of an earlier serial, unchanged; the records of its runners, or None; and
    the instances with a live runner."""
    if serial is None:
        project.store.read_state()  # raises if the state is lost or isn't the latest
    blob = project.store.backend.read(STATE_KEY if serial is None else serial_key(serial))
    if blob is None and serial is not None:
        # The history only has serials before the current state, which may be damaged.
        with suppress(MzplanError):
            if project.store.read_state().serial == serial:
                blob = project.store.backend.read(STATE_KEY)
    if blob is None and serial is not None:
        raise no_serial(project.store, serial)
    place = project.store.backend.describe()
    if blob is None:
        raise error("MZ030.no-state", place=place)
    state = decode_state(blob.data, f"{place}/{STATE_KEY}")
    live_instances = [
        name for name in sorted(state.instances, key=natural) if project.store.leases.leader(name) is not None
    ]
    return blob.data, collect_records(project.store, state.lineage), live_instances


def push(
    work: Workbench,
    data: bytes,
    name: str,
    *,
    force: bool,
    live: bool | None = None,
    records_data: bytes | None = None,
    message: str | None = None,
) -> tuple[int, bool]:
    """Make a state file the state (`state push`). Returns the serial, and whether it was written.

    In an empty store, the state is written unchanged, with the records of its runners (`records_data`).
    Otherwise it becomes a later serial, with only the epoch of `records_data`. `live`: see ApplyOptions.

    Raises MZ034 for the state of another environment or lineage, and MZ038 if the store is ahead, all exit 7.
    `force` overrides the last two, and a damaged state. Also raises validation's findings.
    """
    pushed = decode_state(data, name)
    refuse_open_edit(work.project)
    if pushed.project != work.project.settings.project:
        raise error(
            "MZ034.state-belongs",
            name=name,
            project=pushed.project,
            own_project=work.project.settings.project,
        )
    store = work.store
    store.ensure_own(pushed, name)
    records = read_records(records_data, f"{name}.runners", pushed.lineage)
    with locked(store, work.reporter, "state push"):
        try:
            state = read_state(store, work.reporter)
        except MzplanError as problem:
            if not force or problem.kind not in ("damaged", "edited"):
                raise
            # A runner answers no proposal while it can't read the state. It will check the pushed state
            # itself.
            write_epoch(store, records)
            pushed = replace(pushed, commit=record_of(work.project, "state push", None, message or ""))
            new = _replace_damaged(store, pushed, work.reporter)
            record_outcome(store, work.reporter, new, None)
            wake(work.runners, new)
            return new.serial, True
        if state.serial == 0 and not state.lineage:
            new = pushed
            _validate(work, state, new, live)
            write_records(store, records)  # before the commit, so a runner that follows it finds them
        elif encode_state(replace(pushed, serial=state.serial, commit=state.commit)) == encode_state(state):
            write_epoch(store, records)
            return state.serial, False
        else:
            if not force:
                _check_push(pushed, state, name)
            record = record_of(work.project, "state push", None, message or "")
            new = replace(pushed, serial=max(pushed.serial, state.serial + 1), commit=record)
            _validate(work, state, new, live)
            write_epoch(store, records)
        with committing(work.reporter, new.serial):
            store.commit(new, state)
        if new is not pushed:
            record_outcome(store, work.reporter, new, None)
    wake(work.runners, new)
    return new.serial, True


def _validate(work: Workbench, state: State, new: State, live: bool | None) -> None:
    """Validate the queries that `new` starts or changes. Raises MzplanError.

    For an empty store, only a live runner validates them, unless `live` says otherwise: a mistake can't stop
    any query there, and the pushed queries were validated before.
    """
    plan, is_move = plan_restore(state, new), state.serial == 0
    if not live and not is_move:
        ensure_validated(work, plan, new, refuses=live is None)
    if live is False:
        return
    guard = AllowingGuard()
    # Don't start a runner for this: on this machine it would have the same network and values.
    from_here = live or (
        not is_move and all(instance.type != "cluster" for instance in new.instances.values())
    )
    findings = validate_changed(work, plan, new, local_guard=guard if from_here else None, own_guard=guard)
    if any(finding.severity == "error" for finding in findings):
        raise MzplanError(findings)
    for finding in findings:
        work.reporter.stage(f"{finding.severity}: {finding.summary}")


def _replace_damaged(store: Store, pushed: State, reporter: Reporter) -> State:
    """Replace a damaged state by the pushed one. The damaged state stays in the history."""
    newest = max(store.serials(), default=0)
    # Also beyond the damaged state's own serial, because a runner that knows it accepts only a later one.
    with suppress(MzplanError):
        newest = max(newest, store.read_edited().serial)
    with suppress(MzplanError):
        newest = max(newest, *(status.serial for status in store.read_statuses().values()), 0)
    new = replace(pushed, serial=max(pushed.serial, newest) + 1)
    with committing(reporter, new.serial):
        store.replace_damaged(new)
    return new


def _check_push(pushed: State, state: State, name: str) -> None:
    if pushed.lineage != state.lineage:
        raise error(
            "MZ034.state-belongs-another", name=name, lineage=pushed.lineage, store_lineage=state.lineage
        )
    if pushed.serial <= state.serial:
        raise error("MZ038.store-ahead", name=name, serial=pushed.serial, store_serial=state.serial)
