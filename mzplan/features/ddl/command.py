"""The command ddl: the tables and grants that sources and sinks need on their servers."""

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
    """Print PostgreSQL tables, keys and grants as a psql script.

    Uses the files only, for all sources and sinks or for one. You can run the script again. Roles and the
    tables that a source reads must already exist.
    """
    queries = make_ddl(invocation.project(whole=True), invocation.progress, address)
    if invocation.json:
        invocation.document(ddl_to_json(queries))
    else:
        invocation.out(render_ddl(queries))
    return ExitCode.OK
