"""completion: the script that makes a shell complete commands, options and addresses."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

from mzplan.cli.context import Invocation, command
from mzplan.host.files import read_regular
from mzplan.model.address import natural
from mzplan.model.diagnostics import ExitCode
from mzplan.model.resources import ENVIRONMENT_VARIABLE
from mzplan.model.words import label_value

VARIABLE = "_MZPLAN_COMPLETE"
_INSTALL = {
    "bash": 'add this line to ~/.bashrc:  eval "$(mzplan completion bash)"',
    "zsh": 'add this line to ~/.zshrc, below compinit:  eval "$(mzplan completion zsh)"',
    "fish": "mzplan completion fish > ~/.config/fish/completions/mzplan.fish",
}
_OWN_STATE = re.compile(rb"^[\"']?(state|environments)[\"']?\s*:", re.MULTILINE)


@command("completion")
@click.argument("shell", type=click.Choice(list(_INSTALL)), required=False)
def command_completion(invocation: Invocation, shell: str | None) -> int:
    """Print the completion script of a shell, and how to install it.

    Without SHELL, of the one that you log in with ($SHELL).
    """
    shell = shell or Path(os.environ.get("SHELL", "")).name
    if shell not in _INSTALL:
        raise click.UsageError(f"Name a shell: mzplan completion {'|'.join(_INSTALL)}.")
    class_ = get_completion_class(shell)
    assert class_ is not None
    # Not `source()`: for bash, that starts one to ask its version.
    made = class_(click.Group("mzplan"), {}, "mzplan", VARIABLE)
    script = (class_.source_template % made.source_vars()).strip()
    if invocation.json:
        invocation.document({"shell": shell, "script": script, "install": _INSTALL[shell]})
    else:
        invocation.out(f"# To install: {_INSTALL[shell]}\n{script}")
    return ExitCode.OK


def complete(cli: click.Command, instruction: str) -> int:
    """Answer the shell. Whatever goes wrong, nothing but completions is printed."""
    try:
        return shell_complete(cli, {"obj": Invocation()}, "mzplan", VARIABLE, instruction)
    except Exception:
        return 1


def addresses(ctx: click.Context, incomplete: str, *, queries_only: bool = False) -> list[CompletionItem]:
    """The committed resources whose address begins so."""
    found = _state(ctx).get("resources", {})
    kinds = ("source.", "sink.") if queries_only else ("connection.", "source.", "sink.")
    return items((a for a in found if a.startswith(kinds)), incomplete)


def connections(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """The names of the committed connections that begin so."""
    found = _state(ctx).get("resources", {})
    return items((a.removeprefix("connection.") for a in found if a.startswith("connection.")), incomplete)


def labels(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """The labels of committed queries, `key=value`, that begin so."""
    found = (one.get("body", {}).get("labels", {}) for one in _state(ctx).get("resources", {}).values())
    return items({f"{key}={label_value(value)}" for one in found for key, value in one.items()}, incomplete)


def instances(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """The committed instances whose name begins so."""
    return items(_state(ctx).get("instances", {}), incomplete)


def environments(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """The declared environments whose name begins so."""
    try:
        from mzplan.config import environment_names

        return items(environment_names(_directory(ctx)), incomplete)
    except Exception:  # a shell has no place for it
        return []


def items(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """Those that begin so."""
    return [CompletionItem(name) for name in sorted(names, key=natural) if name.startswith(incomplete)]


def _state(ctx: click.Context) -> dict[str, Any]:
    """The state file's content, unchecked; {} where there is none. A shell waits for this: where mzplan.yaml
    does not say where the state is, it is not even parsed."""
    try:
        folder = Path(_directory(ctx))
        path = "state"
        if _OWN_STATE.search(read_regular(folder / "mzplan.yaml")):
            from mzplan.config import load_project

            variables = dict(item.split("=", 1) for item in _given(ctx, "var") if "=" in item)
            settings = load_project(folder, variables, _given(ctx, "var_file"), environment=_environment(ctx))
            path = str(settings.state.get("path", path))
        found = json.loads(read_regular(folder / path / "mzplan.state.json"))
        return found if isinstance(found, dict) else {}
    except Exception:  # a shell has no place for it
        return {}


def _given(ctx: click.Context, option: str) -> list[str]:
    """The values of a repeatable option: those before the command, then those after it."""
    before = _given(ctx.parent, option) if ctx.parent is not None else []
    return [*before, *(ctx.params.get(option) or ())]


def _directory(ctx: click.Context) -> str:
    """-C, given after the command or before it."""
    return _last(ctx, "directory") or "."


def _environment(ctx: click.Context) -> str:
    return _last(ctx, "environment") or os.environ.get(ENVIRONMENT_VARIABLE, "")


def _last(ctx: click.Context, option: str) -> str:
    context: click.Context | None = ctx
    while context is not None:
        given = context.params.get(option)
        if given:
            return str(given)
        context = context.parent
    return ""
