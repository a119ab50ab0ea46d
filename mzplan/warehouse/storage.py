"""The storage of a query's generation in the warehouse: finds, checks and removes it.

The runner checks the storage before it starts a query that has already run, and now and then while the query
runs. `drift` checks it if no runner is alive and the warehouse is on this machine.

The warehouse also has the epochs of the newest runners: a second place to learn that another runner leads.

    <warehouse>/leaders/<lineage>.<instance>.json

A runner records its epoch before it starts queries. An earlier runner that can't reach the store reads it
there, and stops. The lineage tells apart projects and environments that share a warehouse.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from mzplan.host.files import UnfitError
from mzplan.host.guarded_folder import GuardedFolder
from mzplan.model.address import ID, Address, Place
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError, ProblemKind, error
from mzplan.warehouse.checkpoints import Checkpoint, collection_path
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.folder import decoding, exists, open_folder, read_text, remote, write_text
from mzplan.warehouse.paths import absolute, local_path, split_storage
from mzplan.warehouse.step_history import StepHistory, find_given_up_steps
from mzplan.warehouse.stored_files import lost_steps

FORMAT_VERSION = 1


def newest_epoch(warehouse: str, lineage: str, instance: str) -> int:
    """Return the recorded epoch, or 0 if there is none. Raises OSError."""
    place = _place(warehouse, lineage, instance)
    text = read_text(place)
    if text is None:
        return 0
    with decoding(place):
        return int(json.loads(text)["epoch"])


def record_epoch(warehouse: str, lineage: str, instance: str, epoch: int) -> None:
    """Record the epoch durably, unless a higher one is recorded. Raises OSError."""
    if newest_epoch(warehouse, lineage, instance) < epoch:
        data = {"epoch": epoch, "format_version": FORMAT_VERSION}
        write_text(_place(warehouse, lineage, instance), json.dumps(data) + "\n")


def _place(warehouse: str, lineage: str, instance: str) -> str:
    return absolute(warehouse, f"leaders/{lineage}.{instance}.json")


_GENERATION = re.compile(r"g[1-9][0-9]{0,17}")


def missing_storage(
    warehouse: str,
    address: Address,
    place: Place,
    reads: Mapping[Address, Place],
    *,
    needs_each_step: bool = True,
) -> tuple[Diagnostic, ...]:
    """Return MZ161, MZ166 and MZ194 for missing storage of a query that has already run.

    `place` is the id and generation of its checkpoint; `reads` are the places of the collections it reads.
    `needs_each_step`: whether the query must read each step of them, or can read them as they are now.
    Storage that can't be checked counts as present.
    """
    diagnostics: list[Diagnostic] = []
    checkpoint = Checkpoint.of(warehouse, *place)
    try:
        if not exists(f"{checkpoint.spark}/metadata"):
            diagnostics.append(_missing_checkpoint(address, checkpoint.folder))
        if address.writes_collection:
            diagnostics += _missing_collection(warehouse, address, address, place)
            if not diagnostics:
                table = collection_path(warehouse, *place)
                lost = lost_steps(CollectionLog(table), checkpoint.log)
                diagnostics += [_collection_restored(address, table, *lost)] if lost is not None else []
        for owner, place_read in reads.items():
            if not_begun := _not_begun(warehouse, address, owner, place_read):
                return (*diagnostics, not_begun)
            if not address.writes_collection:
                diagnostics += _missing_collection(warehouse, address, owner, place_read)
            if not diagnostics and needs_each_step:
                given_up_steps = find_given_up_steps(
                    StepHistory(warehouse, place, place_read), StepHistory(warehouse, place_read)
                )
                diagnostics += (
                    [_steps_given_up(address, owner, *given_up_steps)] if given_up_steps is not None else []
                )
    except OSError:
        return tuple(diagnostics)
    return tuple(diagnostics)


def _missing_collection(
    warehouse: str, address: Address, owner: Address, place: Place
) -> Iterator[Diagnostic]:
    """Yield MZ161 if the collection that `address` writes or reads is gone. Raises OSError."""
    table = collection_path(warehouse, *place)
    if not _has_log(table):
        yield _replaced_collection(address, owner, table, "is missing or has no Delta log")
    elif _is_replaced(Checkpoint.of(warehouse, *place), table):
        yield _replaced_collection(address, owner, table, "was removed, and another one was created there")


def _has_log(table: str) -> bool:
    """Whether a Delta table is there: its log has a first entry or, after a clean-up, a checkpoint."""
    log = f"{table}/_delta_log"
    return exists(f"{log}/{0:020}.json") or exists(f"{log}/_last_checkpoint")


def _steps_given_up(address: Address, owner: Address, needed: int, since: int) -> Diagnostic:
    return Diagnostic.of("MZ194.waited-too", address=address, needed=needed, owner=owner, since=since)


def _missing_checkpoint(address: Address, folder: str) -> Diagnostic:
    again = "read its upstream again from the start" if address.reads_upstream else "write all rows again"
    detail = f"{folder} is missing or incomplete. Without it, the query would {again}."
    return _missing("checkpoint-missing", address, f"The checkpoint of {address} is gone", detail, address)


def _missing(kind: ProblemKind, address: Address, summary: str, detail: str, owner: Address) -> Diagnostic:
    """Return MZ161 for the query at `address`. `owner`: the query to replace."""
    return Diagnostic(
        code="MZ161",
        kind=kind,
        summary=summary,
        detail=detail,
        hint=f"restore it from a backup; or start again: mzplan apply --replace {owner} --allow-replace.",
        address=address,
    )


def ensure_collection(checkpoint: Checkpoint, address: Address, table: str) -> None:
    """Raise MZ161 if a collection's table was removed or replaced, or is missing steps."""
    try:
        recorded = checkpoint.collection()
        is_missing = recorded is not None and not exists(f"{table}/_delta_log")
        if is_missing or _is_replaced(checkpoint, table):
            why = "is not there" if is_missing else "was removed, and another one was created there"
            raise MzplanError(_replaced_collection(address, address, table, why))
        if recorded is not None and (missing := lost_steps(CollectionLog(table), checkpoint.log)) is not None:
            raise MzplanError(_collection_restored(address, table, *missing))
    except OSError:
        return  # Spark reports the storage's error


def remember_collection(checkpoint: Checkpoint, table: str) -> None:
    """Record which table a source writes, unless it is recorded already. Raises OSError."""
    if checkpoint.collection() is None and (current := table_id(table)) is not None:
        checkpoint.record_collection(current)


def _is_replaced(checkpoint: Checkpoint, table: str) -> bool:
    recorded, current = checkpoint.collection(), table_id(table)
    return recorded is not None and current is not None and recorded != current


def _replaced_collection(address: Address, owner: Address, table: str, why: str) -> Diagnostic:
    detail = f"{table} {why}. The checkpoint would continue after the rows that it held."
    return _missing("collection-missing", address, f"The collection of {owner} is gone", detail, owner)


def _not_begun(warehouse: str, address: Address, owner: Address, place: Place) -> Diagnostic | None:
    """Return MZ166 if the collection's new generation has written nothing yet. Raises OSError."""
    _, generation = place
    has_checkpoint = exists(f"{Checkpoint.of(warehouse, *place).spark}/metadata")
    if generation == 1 or has_checkpoint or _has_log(collection_path(warehouse, *place)):
        return None
    return Diagnostic.of("MZ166.waits-generation", address=address, generation=generation, owner=owner)


def _collection_restored(address: Address, table: str, first: int, last: int) -> Diagnostic:
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    summary = f"The collection of {address} is missing {steps}"
    detail = f"Its checkpoint has written {steps}, but {table} was restored to an older copy."
    return replace(_missing("steps-missing", address, summary, detail, address), exit_code=ExitCode.REFUSED)


def places_below(warehouse: str) -> list[Place]:
    """Return the id and generation of every storage in a warehouse, sorted.

    Ignores links and names that mzplan doesn't use. Raises OSError."""
    places = set()
    for kind in ("collections", "checkpoints"):
        for id_ in filter(ID.fullmatch, _folders(warehouse, kind)):
            places |= {(id_, generation) for generation in generations_below(warehouse, id_, kind)}
    return sorted(places)


def generations_below(warehouse: str, id_: str, kind: str = "checkpoints") -> list[int]:
    """Return the generations of a query that have a folder in a warehouse. Raises OSError."""
    names = _folders(warehouse, f"{kind}/{id_}")
    return [int(name[1:]) for name in names if _GENERATION.fullmatch(name)]


def _folders(warehouse: str, inner: str) -> list[str]:
    local = local_path(warehouse)
    if local is None:
        return open_folder(absolute(warehouse, inner)).names()
    if not local.is_dir():
        return []
    try:
        entries = GuardedFolder(local).entries(inner)
    except NotADirectoryError:
        return []
    return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]


def table_id(collection: str) -> str | None:
    """Return the id that a Delta table got when it was created.

    Returns None if there is no log, or if the log's first entry was cleaned up. Raises OSError."""
    for line in (read_text(f"{collection}/_delta_log/{0:020}.json") or "").splitlines():
        try:
            action = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if isinstance(action, dict) and isinstance(action.get("metaData"), dict):
            return str(action["metaData"].get("id"))
    return None


def is_untouched(collection: str) -> bool:
    """Whether a collection's table was created but never written: its log ends at version 0.

    Also False if that can't be checked."""
    try:
        first, second = (read_text(f"{collection}/_delta_log/{version:020}.json") for version in (0, 1))
    except OSError:
        return False
    return first is not None and second is None


def remove_storage(warehouse: str, id_: str, generation: int) -> None:
    """Remove `collections/<id>/g<n>` and `checkpoints/<id>/g<n>`, if they exist.

    The checkpoint's metadata is removed first. If a crash interrupts the removal and a query claims the
    storage again, MZ161 reports that the storage is incomplete. Raises MzplanError MZ035 if it can't be
    removed, or if the id is invalid: a path must never lead out of the warehouse."""
    if ID.fullmatch(id_) is None or generation < 1:
        raise error("MZ035.storage-not", id=id_, generation=generation)
    checkpoint = Checkpoint.of(warehouse, id_, generation)
    for folder in (
        f"{checkpoint.spark}/metadata",
        collection_path(warehouse, id_, generation),
        checkpoint.folder,
    ):
        try:
            remove_folder(folder)
        except (FileNotFoundError, NotADirectoryError):  # a file may be in the place of the parent folder
            continue
        except OSError as problem:
            if isinstance(problem, UnfitError) and str(problem.filename).startswith(checkpoint.folder):
                continue  # a link in the checkpoint is removed with it; the link's target stays
            raise error("MZ035.cannot-removed", folder=folder, strerror=problem.strerror or problem) from None


def remove_folder(folder: str) -> None:
    """Remove a folder or file. Doesn't follow links below the warehouse, but removes the links themselves."""
    local = local_path(folder)
    if local is not None:
        root, inner = split_storage(local)
        GuardedFolder(root).remove(inner)
        return
    system, path = remote(folder)
    if system.get_file_info(path).is_file:
        system.delete_file(path)
    else:
        system.delete_dir(path)
