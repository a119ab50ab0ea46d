"""`mzplan`: the command group, and the one place where errors become exit codes."""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any, NoReturn

import click

from mzplan import __version__
from mzplan.cli.context import Invocation, global_options
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError

# command → module; the function in it is `command_<name>` with - as _.
COMMANDS: dict[str, str] = {
    "init": "project",
    "validate": "project",
    "schema": "project",
    "plan": "planning",
    "graph": "planning",
    "show": "planning",
    "drift": "planning",
    "apply": "applying",
    "destroy": "applying",
    "pause": "applying",
    "resume": "applying",
    "restart": "applying",
    "status": "watching",
    "run": "running",
    "up": "running",
    "down": "running",
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called (or listed by `--help`)."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        module = COMMANDS.get(name)
        if module is None:
            return None
        loaded = importlib.import_module(f"mzplan.cli.{module}")
        command = getattr(loaded, f"command_{name.replace('-', '_')}")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"There is no command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(__version__, prog_name="mzplan")
@global_options
def cli() -> None:
    """Terraform for Spark streaming: plan and apply changes of connections, sources and sinks."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command line and exit with a code of interface.md. Never shows a traceback for what a user
    wrote or a server did."""
    invocation = Invocation()
    argv = list(sys.argv[1:] if arguments is None else arguments)
    # Known before anything is parsed, so that even an unparsable command line answers in JSON.
    invocation.json = "--json" in argv
    code: int = ExitCode.OK
    try:
        result = cli.main(argv, prog_name="mzplan", standalone_mode=False, obj=invocation)
        code = int(result) if isinstance(result, int) else ExitCode.OK
    except MzplanError as problem:
        invocation.show(problem.diagnostics)
        code = problem.exit_code
    except click.UsageError as problem:
        invocation.show([_usage(problem)])
        code = ExitCode.USAGE
    except click.exceptions.Abort:
        click.echo("\nAborted: nothing was changed.", err=True)
        code = 130
    except click.ClickException as problem:
        invocation.show([Diagnostic(code="MZ070", summary=problem.format_message())])
        code = ExitCode.ERROR
    except BrokenPipeError:
        # `mzplan plan | head`: the reader has had enough.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
        code = ExitCode.OK
    except RecursionError:
        invocation.show([Diagnostic(code="MZ007", summary="The input is nested too deeply to be understood")])
        code = ExitCode.ERROR
    except OSError as problem:
        where = f" ({problem.filename})" if problem.filename else ""
        invocation.show([Diagnostic(code="MZ035", summary=f"{problem.strerror or problem}{where}")])
        code = ExitCode.ERROR
    sys.exit(code)


def _usage(problem: click.UsageError) -> Diagnostic:
    command = problem.ctx.command_path if problem.ctx else "mzplan"
    return Diagnostic(
        code="MZ070", summary=problem.format_message(), hint=f"`{command} --help` shows how it is used."
    )


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))
