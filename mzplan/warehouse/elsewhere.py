"""Finds out whether the queries' storage is in another warehouse than this project's folder names.

A relative `warehouse` beside a remote state is another folder in each clone of the project.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable

from mzplan.model.address import Address, Place
from mzplan.model.diagnostics import Diagnostic, ExitCode
from mzplan.model.observed import Status
from mzplan.warehouse.checkpoints import Checkpoint
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
    folders = (local_path(Checkpoint.of(warehouse, *place).folder) for place in stored)
    return "" if any(folder is not None and folder.exists() for folder in folders) else status.warehouse


def stored_elsewhere(former: str, warehouse: str, owner: Address | str) -> Diagnostic:
    """Return MZ341 for a query, or for an instance by name. `former`: see `former_place`.

    All queries of an instance have the same message, so that status shows it once.
    """
    address = owner if isinstance(owner, Address) else None
    return Diagnostic(
        code="MZ341",
        kind="checkpoint-missing",
        summary=f"The data of {f'instance {owner}' if address is None else 'this instance'} is in another "
        "warehouse",
        detail=f"The last runner used {former}. This project's warehouse is {warehouse}, and it has none of "
        "that data.",
        hint="run mzplan in the project's folder there, or make that warehouse available here under this "
        "path. A relative `warehouse` is another folder in each clone of a project.",
        address=address,
        exit_code=ExitCode.REFUSED,
    )
