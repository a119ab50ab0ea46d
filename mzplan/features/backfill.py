"""The `backfill` command: reread a range of a source's upstream."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from mzplan.cli.apply import carry_out_plan
from mzplan.cli.arguments import QUERY, TIME
from mzplan.cli.context import Invocation, command
from mzplan.cli.options import auto_option, live_option, message_option, wait_option
from mzplan.connectors.catalogue import find_connector
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.model.observed import Status
from mzplan.model.plan import Plan
from mzplan.model.state import ResourceState, State, committed_record
from mzplan.model.times import instant_text
from mzplan.model.words import count
from mzplan.plan.tasks import overwriting_sinks, plan_task, plan_without_tasks, shown_addresses, sinks_by_mode
from mzplan.schema.source_columns import keys_of

if TYPE_CHECKING:
    from mzplan.operations.project import Project

_NO_STATUS: Mapping[str, Status] = {}


def plan_backfill(
    state: State,
    address: Address,
    start: int,
    end: int,
    now: int,
    statuses: Mapping[str, Status] = _NO_STATUS,
) -> Plan:
    """Return the plan that adds the upstream's rows between two times to the source's collection again.

    `start`, `end` (excluded) and `now` are in milliseconds since the epoch. The plan restarts the query.
    Raises MzplanError if the backfill is impossible or would do damage: MZ273, MZ277, MZ275.
    """
    before = committed_record(state, address)
    _ensure_able(before)
    _ensure_range(address, start, end, now)
    arguments = {"from": instant_text(start), "to": instant_text(end)}
    title = "backfill from {from} to {to}".format_map(arguments)
    appending, upserting = sinks_by_mode(state, address)
    notices = []
    if appending:
        subject = count(len(appending), "sink appends", "sinks append")
        notices.append(
            Diagnostic.of(
                "MZ045.rows-backfill",
                address=address,
                subject=subject,
                shown_addresses=shown_addresses(appending),
            )
        )
    if upserting:
        hint = "if keys have newer rows, end the range at the current time."
        notices.append(overwriting_sinks(address, upserting, "the rows of the backfill", hint))
    return plan_task(state, before, "backfill", title, arguments, statuses, tuple(notices))


def _ensure_able(record: ResourceState) -> None:
    address = record.address
    if not address.reads_upstream:
        raise _unable(
            address,
            "Only a source reads an upstream. Its sinks get the rows that it writes.",
            f"name its source: {next(iter(record.reads.values()))}",
        )
    hint = f"replace it, with its sinks: mzplan apply --replace {address} --allow-replace"
    connector = find_connector(record.type)
    if connector is None or not connector.by_time:
        why = f"A source of type {record.type} can't look up its records by time."
        raise _unable(address, why, hint)
    if keys_of(record.type, record.body):
        why = (
            "Its collection holds the latest row of each key: older records would replace newer ones and "
            "bring back deleted rows."
        )
        raise _unable(address, why, hint)
    if record.paused:
        why = "It is paused: until it is resumed, the range may be deleted upstream."
        raise _unable(address, why, f"mzplan resume {address}, then run this command again.")


def _ensure_range(address: Address, start: int, end: int, now: int) -> None:
    if start >= end:
        reason = f"It ends at {instant_text(end)}, but it begins at {instant_text(start)}."
        hint = "--to must be later than --from; the range excludes it."
    elif end > now:
        reason = f"It ends at {instant_text(end)}, but now is {instant_text(now)}: records may still arrive."
        hint = f"give --to {instant_text(now // 1000 * 1000)} or earlier."
    else:
        return
    raise error("MZ277.range-backfill", address=address, reason=reason, how=hint)


def _unable(address: Address, why: str, hint: str) -> MzplanError:
    return error("MZ273.cannot-backfilled", address=address, why=why, how=hint)


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
