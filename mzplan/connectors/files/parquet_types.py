"""Checks whether a folder's existing Parquet files have the types that its sink writes.

Readers refuse a folder in which a column has two types, but Spark would write one without an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import Output, ResolvedQuery, empties_target
from mzplan.connectors.api.targets import unfit_target
from mzplan.connectors.files.manifest import read_list
from mzplan.connectors.network.folders import rewrite_hint
from mzplan.model.diagnostics import Diagnostic
from mzplan.warehouse.paths import local_path

if TYPE_CHECKING:
    import pyarrow as pa

_NAMES = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INT",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "large_string": "STRING",
    "binary": "BINARY",
    "date32[day]": "DATE",
}


def unfit_files(query: ResolvedQuery, folder: str, outputs: Sequence[Output]) -> list[Diagnostic]:
    """Return MZ053 if a column's type in the newest file differs from the type that the sink writes.

    Missing and additional columns are fine, because readers accept them. Checks only folders on this machine.
    """
    begins = query.checkpoint is not None and not query.checkpoint.log.has_begun()
    if local_path(folder) is None or (begins and empties_target(query)):
        return []  # In an object store, Spark reports it. Files that will be removed don't matter.
    types = _types_in(folder)
    mismatches = [
        f"{output.name} is {stored} in the files, but the sink writes {output.type}"
        for output in outputs
        if output.type in _NAMES.values()
        and (stored := types.get(output.name.lower(), output.type)) != output.type
    ]
    if not mismatches:
        return []
    return [
        unfit_target(
            query,
            f"The column types of the files in {folder} don't fit {query.address}",
            f"{'; '.join(mismatches)}. Readers refuse a folder with both types.",
            f"cast or rename the column in `select`; or use another path; or {rewrite_hint(query)}.",
        )
    ]


def _types_in(folder: str) -> dict[str, str]:
    """Return the type of each column in the newest readable file. Leaves out nested types and timestamps."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        files = read_list(folder)[1]
    except (OSError, ValueError):  # the sink's start reports it
        return {}
    for file in reversed(files[-3:]):  # the last one may be empty, or removed by somebody
        try:
            fields: Sequence[pa.Field] = list(pq.read_schema(file))
        except (OSError, pa.ArrowInvalid):
            continue
        return {field.name.lower(): name for field in fields if (name := _NAMES.get(str(field.type)))}
    return {}
