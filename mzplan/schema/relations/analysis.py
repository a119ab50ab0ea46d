"""Analyses the query of a view by a list of passes over one tree (see tree.Analysis).

The kind of a view's output decides which passes check its query, and what the view can't be set with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mzplan.schema.current.trace import Trace, trace
from mzplan.schema.relations.names import resolve_names
from mzplan.schema.relations.nodes import QueryError
from mzplan.schema.relations.parse import RelationalQuery, is_current, parse_query
from mzplan.schema.relations.rules import check_current, check_rules
from mzplan.schema.relations.state import describe_state, find_operators
from mzplan.schema.relations.tree import Analysis, Input

Pass = Callable[[Analysis], None]
"""Reads what the passes before it have found, and fills in a part of the analysis. Raises QueryError."""

NAMES: Sequence[Pass] = (resolve_names, find_operators)
PASSES: Sequence[Pass] = (*NAMES, check_rules, describe_state)
_OVER_TABLES = "its query reads tables as they are, and keeps no state"
_ONLY_CURRENT = "only a view with `output: current` computes its rows again"


@dataclass(frozen=True, slots=True)
class Output:
    """A kind of output.

    - `streams`: whether the query reads collections as streams, whose rows never change. Otherwise, it
      computes its rows again where its inputs change.
    - `passes`: the analysis of the query.
    - `excluded`: the properties that the view can't set, with the reasons.
    """

    streams: bool
    passes: Sequence[Pass]
    excluded: Mapping[str, str]

    @property
    def naming_passes(self) -> Sequence[Pass]:
        """Return the passes that find the columns of a query, also of one without settings of its own."""
        return [run for run in self.passes if run in NAMES]


_OF_STREAMS = Output(True, PASSES, {"refresh": _ONLY_CURRENT, "full_above": _ONLY_CURRENT})
_CURRENT = Output(
    False,
    (resolve_names, check_current),
    {
        "snapshots": "it reads each of its inputs as it is, and follows all of them",
        "watermarks": "no row of its inputs is late for it",
        "partitions": _OVER_TABLES,
        "on_query_change": _OVER_TABLES,
    },
)


def output_of(body: Mapping[str, Any]) -> Output:
    """Return the kind of output of a view's body; that of a view that adds rows for an invalid value."""
    return _CURRENT if is_current(body) else _OF_STREAMS


def analyse(
    query: RelationalQuery,
    inputs: Mapping[str, Input],
    body: Mapping[str, Any],
    passes: Sequence[Pass] = PASSES,
) -> Analysis:
    """Return the analysis of a view's query by these passes. Raises QueryError.

    `body`: the settings of the view.
    """
    analysis = Analysis(query, inputs, body)
    try:
        for run in passes:
            run(analysis)
    except RecursionError:
        raise QueryError("it is nested too deep", 0, "compute a part of it in a subquery.") from None
    return analysis


def trace_of(sql: str, inputs: Mapping[str, Input], body: Mapping[str, Any]) -> Trace:
    """Return the trace of a current view's query. Raises QueryError for a query that it can't have.

    `inputs`: the collections that it reads, as tables. `body`: the view's settings, with its key.
    """
    query = parse_query(sql, over_tables=True)
    return trace(analyse(query, inputs, body, _CURRENT.passes))
