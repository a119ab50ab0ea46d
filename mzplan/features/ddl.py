"""The `ddl` command: the tables and grants that sources and sinks need on their servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import click

from mzplan.cli.arguments import QUERY
from mzplan.cli.context import Invocation, command
from mzplan.connectors.api.connector import Ddl
from mzplan.connectors.unresolved import ddl_of
from mzplan.model.address import Address, natural
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError, error, usage_error
from mzplan.model.resources import inlined_view
from mzplan.model.words import did_you_mean
from mzplan.operations.local_checks import validate
from mzplan.operations.project import Project, Reporter
from mzplan.plan.commit import wanted_state
from mzplan.render.text import safe
from mzplan.schema.description import describe


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryDdl:
    """The statements of one source or sink."""

    address: Address
    ddl: Ddl


def make_ddl(project: Project, reporter: Reporter, address: Address | None = None) -> tuple[QueryDdl, ...]:
    """Return the DDL of all queries that need some (or of one), sources first, then by address.

    Reads no store, server or secret. Raises MzplanError with every problem; MZ070 for an `address` that isn't
    declared or needs nothing.
    """
    configuration = validate(project, reporter)
    resources = {a: wanted_state(r, None) for a, r in configuration.resources.items()}
    if address is not None and address not in resources:
        if (inlined := inlined_view(address, configuration.resources)) is not None:
            raise usage_error(f"{address} has no query", *inlined)
        raise error(
            "MZ070.no-no-file-project",
            resource=address,
            did_you_mean=did_you_mean(str(address), sorted(map(str, resources))),
        )
    chosen = (
        [address] if address is not None else sorted(resources, key=lambda a: (a.writes_target, natural(a)))
    )
    ddls: list[QueryDdl] = []
    problems: list[Diagnostic] = []
    for query in chosen:
        if query.is_connection:
            continue
        try:
            ddl = ddl_of(describe(resources[query], resources), project.settings.directory)
        except MzplanError as problem:
            problems += (replace(d, address=d.address or query) for d in problem.diagnostics)
            continue
        if ddl is not None:
            ddls.append(QueryDdl(address=query, ddl=ddl))
    if problems:
        raise MzplanError(problems)
    if address is not None and not ddls:
        raise _nothing_needed(address, resources[address].type)
    return tuple(ddls)


def _nothing_needed(address: Address, type_: str) -> MzplanError:
    """Return MZ070 for a query that was asked for by name."""
    return error("MZ070.needs-no", address=address, kind_=address.kind, type=type_)


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
