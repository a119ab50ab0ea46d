"""Whether a folder's existing Parquet files have the types that its sink writes.

Readers refuse a folder with a column in two types, but Spark silently writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import Output, ResolvedQuery, empties_target
from mzplan.connectors.api.targets import unfit_target
from mzplan.connectors.files.manifest import read_list
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
    """Return MZ053 for columns that the newest file on this machine has in other types. A file may have more
    columns or fewer: readers accept that."""
    begins = query.checkpoint is not None and not query.checkpoint.log.has_begun()
    if local_path(folder) is None or (begins and empties_target(query)):
        return []  # Spark reports it in an object store; removed files don't matter
    types = _types_in(folder)
    retyped = [
        f"{output.name} is {stored} there, and the sink writes {output.type}"
        for output in outputs
        if output.type in _NAMES.values()
        and (stored := types.get(output.name.lower(), output.type)) != output.type
    ]
    if not retyped:
        return []
    return [
        unfit_target(
            query,
            f"The files in {folder} have other types than {query.address} writes",
            f"{'; '.join(retyped)}. Readers refuse a folder with both.",
            "cast or rename the column in `select`, or name another path; or with on_replace: truncate, "
            f"rewrite all files: mzplan apply --replace {query.address} --allow-replace.",
        )
    ]


def _types_in(folder: str) -> dict[str, str]:
    """Return the simple types of the newest readable file, by column. Leaves out nested types and times."""
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
