"""The pass that describes the state of a query, so that a plan can tell whether another query can use it."""

from __future__ import annotations

from mzplan.schema.relations.tree import Analysis


def describe_state(analysis: Analysis) -> None:
    """Fill in `state`, if the query keeps state."""
    if not analysis.operators:
        return
    numbers = {name: number for number, name in enumerate(analysis.query.places)}
    watermarks = analysis.body.get("watermarks") or {}
    marks = sorted((numbers[name], mark["column"].lower()) for name, mark in watermarks.items())
    # Spark keeps the columns that `*` stands for and the result needs, in this order.
    starred = [column.name.lower() for column in analysis.starred if column in analysis.used]
    aliases = [("alias", name) for name in analysis.aliases]
    analysis.state = analysis.query.digest(*marks, *starred, *aliases)
