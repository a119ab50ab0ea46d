"""The `ui` command: pages about the project, for a browser."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from mzplan.cli.context import Invocation, command
from mzplan.features.ui.server import access_for, read_token, serve
from mzplan.host.extras import require_extra
from mzplan.model.diagnostics import ExitCode

if TYPE_CHECKING:
    from mzplan.operations.project import Project

PORT = 8470


@command("ui")
@click.option(
    "--host", default="127.0.0.1", metavar="H", help="The address to listen on (default: this machine only)."
)
@click.option(
    "--port",
    default=PORT,
    metavar="P",
    type=click.IntRange(0, 65535),
    help=f"The port ({PORT}; 0: a free one).",
)
@click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Require the token in this file (or in $MZPLAN_UI_TOKEN). Required if --host isn't this machine.",
)
@click.option(
    "--url",
    metavar="URL",
    help="The pages' public address behind a proxy, such as https://mzplan.example.com.",
)
def command_ui(invocation: Invocation, host: str, port: int, token_file: str | None, url: str | None) -> int:
    """Serve read-only pages about the project."""
    require_extra("ui")

    project = invocation.project()
    access = access_for(host, read_token(token_file), url)

    def open_project(environment: str) -> Project:
        return replace(invocation, environment=environment).project() if environment else project

    def show_address(address: str, port: int) -> None:
        if invocation.json:
            invocation.document({"url": url or address, "port": port, "token": bool(access.token)})
            return
        invocation.out(f"{project.settings.title} is shown at {url or address} until Ctrl-C.")
        if access.token and not access.is_secure:
            invocation.note(
                "Put a TLS proxy in front of it that passes on the header Host and hides this port from "
                "others; give its address with --url. Otherwise, others can read the token on its way."
            )

    try:
        serve(open_project, host, port, access, show_address)
    except KeyboardInterrupt:  # the usual way to stop it
        invocation.end_progress()
    return ExitCode.OK
