"""What the package of a type exposes as `CONNECTOR`: which sides it has, and what it can do besides.

All are functions that import when they are called: to know a type must cost neither its server's client
library, which need not be installed, nor pyspark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mzplan.connectors.api.capabilities import Adopts
    from mzplan.connectors.api.ddl import Ddl
    from mzplan.connectors.api.lineage_names import Ends
    from mzplan.connectors.api.protocols import Output, ResolvedQuery, SinkConnector, SourceConnector
    from mzplan.model.diagnostics import Diagnostic


@dataclass(frozen=True, slots=True, kw_only=True)
class Connector:
    """One type of resource; `None` for what it lacks. `source` and `sink` make one, for all queries of a
    process. `reach` says what stands in the way of a connection of this type that no query uses (`link` of a
    query in name only): None for nothing; raises MzplanError, too. `adopts`
    makes what says whether a source goes on from a query that was written by hand. `ends`: what OpenLineage
    calls the other end of a query, whose secrets are still references; None: there is no name for it. `ddl`
    is what an administrator runs on the server before a query can: secrets of that query are references, as
    they are written; raises MzplanError. `by_time`: its source can read a bounded range of times again
    (capabilities.ReadsTimes).

    Of a connection, to know where its secrets go: `servers` are those that it reaches itself, as `host:port`,
    by its body with defaults, where secrets are references; None: they can't be known. `carries`: what uses
    it reaches its own servers through these. `lends`: what uses it signs in with its secrets, too. `machine`:
    the reference that stands for credentials of the machine it runs on, "" where it uses none."""

    type: str
    source: Callable[[], SourceConnector] | None = None
    sink: Callable[[], SinkConnector] | None = None
    reach: Callable[[ResolvedQuery], Diagnostic | None] | None = None
    adopts: Callable[[], Adopts] | None = None
    ends: Callable[[ResolvedQuery], Ends] | None = None
    ddl: Callable[[ResolvedQuery, Sequence[Output]], Ddl] | None = None
    by_time: bool = False
    servers: Callable[[Mapping[str, Any]], Sequence[str]] | None = None
    carries: bool = False
    lends: bool = False
    machine: Callable[[Mapping[str, Any]], str] | None = None
