"""The folder of the table of a query's dead letters."""

from __future__ import annotations

import os
from pathlib import Path

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.model.diagnostics import Diagnostic
from mzplan.warehouse.paths import absolute, local_path


def folder_of(query: ResolvedQuery) -> str | None:
    """Return the folder of the dead letters' table, or None if they go to a topic or the query keeps none."""
    path = (query.body.get("dead_letter") or {}).get("path")
    return absolute(query.directory, path) if path is not None else None


def check_folder(query: ResolvedQuery, folder: str) -> tuple[Diagnostic, ...]:
    """Return why the dead letters can't be stored in a folder."""
    local = local_path(folder)
    if local is None:  # only Spark can check what it reaches there
        return ()
    nearest = next((path for path in (local, *local.parents) if path.exists()), Path("/"))
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return ()
    return (Diagnostic.of("MZ057.dead-letters", address=query.address, folder=folder, nearest=nearest),)
