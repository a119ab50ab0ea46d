"""Renders DDL statements as one psql script and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mzplan.features.ddl.ddl import QueryDdl
from mzplan.render.text import safe


def render_ddl(queries: Sequence[QueryDdl]) -> str:
    """Return a script with each statement once per database, under the first query that needs it.

    For a single database, psql must already be connected; for several, the script connects to each."""
    if not queries:
        return "-- Nothing in this project needs a table or a grant on a server."
    places = list(dict.fromkeys(query.ddl.enter for query in queries))
    blocks: list[str] = []
    for place in places:
        at_place = [query for query in queries if query.ddl.enter == place]
        if len(places) > 1:
            blocks.append(place)
        seen: set[str] = set()
        for query in at_place:
            lines = [f"-- {query.address}: {_line(query.ddl.place)}"]
            lines += [f"-- {_line(note)}" for note in query.ddl.notes]
            lines += [statement for statement in query.ddl.statements if statement not in seen]
            seen.update(query.ddl.statements)
            blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def ddl_to_json(found: Sequence[QueryDdl]) -> list[dict[str, Any]]:
    """Return all statements of each query; two queries may share statements."""
    return [{"address": str(query.address), "statements": list(query.ddl.statements)} for query in found]


def _line(text: str) -> str:
    """Return a comment's text on one line, because a line end would end the comment."""
    return " ".join(safe(text).split())
