"""completion: the script that makes a shell complete commands, options and addresses."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class, shell_complete

from mzplan.cli.context import Invocation, command
from mzplan.model.diagnostics import ExitCode

VARIABLE = "_MZPLAN_COMPLETE"
_INSTALL = {
    "bash": 'add this line to ~/.bashrc:  eval "$(mzplan completion bash)"',
    "zsh": 'add this line to ~/.zshrc, below compinit:  eval "$(mzplan completion zsh)"',
    "fish": "mzplan completion fish > ~/.config/fish/completions/mzplan.fish",
}


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
