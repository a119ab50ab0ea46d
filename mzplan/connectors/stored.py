"""Whether what a query goes on from is still there: its checkpoint, the collection that it writes or reads.

For both sides: the runner asks before it starts a query that has run before, and now and then while it runs;
`drift` asks where no runner is alive and the warehouse is on this machine.
"""

from __future__ import annotations

from mzplan.connectors.checkpoints import Checkpoint, collection_path, is_there, table_id
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError

GONE = frozenset({"MZ160", "MZ161"})  # the checkpoint, the collection


def missing_storage(
    warehouse: str, address: Address, place: tuple[str, int], collection: tuple[Address, str, int]
) -> tuple[Diagnostic, ...]:
    """MZ160 and MZ161 for what is gone of a query that has run. `place` is the id and the generation of its
    checkpoint, `collection` whose it writes or reads. Where it can't be told (no access), nothing is gone."""
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
    except OSError:
        return tuple(found)
    return tuple(found)


def _checkpoint_gone(address: Address, folder: str) -> Diagnostic:
    again = "read its upstream again from the start" if address.kind == "source" else "write all rows again"
    return Diagnostic(
        code="MZ160",
        summary=f"The checkpoint of {address} is gone",
        detail=f"{folder} is not there, or not whole. Without it the query would {again}.",
        hint=f"put it back from a backup; or begin anew: mzplan apply --replace {address} --allow-replace.",
        address=address,
    )


def ensure_collection(checkpoint: Checkpoint, address: Address, table: str) -> None:
    """Before a source writes: raise MZ161 where its table is not the one that it has written before."""
    try:
        known = checkpoint.collection()
        lost = known is not None and not is_there(f"{table}/_delta_log")
        if lost or _is_another(checkpoint, table):
            why = "is not there" if lost else "was removed, and another one was made there"
            raise MzplanError(_collection_gone(address, address, table, why))
    except OSError:
        return  # Spark will tell


def remember_collection(checkpoint: Checkpoint, table: str) -> None:
    """Note down which table a source writes, once. Raises OSError."""
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
