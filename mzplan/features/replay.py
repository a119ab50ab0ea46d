"""The `replay` command: write a sink's steps, or read a source's dead letters, again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from mzplan.cli.apply import carry_out_plan
from mzplan.cli.arguments import QUERY, STEPS
from mzplan.cli.context import Invocation, command
from mzplan.cli.options import auto_option, live_option, message_option, wait_option
from mzplan.connectors.api.tasks import ReplayedSteps, ensure_letters, letters_refused
from mzplan.connectors.catalogue import find_connector
from mzplan.connectors.formats.dead_letters import COLUMNS
from mzplan.model.address import Address
from mzplan.model.codec import encode
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError, error
from mzplan.model.observed import Status
from mzplan.model.plan import Plan
from mzplan.model.state import ResourceState, State, committed_record
from mzplan.model.stored import MAX_NUMBER
from mzplan.plan.tasks import overwriting_sinks, plan_task, plan_without_tasks, sinks_by_mode
from mzplan.schema.columns import parse_columns
from mzplan.schema.sql.expressions import parse_where

if TYPE_CHECKING:
    from mzplan.operations.project import Project

Range = tuple[int, int | None]
"""The first and last step of a range, both included; None: up to the newest."""
_NO_STATUS: Mapping[str, Status] = {}


def plan_replay(
    state: State,
    address: Address,
    steps: Range | None,
    *,
    missing: bool,
    statuses: Mapping[str, Status] = _NO_STATUS,
) -> Plan:
    """Return the plan that writes steps of a sink to its target again.

    If `steps` is None, the plan covers all steps. With `missing`, the replay writes only rows that are
    missing in the target. The plan restarts the query. Raises MzplanError if the replay is impossible or
    would do damage: MZ273, MZ275.
    """
    before = committed_record(state, address)
    _ensure_able(before, missing=missing)
    first, last = steps or (0, None)
    replayed = ReplayedSteps(first=first, last=last, missing=missing)
    return plan_task(state, before, "replay", f"replay of {replayed}", encode(replayed), statuses)


def plan_letters(
    state: State, address: Address, where: str | None, statuses: Mapping[str, Status] = _NO_STATUS
) -> Plan:
    """Return the plan that reads dead letters of a source again, with the source's current description.

    `where`: a condition that selects the dead letters; None for all. The plan restarts the query. Raises
    MzplanError if the replay is impossible or would do damage: MZ273, MZ275.
    """
    before = committed_record(state, address)
    if not address.reads_upstream:
        hint = f"name its source: {next(iter(before.reads.values()))}"
        if address.writes_collection:
            hint = f"compute all its rows again: mzplan apply --replace {address} --allow-replace"
        raise letters_refused(address, "Only a source has records that can be reread.", hint)
    ensure_letters(address, before.type, before.body)
    if before.paused:
        why = "It is paused, so it can't read them now."
        raise letters_refused(address, why, f"mzplan resume {address}, then run this command again.")
    if where is not None:
        _ensure_condition(address, where)
    title = f"replay of its dead letters{f' where {where}' if where else ''}"
    _, upserting = sinks_by_mode(state, address)
    notices: tuple[Diagnostic, ...] = ()
    if upserting:
        hint = "exclude the dead letters of keys that have newer rows: --where SQL."
        notices = (overwriting_sinks(address, upserting, "dead letters", hint),)
    return plan_task(state, before, "dead-letters", title, {"where": where}, statuses, notices)


def _ensure_condition(address: Address, where: str) -> None:
    """Raise MzplanError MZ273 for anything but a condition over a dead letter's columns."""
    parsed, names = parse_where(where), [column.name for column in parse_columns(COLUMNS)]
    unknown = [name for name, _ in parsed.columns if name.lower() not in names]
    if parsed.problem:
        why = f"In --where, at {where[parsed.offset :][:20]!r}: {parsed.problem}."
    elif unknown:
        why = f"--where uses {unknown[0]}, which isn't a column of dead letters."
    else:
        return
    problem = letters_refused(address, why, f"write a condition over {', '.join(names)}.")
    raise MzplanError(problem.diagnostics, ExitCode.USAGE)


def _ensure_able(record: ResourceState, *, missing: bool) -> None:
    address = record.address
    if not address.writes_target:
        why = "Only a sink has a target to write steps to."
        hint = "name a sink; for a source, use mzplan backfill or "
        raise _unable(address, why, f"{hint}--dead-letters.")
    connector = find_connector(record.type)
    if connector is None or not connector.replays:
        why = f"The target of a sink of type {record.type} can't be corrected row by row."
        hint = f"write all rows again: mzplan apply --replace {address} --allow-replace"
        raise _unable(address, why, hint)
    if not missing and record.body.get("mode", "append") == "append":
        why = (
            "It appends, and its target doesn't record each row's step. So mzplan can't remove the old rows "
            "first, and the target would have each row twice."
        )
        raise _unable(address, why, "add --missing, which only writes rows that the target is missing.")
    if record.paused:
        why = "It is paused: until it is resumed, its source may discard these steps."
        raise _unable(address, why, f"mzplan resume {address}, then run this command again.")


def _unable(address: Address, why: str, hint: str) -> MzplanError:
    return error("MZ273.steps-cannot", address=address, why=why, how=hint)


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
