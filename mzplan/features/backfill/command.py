"""The `backfill` command: reread a range of a source's upstream."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from mzplan.cli.apply import carry_out_plan
from mzplan.cli.arguments import QUERY, TIME
from mzplan.cli.context import Invocation, command
from mzplan.cli.options import auto_option, live_option, message_option, wait_option
from mzplan.features.backfill.backfill_plans import plan_backfill
from mzplan.model.address import Address
from mzplan.model.times import instant_text
from mzplan.plan.tasks import plan_without_tasks

if TYPE_CHECKING:
    from mzplan.model.plan import Plan
    from mzplan.model.state import State
    from mzplan.operations.project import Project


@command("backfill", changing=True)
@click.argument("address", type=QUERY)
@click.option(
    "--from", "start", type=TIME, metavar="T", help="The start of the range, such as 2026-11-01T08:00:00Z."
)
@click.option("--to", "end", type=TIME, metavar="T", help="The end of the range, exclusive.")
@click.option("--cancel", is_flag=True, help="Cancel the tasks that aren't done.")
@auto_option
@live_option
@message_option
@wait_option
def command_backfill(
    invocation: Invocation,
    address: Address,
    start: int | None,
    end: int | None,
    cancel: bool,
    auto_approve: bool,
    live: bool | None,
    message: str | None,
    wait: float,
) -> int:
    """Reread a time range of a source's upstream.

    The collection gets the rows as one new step, and its sinks also write them.
    """
    if cancel and (start is not None or end is not None):
        raise click.UsageError("--cancel can't be combined with a range.")
    if not cancel and (start is None or end is None):
        raise click.UsageError("A range needs both --from and --to.")

    def plan(project: Project, state: State) -> Plan:
        statuses = project.store.read_statuses()
        if start is None or end is None:
            return plan_without_tasks(state, address, "backfill", statuses)
        return plan_backfill(state, address, start, end, int(time.time() * 1000), statuses)

    why = message
    if why is None and start is not None and end is not None:
        why = f"Backfill of {address} from {instant_text(start)} to {instant_text(end)}"
    why = why if why is not None else f"Cancelled the backfill of {address}"
    # A cancellation must not wait for the servers that may be the cause of it.
    live = False if cancel else live
    return carry_out_plan(invocation, "backfill", plan, auto_approve, wait, why, live)
