"""The statements of ddl, as one script for psql and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mzplan.features.ddl.ddl import QueryDdl
from mzplan.render.text import safe


def render_ddl(found: Sequence[QueryDdl]) -> str:
    """A script: each statement once for a database, under the first query that needs it. One of a single
    database runs wherever psql is connected; one of several says where to go."""
    if not found:
        return "-- Nothing of this project needs a table or a grant on a server."
    places = list(dict.fromkeys(query.ddl.enter for query in found))
    blocks: list[str] = []
    for place in places:
        queries = [query for query in found if query.ddl.enter == place]
        if len(places) > 1:
            blocks.append(place)
        seen: set[str] = set()
        for query in queries:
            lines = [f"-- {query.address}: {_line(query.ddl.place)}"]
            lines += [f"-- {_line(note)}" for note in query.ddl.notes]
            lines += [statement for statement in query.ddl.statements if statement not in seen]
            seen.update(query.ddl.statements)
            blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def ddl_to_json(found: Sequence[QueryDdl]) -> list[dict[str, Any]]:
    """All statements of each query: those of two may be the same."""
    return [{"address": str(query.address), "statements": list(query.ddl.statements)} for query in found]


def _line(text: str) -> str:
    """Of a comment, which the end of a line ends."""
    return " ".join(safe(text).split())
