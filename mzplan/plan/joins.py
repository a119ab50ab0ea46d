"""Warnings about views that join streams without a time limit: Spark keeps all their rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.plan import Change
from mzplan.model.state import ResourceState
from mzplan.schema.relations.analysis import Analysis, Input
from mzplan.schema.relations.parse import QueryError, is_relational, parse_query
from mzplan.schema.relations.rules import watermarks_for
from mzplan.schema.source_columns import columns_of

_DECIDING = frozenset(["query", "watermarks"])


def check_joins(
    changes: Iterable[Change], resources: Mapping[Address, ResourceState]
) -> Iterator[Diagnostic]:
    """Yield MZ045, a warning, for each new or changed view that joins streams without watermarks.

    `resources`: the records after the plan.
    """
    for change in changes:
        view = change.after
        if view is None or change.action == "delete" or not is_relational(view.body):
            continue
        is_new = change.action in ("create", "replace")
        if not is_new and not any(field.property_name in _DECIDING for field in change.fields):
            continue
        analysis = _analysis(view, resources)
        joins = [operator for operator in analysis.operators if operator.kind == "join"]
        unlimited = [join for join in joins if not join.timed]
        if unlimited:
            streams = " and ".join(name for name, read in analysis.inputs.items() if read.stream)
            limit = f", and limit the time: ON … AND {unlimited[0].missing}" if unlimited[0].missing else ""
            yield Diagnostic(
                severity="warning",
                code="MZ045",
                summary=f"The state of {view.address} grows without end",
                detail=f"It joins rows of {streams}. Without watermarks, a row may match a row that arrives "
                "at any later time, so Spark keeps all rows.",
                hint=f"declare {watermarks_for(analysis)}{limit}.",
                address=view.address,
            )


def _analysis(view: ResourceState, resources: Mapping[Address, ResourceState]) -> Analysis:
    """Return the analysis of a view's query, as far as the query can be analysed."""
    marks, tables = view.body.get("watermarks", {}), view.snapshots.values()
    inputs = {
        address.name: Input(
            columns_of(resources[address].type, resources[address].body),
            str(address),
            address not in tables,
            marks.get(address.name, {}).get("column", ""),
        )
        for address in (*view.reads.values(), *tables)
    }
    analysis = Analysis(parse_query(view.body["query"]), inputs)
    with suppress(QueryError):  # the checks of the files have reported it
        analysis.result()
    return analysis
