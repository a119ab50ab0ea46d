"""Traces the query of a view from its text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mzplan.schema.current.trace import Trace, trace
from mzplan.schema.relations.analysis import analyse
from mzplan.schema.relations.outputs import CURRENT
from mzplan.schema.relations.parse import parse_query
from mzplan.schema.relations.tree import Input


def trace_of(sql: str, inputs: Mapping[str, Input], body: Mapping[str, Any]) -> Trace:
    """Return the trace of a view's query. Raises QueryError for a query that current views can't have.

    `inputs`: the collections that it reads, as tables. `body`: the view's settings, with its key.
    """
    query = parse_query(sql, over_tables=True)
    return trace(analyse(query, inputs, body, CURRENT.passes))
