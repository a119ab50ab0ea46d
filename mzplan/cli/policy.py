"""--policy and --send-secrets: which secrets may go where, said from outside the project's files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mzplan.cli.context import Invocation
from mzplan.model.diagnostics import error

if TYPE_CHECKING:
    from mzplan.secrets.policy import Guard

policy_option = click.option(
    "--policy",
    metavar="FILE",
    envvar="MZPLAN_POLICY",
    help="Which secrets may go to which hosts, whatever the store or the files say (TOML, docs/security.md); "
    "also as MZPLAN_POLICY.",
)
send_secrets_option = click.option(
    "--send-secrets",
    is_flag=True,
    help="Validating from here, send every secret that the files name to where they say: for files that are "
    "yours, or that you have read. Without it, only where the committed state or --policy sends it.",
)


def chosen_guard(invocation: Invocation, policy: str | None, send_secrets: bool = False) -> Guard | None:
    """What the user lets live validation from here send; None: not said. Raises MzplanError MZ105 for a
    policy that can't be used, and MZ172 for one that the project's files bring."""
    if policy and send_secrets:
        raise click.UsageError(
            "--send-secrets and a policy (--policy, MZPLAN_POLICY) contradict: nothing widens a policy. "
            "Add to it what may go where, or leave it out: --policy ''."
        )
    if send_secrets:
        from mzplan.secrets.command_guards import AsWritten

        return AsWritten()
    if not policy:
        return None
    from mzplan.secrets.policy import read_policy

    if Path(os.path.realpath(policy)).is_relative_to(invocation.folder):
        raise error(
            "MZ172",
            f"{policy} is a file of the project",
            "A policy says where secrets may go, whatever the project's files say: their author must not "
            "write it, too.",
            f"name a file outside of {invocation.folder}: --policy, or the variable MZPLAN_POLICY.",
        )
    return read_policy(policy)
