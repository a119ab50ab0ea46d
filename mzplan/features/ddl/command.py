"""The `ddl` command: the tables and grants that sources and sinks need on their servers."""

from __future__ import annotations

from collections.abc import Sequence

import click

from mzplan.cli.arguments import QUERY
from mzplan.cli.context import Invocation, command
from mzplan.features.ddl.ddl import QueryDdl, make_ddl
from mzplan.model.address import Address
from mzplan.model.diagnostics import ExitCode
from mzplan.render.text import safe


@command("ddl")
@click.argument("address", required=False, type=QUERY)
def command_ddl(invocation: Invocation, address: Address | None) -> int:
    """Print PostgreSQL tables, keys and grants as a psql script.

    Reads only the files, for all sources and sinks or for one. You can run the script repeatedly. Roles and
    the tables that a source reads must already exist.
    """
    queries = make_ddl(invocation.project(whole=True), invocation.progress, address)
    if invocation.json:
        # List all statements of each query, even if another query needs the same statement.
        invocation.document(
            [{"address": str(query.address), "statements": list(query.ddl.statements)} for query in queries]
        )
    else:
        invocation.out(render_ddl(queries))
    return ExitCode.OK


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


def _line(text: str) -> str:
    """Return a comment's text on one line, because a line end would end the comment."""
    return " ".join(safe(text).split())
