"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from mzplan.cli.arguments import ADDRESS, DURATION
from mzplan.model.state import DEFAULT_WAIT

wait_option = click.option(
    "--wait",
    type=DURATION,
    default="5m",
    show_default=True,
    help="How long to wait for the committed change to converge.",
)
target_option = click.option(
    "--target",
    "targets",
    type=ADDRESS,
    multiple=True,
    help="Limit to this resource and its dependents; repeatable.",
)
auto_option = click.option("--auto-approve", is_flag=True, help="Don't ask for confirmation.")
message_option = click.option(
    "-m",
    "--message",
    metavar="TEXT",
    help="The reason to record in `mzplan history` (default: the git commit's subject, or the command).",
)
live_option = click.option(
    "--live/--no-live",
    default=None,
    help="Validate against the servers (default: when a runner is available).",
)


def allow_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --allow-replace and --allow-loss."""
    loss = click.option(
        "--allow-loss", is_flag=True, help="Allow new generations that can't reread all their rows."
    )
    replace = click.option(
        "--allow-replace", is_flag=True, help="Allow new generations, which reread everything."
    )
    return replace(loss(function))


def canary_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --canary and --canary-wait as one argument `canary`: its seconds; None without --canary."""

    @click.option(
        "--canary",
        is_flag=True,
        help="Restart one query of each connection first, and the other queries once it makes progress.",
    )
    @click.option(
        "--canary-wait",
        type=DURATION,
        metavar="DURATION",
        help=f"How long --canary waits for that progress (default: {DEFAULT_WAIT:g}s).",
    )
    @wraps(function)
    def called(*arguments: Any, canary: bool, canary_wait: float | None, **given: Any) -> Any:
        if canary_wait is not None and not canary:
            raise click.UsageError("--canary-wait requires --canary.")
        seconds = DEFAULT_WAIT if canary_wait is None else canary_wait
        return function(*arguments, canary=seconds if canary else None, **given)

    return called
