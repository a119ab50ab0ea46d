"""logs: what the runners of this machine have logged."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import click

from mzplan.cli.arguments import QUERY
from mzplan.cli.context import Invocation, command
from mzplan.model.address import Address
from mzplan.model.diagnostics import ExitCode
from mzplan.model.durations import DURATION_FORM, seconds
from mzplan.render.text import safe


class _SinceType(click.ParamType[float]):
    """`10m` (that long ago), or a time such as `2026-01-31T10:00`: seconds since the epoch."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float | int):
            return float(value)
        if DURATION_FORM.fullmatch(str(value)):
            return time.time() - seconds(str(value))
        try:
            return datetime.fromisoformat(str(value)).timestamp()
        except (ValueError, OverflowError, OSError):
            self.fail(f"{value!r} is neither a duration (10m) nor a time (2026-01-31T10:00).", param, ctx)


@command("logs")
@click.argument("address", required=False, type=QUERY)
@click.option("--since", metavar="T", type=_SinceType(), help="Not before: 10m ago, or 2026-01-31T10:00.")
def command_logs(invocation: Invocation, address: Address | None, since: float | None) -> int:
    """Show what the runners of this machine have logged, of all queries or of one."""
    from mzplan.operations.logs import read_logs

    found = read_logs(invocation.project(), address, since)
    if invocation.json:
        invocation.document(
            {
                "entries": [
                    {
                        "instance": one.instance,
                        "time": one.at,
                        "level": one.level,
                        "logger": one.logger,
                        "message": one.message,
                        "text": one.text,
                    }
                    for one in found
                ]
            }
        )
        return ExitCode.OK
    for one in found:
        for line in one.text.split("\n"):
            invocation.out(safe(line) or " ")
        if invocation.output.reader_gone:
            break
    return ExitCode.OK
