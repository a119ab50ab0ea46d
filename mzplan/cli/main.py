"""`mzplan`: the command group. See mzplan.cli.exit for the end of a command line."""

from __future__ import annotations

import importlib
import os
import sys
from typing import NoReturn

import click
from click.shell_completion import CompletionItem, shell_complete

from mzplan import __version__
from mzplan.cli.context import COMPLETE, Invocation, global_options
from mzplan.cli.exit import run_to_exit
from mzplan.model.words import nearest

# Each command's module, which defines `command_<name>` (with _ for -), and the first sentence of its help.
# Listing the commands doesn't import them.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("cli.init", "Create a project, empty or from an example."),
    "validate": ("cli.init", "Check all files; with --live, also contact the servers."),
    "schema": ("cli.editors", "Print a JSON Schema, list all schemas, or write them for editors."),
    "test": ("features.test.command", "Run the project's tests on Spark, without servers."),
    "preview": (
        "features.preview.command",
        "Show the rows that an edited view or sink gives over what its inputs hold.",
    ),
    "diff": (
        "features.diff.command",
        "Compare the rows of a replaced view or source with those of its former generation.",
    ),
    "cut-over": (
        "features.cut_over",
        "Put a new generation into service that runs beside the former one, or give it up.",
    ),
    "plan": ("cli.plan", "Show what apply would change and restart, and why."),
    "ddl": ("features.ddl", "Print PostgreSQL tables, keys and grants as a psql script."),
    "generate": ("features.generate", "Print YAML for the topics or tables that are there."),
    "graph": ("cli.show", "Draw the dependencies, or what a change would affect."),
    "show": ("cli.show", "Show a committed resource, a saved plan, or the state."),
    "drift": ("cli.status", "Report where reality differs from the state."),
    "apply": ("cli.apply", "Commit the changes and restart only the affected queries."),
    "alter": ("features.alter.command", "Change a connection, or which connection a query uses."),
    "destroy": ("cli.apply", "Stop the queries and remove the resources from the state."),
    "pause": ("cli.apply", "Stop queries and keep their checkpoints until you resume."),
    "resume": ("cli.apply", "Resume paused queries from their checkpoints."),
    "restart": ("cli.apply", "Restart queries from their checkpoints."),
    "backfill": ("features.backfill", "Reread a time range of a source's upstream."),
    "replay": ("features.replay", "Write steps to a target again, or reread dead letters."),
    "recompute": ("features.recompute", "Compute a part of a view's rows again."),
    "erase": ("features.erase.command", "Erase rows of a source, and what follows from them."),
    "status": ("cli.status", "Show each query: condition, rows, lag, last error."),
    "history": ("features.history", "List the commits: who, what, when, why, and the outcome."),
    "ui": ("features.ui.command", "Serve read-only pages about the project."),
    "logs": ("features.logs", "Show the logs of the runners on this machine."),
    "why": (
        "features.events",
        "Show why a query last started or stopped, and what keeps it from delivering rows now.",
    ),
    "events": ("features.events", "Show past events of queries and their causes, oldest first."),
    "append": ("features.append", "Append rows to a local source, as one durable step."),
    "snapshot": ("features.snapshot.command", "Print the rows of a collection as of a step."),
    "steps": ("features.steps.command", "List the durable steps of queries."),
    "verify": ("features.steps.command", "Reread steps and compare them with what was recorded."),
    "expire": ("features.steps.command", "Declare that steps before STEP are no longer needed."),
    "run": ("cli.run", "Run an instance's queries as the committed state says."),
    "up": ("cli.run", "Start this machine's runner in the background."),
    "down": ("cli.run", "Stop this machine's runner; checkpoints stay."),
    "state": ("features.state.command", "Inspect and edit the state."),
    "import": ("features.state.command", "Adopt a stopped query's checkpoint and table."),
    "completion": ("cli.editors", "Print a completion script and how to install it."),
}


class LazyGroup(click.Group):
    """A group that imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        loaded = importlib.import_module(f"mzplan.{COMMANDS[name][0]}")
        command = getattr(loaded, f"command_{name.replace('-', '_')}")
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        limit = formatter.width - 6 - max(map(len, COMMANDS))
        with formatter.section("Commands"):
            formatter.write_dl([(name, _listed(name).get_short_help_str(limit)) for name in COMMANDS])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in COMMANDS if name.startswith(incomplete)]
        items = [CompletionItem(name, help=_listed(name).get_short_help_str()) for name in names]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            near = nearest(args[0], COMMANDS)
            hint = f" Did you mean {near!r}?" if near else ""
            raise click.UsageError(f"There is no command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


def _listed(name: str) -> click.Command:
    """Return a command for a list of commands."""
    return click.Command(name, help=COMMANDS[name][1])


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
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Print the version."
)
@global_options
def cli() -> int | None:
    """Terraform for Spark streaming: plan and apply changes to connections, sources, views and sinks."""
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        return None
    if context.ensure_object(Invocation).json:
        raise click.UsageError("A command is missing.", context)
    context.ensure_object(Invocation).note(context.get_help())
    return 64


def complete(group: click.Command, instruction: str) -> int:
    """Answer the shell's request. Prints nothing but completions, whatever fails."""
    try:
        return shell_complete(group, {"obj": Invocation()}, "mzplan", COMPLETE, instruction)
    except Exception:
        return 1


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command line and exit with a documented code.

    Never shows a traceback for a user's mistake or a server's failure.
    """
    if COMPLETE in os.environ:
        sys.exit(complete(cli, os.environ[COMPLETE]))
    argv = list(sys.argv[1:] if arguments is None else arguments)
    options = argv[: argv.index("--")] if "--" in argv else argv
    # Read before parsing, so that even an invalid command line gets its answer in JSON.
    invocation = Invocation(json="--json" in options)
    invocation.output.no_color = "--no-color" in options

    def run() -> int | None:
        with cli.make_context("mzplan", argv, obj=invocation) as context:
            result = cli.invoke(context)
        return result if isinstance(result, int) else None

    sys.exit(run_to_exit(invocation, run))
