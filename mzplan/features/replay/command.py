"""replay: steps of a sink once more into its target."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mzplan.cli.apply import auto_option, carry_out_plan, message_option, wait_option
from mzplan.cli.arguments import QUERY, STEPS
from mzplan.cli.context import Invocation, command
from mzplan.model.address import Address
from mzplan.model.stored import MOST

if TYPE_CHECKING:
    from mzplan.model.plan import Plan
    from mzplan.model.state import State
    from mzplan.operations.project import Project


@command("replay", changing=True)
@click.argument("address", type=QUERY)
@click.option(
    "--steps", type=STEPS, metavar="RANGE", help="Steps of the sink: N, N..M or N.. (mzplan steps)."
)
@click.option(
    "--missing", is_flag=True, help="Only rows that the target lacks, as `verify --content` finds them."
)
@click.option("--cancel", is_flag=True, help="Give up what was asked for and is not done.")
@auto_option
@message_option
@wait_option
def command_replay(
    invocation: Invocation,
    address: Address,
    steps: tuple[int, int | None] | None,
    missing: bool,
    cancel: bool,
    auto_approve: bool,
    message: str | None,
    wait: float,
) -> int:
    """Write steps of a sink into its target once more, from the collection of its source.

    With mode: upsert each row that these steps have left in the target is written again. A sink that appends
    needs --missing, which writes exactly what `mzplan verify SINK --content` finds missing; without --steps,
    of all steps.
    """
    from mzplan.features.replay.replay_plans import plan_replay, plan_without_replays

    if cancel and (missing or steps is not None):
        raise click.UsageError("--cancel takes neither --steps nor --missing.")
    if not (cancel or missing or steps is not None):
        raise click.UsageError("Which steps? Give --steps, --missing, or both.")
    if steps is not None and max(steps[0], steps[1] or 0) > MOST:
        raise click.UsageError("No query has so many steps.")

    def planned(project: Project, state: State) -> Plan:
        statuses = project.store.read_statuses()
        if cancel:
            return plan_without_replays(state, address, statuses)
        return plan_replay(state, address, steps, missing=missing, statuses=statuses)

    why = f"Gave up the replay of {address}" if cancel else f"Replay of {address}"
    # What gives up must not wait for servers that what is given up may be failing of.
    live = False if cancel else None
    return carry_out_plan(
        invocation, "replay", planned, auto_approve, wait, message if message is not None else why, live
    )
