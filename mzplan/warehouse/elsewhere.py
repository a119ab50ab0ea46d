"""Finds out whether the queries' storage is in another warehouse than this project's folder names.

A relative `warehouse` beside a remote state is another folder in each clone of the project.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable

from mzplan.model.address import Address, Place
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.observed import Status
from mzplan.warehouse.paths import local_path


def place_of_warehouse(warehouse: str) -> str:
    """Return `PATH on HOST` for an absolute path; "" for an object store."""
    folder = local_path(warehouse)
    return f"{folder.resolve()} on {socket.gethostname()}" if folder is not None else ""


def former_place(status: Status | None, warehouse: str, stored: Iterable[Place]) -> str:
    """Return where the last runner stored data, if this warehouse has none of it; else "".

    `stored`: ids and generations of the runner's queries.
    """
    here = place_of_warehouse(warehouse)
    if status is None or not here or status.warehouse in ("", here):
        return ""
    from mzplan.warehouse.checkpoints import Checkpoint  # only for a runner on another machine or folder

    folders = (local_path(Checkpoint.of(warehouse, *place).folder) for place in stored)
    return "" if any(folder is not None and folder.exists() for folder in folders) else status.warehouse


def stored_elsewhere(former: str, warehouse: str, owner: Address | str) -> Diagnostic:
    """Return MZ341 for a query, or for an instance by name. `former`: see `former_place`.

    All queries of an instance have the same message, so that status shows it once.
    """
    address = owner if isinstance(owner, Address) else None
    return Diagnostic.of(
        "MZ341.data-another",
        address=address,
        whose=f"instance {owner}" if address is None else "this instance",
        former=former,
        warehouse=warehouse,
    )
