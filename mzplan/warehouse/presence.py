"""Whether what a query goes on from is still there: its checkpoint, the collection that it writes or reads.

For both sides: the runner looks before it starts a query that has run before, and now and then while it runs;
`drift` looks where no runner is alive and the warehouse is on this machine.
"""

from __future__ import annotations

from mzplan.host.files import UnfitError
from mzplan.model.address import Address, Place
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError, error
from mzplan.warehouse.checkpoints import Checkpoint, collection_path, table_id
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.folder import ensure_plain, is_there
from mzplan.warehouse.lost_steps import lost_steps
from mzplan.warehouse.step_history import StepHistory, given_up


def missing_storage(
    warehouse: str, address: Address, place: Place, collection: tuple[Address, str, int]
) -> tuple[Diagnostic, ...]:
    """MZ160, MZ161, MZ194 and MZ291 for what is gone of a query that has run. `place` is the id and the
    generation of its checkpoint, `collection` whose it writes or reads. Where it can't be seen, nothing is
    gone."""
    found = []
    checkpoint = Checkpoint.of(warehouse, *place)
    owner, id_, generation = collection
    table = collection_path(warehouse, id_, generation)
    try:
        if not is_there(f"{checkpoint.spark}/metadata"):
            found.append(_checkpoint_gone(address, checkpoint.folder))
        # A log that was cleaned up has lost its first entry, and has a checkpoint instead.
        log = f"{table}/_delta_log"
        if not is_there(f"{log}/{0:020}.json") and not is_there(f"{log}/_last_checkpoint"):
            found.append(_collection_gone(address, owner, table, "is not there, or has no Delta log"))
        elif _is_another(Checkpoint.of(warehouse, id_, generation), table):
            found.append(
                _collection_gone(address, owner, table, "was removed, and another one was made there")
            )
        elif address.kind == "sink":
            sink = StepHistory(warehouse, place, (id_, generation))
            lost = given_up(sink, StepHistory(warehouse, (id_, generation)))
            found += [_left_behind(address, owner, *lost)] if lost is not None else []
        elif (missing := lost_steps(CollectionLog(table), checkpoint.log)) is not None:
            found.append(_collection_restored(address, table, *missing))
    except OSError:
        return tuple(found)
    return tuple(found)


def _left_behind(address: Address, owner: Address, needed: int, since: int) -> Diagnostic:
    return Diagnostic(
        code="MZ194",
        summary=f"{address} has waited too long: its next steps are gone",
        detail=f"It goes on with step {needed} of {owner}, whose collection begins with step {since} "
        "now: a sink that does not read holds it for so long as its `max_hold` says.",
        hint=f"let it begin anew, with all rows that are there: mzplan apply --replace {address} "
        f"--allow-replace; and give {owner} a longer max_hold.",
        address=address,
    )


def _checkpoint_gone(address: Address, folder: str) -> Diagnostic:
    again = "read its upstream again from the start" if address.kind == "source" else "write all rows again"
    return Diagnostic(
        code="MZ160",
        summary=f"The checkpoint of {address} is gone",
        detail=f"{folder} is not there, or not whole. Without it the query would {again}.",
        hint=f"put it back from a backup; or begin anew: mzplan apply --replace {address} --allow-replace.",
        address=address,
    )


def require_plain(address: Address, checkpoint: Checkpoint, table: str) -> None:
    """Before Spark writes there: raise MZ063 where it would follow a link to somebody else's files, or wait
    for a pipe. What is put there while it runs, it meets."""
    try:
        ensure_plain(checkpoint.folder, deep=True)
        ensure_plain(f"{table}/_delta_log")
    except UnfitError as problem:
        raise error(
            "MZ063",
            f"{address} could not be started",
            f"{problem}.",
            "it is tried again; nothing in a warehouse is a link, a pipe or a device.",
            address=address,
        ) from None


def ensure_collection(checkpoint: Checkpoint, address: Address, table: str) -> None:
    """Before a source writes: raise MZ161 where its table is not the one that it has written before, and
    MZ291 where that lacks steps."""
    try:
        known = checkpoint.collection()
        lost = known is not None and not is_there(f"{table}/_delta_log")
        if lost or _is_another(checkpoint, table):
            why = "is not there" if lost else "was removed, and another one was made there"
            raise MzplanError(_collection_gone(address, address, table, why))
        if known is not None and (missing := lost_steps(CollectionLog(table), checkpoint.log)) is not None:
            raise MzplanError(_collection_restored(address, table, *missing))
    except OSError:
        return  # Spark will report it


def remember_collection(checkpoint: Checkpoint, table: str) -> None:
    """Record which table a source writes, once. Raises OSError."""
    if checkpoint.collection() is None and (made := table_id(table)) is not None:
        checkpoint.record_collection(made)


def _is_another(checkpoint: Checkpoint, table: str) -> bool:
    known, there = checkpoint.collection(), table_id(table)
    return known is not None and there is not None and known != there


def _collection_gone(address: Address, owner: Address, table: str, why: str) -> Diagnostic:
    return Diagnostic(
        code="MZ161",
        summary=f"The collection of {owner} is gone",
        detail=f"{table} {why}. Its checkpoint goes on behind what it held.",
        hint=f"put it back from a backup; or begin anew: mzplan apply --replace {owner} --allow-replace.",
        address=address,
    )


def _collection_restored(address: Address, table: str, first: int, last: int) -> Diagnostic:
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    return Diagnostic(
        code="MZ291",
        summary=f"The collection of {address} lacks {steps}",
        detail=f"The checkpoint knows {steps} to be written, and {table} does not hold that: the table was "
        "restored to an older copy. The source goes on behind, so rows would be missing.",
        hint=f"put back the copy that holds {steps}; or begin anew: mzplan apply --replace {address} "
        "--allow-replace.",
        address=address,
        exit_code=ExitCode.REFUSED,
    )
