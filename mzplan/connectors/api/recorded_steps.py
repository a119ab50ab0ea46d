"""What a target has recorded of the steps of a sink, for `mzplan verify`: what all kinds of targets share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from mzplan.connectors.api.protocols import ResolvedQuery
from mzplan.endpoints.interface import Written
from mzplan.model.diagnostics import MzplanError, error
from mzplan.warehouse.content_hash import content_hash
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.replay import read_batches

if TYPE_CHECKING:
    from pyarrow import RecordBatch


def nothing_recorded(query: ResolvedQuery, why: str, *, has_content: bool = False) -> MzplanError:
    """MZ100. `has_content`: what the target holds can be compared."""
    also = f"; or what the target holds: mzplan verify {query.address} --content" if has_content else ""
    return error(
        "MZ100",
        f"The target of {query.address} keeps no record of its steps",
        why,
        f"verify its source: mzplan verify {query.description.source.address}{also}"
        if query.description.source
        else "",
        address=query.address,
    )


def held(files: Iterable[str]) -> Written:
    """The rows of Parquet files. Raises GoneError, OSError."""

    def batches() -> Iterator[RecordBatch]:
        for file in files:
            try:
                yield from read_batches(file)
            except FileNotFoundError:
                raise GoneError(f"{file}, which the target says this step has written, is gone.") from None

    found = content_hash(batches())
    return Written(rows=found.rows, digest=str(found))
