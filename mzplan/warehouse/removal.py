"""Removing the storage of a generation that nothing claims: its collection and its checkpoint."""

from __future__ import annotations

import re

from mzplan.host.files import UnfitError
from mzplan.host.guarded import GuardedFolder
from mzplan.model.diagnostics import error
from mzplan.warehouse.checkpoints import Checkpoint, collection_path
from mzplan.warehouse.folder import remote
from mzplan.warehouse.paths import local_path, split_storage

_ID = re.compile(r"[0-9A-Za-z_-]{1,64}\Z")


def remove_storage(warehouse: str, id_: str, generation: int) -> None:
    """Remove `collections/<id>/g<n>` and `checkpoints/<id>/g<n>`; no error when they are gone. First what a
    query does not go on without (MZ160): one that is claimed again after a crash in between is not whole.

    Raises MzplanError MZ035 when they can't be removed, or when the id is none (it must never lead out
    of the warehouse).
    """
    if _ID.match(id_) is None or generation < 1:
        raise error("MZ035", f"Storage of {id_!r} g{generation} is not removed", "That is no id of mzplan's.")
    checkpoint = Checkpoint.of(warehouse, id_, generation)
    for folder in (
        f"{checkpoint.spark}/metadata",
        collection_path(warehouse, id_, generation),
        checkpoint.folder,
    ):
        try:
            _remove(folder)
        except (FileNotFoundError, NotADirectoryError):  # the latter: a file lies where its parent would
            continue
        except OSError as problem:
            if isinstance(problem, UnfitError) and str(problem.filename).startswith(checkpoint.folder):
                continue  # a link in the checkpoint: it goes with it, and what it leads to stays
            raise error(
                "MZ035",
                f"{folder} can't be removed",
                f"{problem.strerror or problem}.",
                "give the runner the right to remove it; it is tried again.",
            ) from None


def _remove(folder: str) -> None:
    """Never through a link, in any component below the warehouse; a link that lies there goes itself."""
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
