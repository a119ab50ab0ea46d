"""What the package of a type exposes as `CONNECTOR`: which sides it has, and what it can do besides.

All are functions that import when they are called: to know a type must cost neither its server's client
library, which need not be installed, nor pyspark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mzplan.connectors.api.capabilities import Adopts
    from mzplan.connectors.api.protocols import ResolvedQuery, SinkConnector, SourceConnector
    from mzplan.model.diagnostics import Diagnostic


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector:
    """One type of resource; `None` for what it lacks. `source` and `sink` make one, for all queries of a
    process. `reach` says what stands in the way of a connection of this type that no query uses (`link` of a
    query in name only): None for nothing; raises MzplanError, too. `adopts`
    makes what says whether a source goes on from a query that was written by hand."""

    type: str
    source: Callable[[], SourceConnector] | None = None
    sink: Callable[[], SinkConnector] | None = None
    reach: Callable[[ResolvedQuery], Diagnostic | None] | None = None
    adopts: Callable[[], Adopts] | None = None
