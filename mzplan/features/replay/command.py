"""The `replay` command: write a sink's steps, or read a source's dead letters, again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mzplan.cli.apply import carry_out_plan
from mzplan.cli.arguments import QUERY, STEPS
from mzplan.cli.context import Invocation, command
from mzplan.cli.options import auto_option, live_option, message_option, wait_option
from mzplan.features.replay.replay_plans import plan_letters, plan_replay
from mzplan.model.address import Address
from mzplan.model.stored import MAX_NUMBER
from mzplan.plan.tasks import plan_without_tasks

if TYPE_CHECKING:
    from mzplan.model.plan import Plan
    from mzplan.model.state import State
    from mzplan.operations.project import Project


@command("replay", changing=True)
@click.argument("address", type=QUERY)
@click.option(
    "--steps", type=STEPS, metavar="RANGE", help="Steps of the sink: N, N..M or N.. (see `mzplan steps`)."
)
@click.option(
    "--missing",
    is_flag=True,
    help="Only write rows that the target is missing, as found by `verify --content`.",
)
@click.option("--dead-letters", is_flag=True, help="Reread the source's dead letters.")
@click.option(
    "--where",
    metavar="EXPR",
    help="Only read dead letters that meet this SQL condition over their table's columns.",
)
@click.option("--cancel", is_flag=True, help="Cancel the tasks that aren't done.")
@auto_option
@live_option
@message_option
@wait_option
def command_replay(
    invocation: Invocation,
    address: Address,
    steps: tuple[int, int | None] | None,
    missing: bool,
    dead_letters: bool,
    where: str | None,
    cancel: bool,
    auto_approve: bool,
    live: bool | None,
    message: str | None,
    wait: float,
) -> int:
    """Write steps to a target again, or reread dead letters.

    For a sink with mode: upsert, mzplan writes all rows of the chosen steps to the target again. A sink that
    appends needs --missing, which writes exactly the rows that `mzplan verify SINK --content` reports as
    missing. Without --steps, --missing covers all steps.

    With --dead-letters, every record that now fits the source's columns is added as a row exactly once and
    removed from the dead-letter table. All other records stay there.
    """
    has_steps = missing or steps is not None
    if cancel and (has_steps or dead_letters or where is not None):
        raise click.UsageError("--cancel can't be combined with other choices.")
    if dead_letters and has_steps:
        raise click.UsageError("--dead-letters is for sources; --steps and --missing are for sinks.")
    if where is not None and not dead_letters:
        raise click.UsageError("--where requires --dead-letters.")
    if not (cancel or has_steps or dead_letters):
        raise click.UsageError("Give --steps, --missing, or both; for a source, --dead-letters.")
    if steps is not None and max(steps[0], steps[1] or 0) > MAX_NUMBER:
        raise click.UsageError("No query has so many steps.")

    def plan(project: Project, state: State) -> Plan:
        statuses = project.store.read_statuses()
        if cancel:
            return plan_without_tasks(state, address, "replay", statuses)
        if dead_letters:
            return plan_letters(state, address, where, statuses)
        return plan_replay(state, address, steps, missing=missing, statuses=statuses)

    replayed = f"the dead letters of {address}" if dead_letters else str(address)
    why = f"Cancelled the replay of {address}" if cancel else f"Replay of {replayed}"
    # A cancellation must not wait for the servers that may be the cause of it.
    live = False if cancel else live
    return carry_out_plan(
        invocation, "replay", plan, auto_approve, wait, message if message is not None else why, live
    )
