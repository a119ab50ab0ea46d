"""replay: steps of a sink once more into its target, or dead letters of a source into its collection."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mzplan.cli.apply import carry_out_plan
from mzplan.cli.arguments import QUERY, STEPS
from mzplan.cli.context import Invocation, command
from mzplan.cli.options import auto_option, live_option, message_option, wait_option
from mzplan.features.replay.replay_plans import plan_letters, plan_replay, plan_without_replays
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
@click.option("--dead-letters", is_flag=True, help="The malformed records that the source has kept aside.")
@click.option("--where", metavar="EXPR", help="Only those: a condition over the columns of their table.")
@click.option("--cancel", is_flag=True, help="Give up what was asked for and is not done.")
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
    """Write steps of a sink into its target once more, from the collection of its source; or read dead
    letters of a source once more.

    With mode: upsert each row that these steps have left in the target is written again. A sink that appends
    needs --missing, which writes exactly what `mzplan verify SINK --content` finds missing; without --steps,
    of all steps.

    With --dead-letters each record that fits the columns of the source by now becomes a row, once, and is
    taken out of the table of letters; the others stay there.
    """
    of_sink = missing or steps is not None
    if cancel and (of_sink or dead_letters or where is not None):
        raise click.UsageError("--cancel takes no other choice.")
    if dead_letters and of_sink:
        raise click.UsageError("--dead-letters are a source's, --steps and --missing a sink's.")
    if where is not None and not dead_letters:
        raise click.UsageError("--where goes with --dead-letters.")
    if not (cancel or of_sink or dead_letters):
        raise click.UsageError("Which steps? Give --steps, --missing, or both; of a source --dead-letters.")
    if steps is not None and max(steps[0], steps[1] or 0) > MOST:
        raise click.UsageError("No query has so many steps.")

    def planned(project: Project, state: State) -> Plan:
        statuses = project.store.read_statuses()
        if cancel:
            return plan_without_replays(state, address, statuses)
        if dead_letters:
            return plan_letters(state, address, where, statuses)
        return plan_replay(state, address, steps, missing=missing, statuses=statuses)

    replayed = f"the dead letters of {address}" if dead_letters else str(address)
    why = f"Gave up the replay of {address}" if cancel else f"Replay of {replayed}"
    # What gives up must not wait for servers that what is given up may be failing of.
    live = False if cancel else live
    return carry_out_plan(
        invocation, "replay", planned, auto_approve, wait, message if message is not None else why, live
    )
