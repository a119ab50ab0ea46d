"""Whether an existing Delta table can take the columns of a sink, without Spark."""

from __future__ import annotations

from collections.abc import Sequence

from mzplan.connectors.api.outputs import target_outputs
from mzplan.connectors.api.queries import Output, ResolvedQuery, empties_target
from mzplan.connectors.api.targets import unfit_target
from mzplan.connectors.delta.table import column_types, holds, open_table
from mzplan.connectors.network.folders import are_same_columns, partition_mismatch, rewrite_hint
from mzplan.model.diagnostics import Diagnostic
from mzplan.schema.columns import canonical_type
from mzplan.schema.target_writes import VERSION_COLUMNS, keeps_history
from mzplan.warehouse.paths import local_path


def unfit_table(query: ResolvedQuery, folder: str, outputs: Sequence[Output]) -> list[Diagnostic]:
    """Return MZ053 for an existing table that the sink can't write to, for one of these reasons:

    - It is missing columns of the key, so every MERGE would fail. (Other missing columns are added.)
    - Its partition columns differ from the sink's, and they can't change.
    - Its types don't hold the sink's values. Spark would fail at the first value that it can't cast.
    """
    local = local_path(folder)
    if local is None or not (local / "_delta_log").is_dir():
        return []
    table = open_table(str(local))
    if table is None:  # Spark reports it
        return []
    if empties_target(query) and query.checkpoint is not None and not query.checkpoint.log.has_begun():
        return []  # it will get the sink's own columns
    type_by_name = column_types(table)
    # Spark ignores case when it resolves names.
    types = {name.lower(): type_ for name, type_ in type_by_name.items()}
    needed = [*query.body.get("key", ()), *(c.name for c in VERSION_COLUMNS if keeps_history(query.body))]
    missing = [name for name in needed if name.lower() not in types]
    if missing:
        return [
            unfit_target(
                query,
                f"Table {folder} doesn't have the columns by which {query.address} finds its rows",
                f"it has {', '.join(type_by_name)}, but not {', '.join(missing)}.",
                "give the sink a target of its own, or correct `key`.",
            )
        ]
    wanted, partitions = query.body.get("partition_by", ()), table.metadata().partition_columns
    if wanted and not are_same_columns(wanted, partitions):
        return [partition_mismatch(query, folder, partitions, can_rewrite=True)]
    mismatches = [
        f"{output.name} is {stored} in the table, but the sink writes {output.type}"
        for output in target_outputs(query, outputs)
        if (stored := types.get(output.name.lower()))
        and "<" not in stored  # Spark compares the fields of nested types
        and canonical_type(stored)
        and output.type
        and not holds(stored, output.type)
    ]
    if not mismatches:
        return []
    return [
        unfit_target(
            query,
            f"The column types of table {folder} don't fit {query.address}",
            f"{'; '.join(mismatches)}.",
            f"cast the column in `select`; or {rewrite_hint(query)}; or give the sink a target of its own.",
        )
    ]
