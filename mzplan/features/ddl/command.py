"""ddl: the tables and grants that sources and sinks need on their servers."""

from __future__ import annotations

import click

from mzplan.cli.arguments import QUERY
from mzplan.cli.context import Invocation, command
from mzplan.features.ddl.ddl import make_ddl
from mzplan.features.ddl.ddl_text import ddl_to_json, render_ddl
from mzplan.model.address import Address
from mzplan.model.diagnostics import ExitCode


@command("ddl")
@click.argument("address", required=False, type=QUERY)
def command_ddl(invocation: Invocation, address: Address | None) -> int:
    """Print tables, keys and grants for PostgreSQL, as a script for psql.

    From the files alone, of all sources and sinks or of one; it may be run again. Roles, and tables that a
    source reads, must be there.
    """
    queries = make_ddl(invocation.project(whole=True), invocation.progress, address)
    if invocation.json:
        invocation.document(ddl_to_json(queries))
    else:
        invocation.out(render_ddl(queries))
    return ExitCode.OK
