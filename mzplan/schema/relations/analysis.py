"""Analyses the query of a view by a list of passes over one tree (see tree.Analysis)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mzplan.schema.relations.names import resolve_names
from mzplan.schema.relations.nodes import QueryError
from mzplan.schema.relations.operators import find_operators
from mzplan.schema.relations.parse import RelationalQuery
from mzplan.schema.relations.rules import check_rules
from mzplan.schema.relations.state import describe_state
from mzplan.schema.relations.tree import Analysis, Input

Pass = Callable[[Analysis], None]
"""Reads what the passes before it have found, and fills in a part of the analysis. Raises QueryError."""

NAMES: Sequence[Pass] = (resolve_names, find_operators)
PASSES: Sequence[Pass] = (*NAMES, check_rules, describe_state)


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
