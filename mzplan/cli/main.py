"""`mzplan`: the command group. How a command line ends: mzplan.cli.exit."""

from __future__ import annotations

import importlib
import os
import sys
from typing import NoReturn

import click

from mzplan import __version__
from mzplan.cli.context import COMPLETE, Invocation, global_options
from mzplan.cli.exit import ended
from mzplan.model.words import nearest

# command → module; the function in it is `command_<name>` with - as _.
COMMANDS: dict[str, str] = {
    "init": "cli.init",
    "validate": "cli.init",
    "schema": "cli.editors",
    "plan": "cli.plan",
    "ddl": "features.ddl.command",
    "graph": "cli.plan",
    "show": "cli.plan",
    "drift": "cli.plan",
    "apply": "cli.apply",
    "alter": "features.alter.command",
    "destroy": "cli.apply",
    "pause": "cli.apply",
    "resume": "cli.apply",
    "restart": "cli.apply",
    "backfill": "features.backfill.command",
    "replay": "features.replay.command",
    "status": "cli.plan",
    "history": "features.history.command",
    "ui": "features.ui.command",
    "logs": "features.logs.command",
    "why": "features.events.command",
    "events": "features.events.command",
    "append": "features.append.command",
    "snapshot": "features.snapshot.command",
    "steps": "features.steps.command",
    "verify": "features.steps.command",
    "expire": "features.steps.command",
    "run": "cli.run",
    "up": "cli.run",
    "down": "cli.run",
    "state": "features.state.command",
    "import": "features.state.command",
    "completion": "cli.editors",
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called (or listed by `--help`)."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        module = COMMANDS.get(name)
        if module is None:
            return None
        loaded = importlib.import_module(f"mzplan.{module}")
        command = getattr(loaded, f"command_{name.replace('-', '_')}")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            near = nearest(args[0], COMMANDS)
            hint = f" Did you mean {near!r}?" if near else ""
            raise click.UsageError(f"There is no command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    invocation = ctx.ensure_object(Invocation)
    invocation.result({"version": __version__}, f"mzplan {__version__}")
    ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    no_args_is_help=False,
    invoke_without_command=True,
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="The version."
)
@global_options
def cli() -> int | None:
    """Terraform for Spark streaming: plan and apply changes of connections, sources, views and sinks."""
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        return None
    if context.ensure_object(Invocation).json:
        raise click.UsageError("A command is missing.", context)
    context.ensure_object(Invocation).note(context.get_help())
    return 64


def complete(group: click.Command, instruction: str) -> int:
    """Answer the shell. Whatever goes wrong, nothing but completions is printed."""
    from click.shell_completion import shell_complete

    try:
        return shell_complete(group, {"obj": Invocation()}, "mzplan", COMPLETE, instruction)
    except Exception:
        return 1


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command line and exit with a code of interface.md. Never shows a traceback for what a user
    wrote or a server did."""
    if COMPLETE in os.environ:
        sys.exit(complete(cli, os.environ[COMPLETE]))
    argv = list(sys.argv[1:] if arguments is None else arguments)
    options = argv[: argv.index("--")] if "--" in argv else argv
    # Known before anything is parsed, so that even a command line that can't be answers in JSON.
    invocation = Invocation(json="--json" in options)
    invocation.output.no_color = "--no-color" in options

    def run() -> int | None:
        with cli.make_context("mzplan", argv, obj=invocation) as context:
            result = cli.invoke(context)
        return result if isinstance(result, int) else None

    sys.exit(ended(invocation, run))
