"""The `recompute` command: compute a part of a view's rows again, and write only the difference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from mzplan.cli.apply import carry_out_plan
from mzplan.cli.arguments import QUERY
from mzplan.cli.context import Invocation, command
from mzplan.cli.options import auto_option, live_option, message_option, wait_option
from mzplan.connectors.api.recomputes import recompute_refused, replaced_instead
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.model.observed import Status
from mzplan.model.plan import Plan
from mzplan.model.state import ResourceState, State, committed_record
from mzplan.model.words import count
from mzplan.plan.tasks import plan_task, plan_without_tasks
from mzplan.schema.source_columns import keys_of
from mzplan.schema.sql.expressions import parse_where

if TYPE_CHECKING:
    from mzplan.operations.project import Project

_NO_STATUS: Mapping[str, Status] = {}


def plan_recompute(
    state: State, address: Address, where: str, statuses: Mapping[str, Status] = _NO_STATUS
) -> Plan:
    """Return the plan that recomputes the rows of a view that meet a condition over its key.

    The plan restarts the query. Raises MzplanError if the recompute is impossible or wouldn't be exact:
    MZ401, MZ275.
    """
    before = committed_record(state, address)
    _ensure_able(before, statuses)
    keys = keys_of(before.type, before.body)
    if problem := _problem_of_condition(where, keys):
        how = f"write a condition over {', '.join(keys)}."
        raise error("MZ401.condition", address=address, why=problem, how=how)
    title = f"recompute of rows where {where}"
    return plan_task(
        state, before, "recompute", title, {"where": where}, statuses, _notices(before, statuses)
    )


def _ensure_able(record: ResourceState, statuses: Mapping[str, Status]) -> None:
    address = record.address
    if not address.is_view:
        raise _not_a_view(record)
    if not keys_of(record.type, record.body):
        why = (
            "Rows are only added to its collection. A row that was written can't be changed or removed, "
            "neither there nor in the queries that have read it."
        )
        raise recompute_refused(address, why, replaced_instead(address))
    if record.paused:
        why = "It is paused, so it can't compute rows now."
        raise recompute_refused(address, why, f"mzplan resume {address}, then run this command again.")
    if record.former_in_service(statuses):
        why = f"Its generation {record.generation} will replace its rows, and computes all of them."
        hint = f"wait until it is in service (mzplan status); or: mzplan cut-over {address} --abort"
        raise recompute_refused(address, why, hint)


def _not_a_view(record: ResourceState) -> MzplanError:
    address = record.address
    if address.reads_upstream:
        why = "The rows of a source come from its upstream, and not from a query."
        hint = f"read a range of the upstream again: mzplan backfill {address} --from T --to T"
    else:
        why = "The rows of a sink come from the collection that it reads."
        hint = f"recompute the view that it reads; or write steps again: mzplan replay {address} --missing"
    return recompute_refused(address, why, hint)


def _problem_of_condition(where: str, keys: tuple[str, ...]) -> str:
    """Return why a condition doesn't select rows by their key, as a sentence; "" if it does."""
    parsed, names = parse_where(where), {key.lower() for key in keys}
    if parsed.problem:
        return f"In --where, at {where[parsed.offset :][:20]!r}: {parsed.problem}."
    if parsed.varies is not None:
        return f"--where has {parsed.varies[0]}, which changes each time."
    others = tuple(dict.fromkeys(name for name, _ in parsed.columns if name.lower() not in names))
    if others:
        are = "isn't" if len(others) == 1 else "aren't"
        return f"--where uses {', '.join(others)}, which {are} part of the key: {', '.join(keys)}."
    return ""


def _notices(record: ResourceState, statuses: Mapping[str, Status]) -> tuple[Diagnostic, ...]:
    """Return a notice for a view that may have dropped rows as late."""
    if "watermarks" not in record.body:
        return ()
    seen = record.observed_in(statuses)
    late = seen.late_rows if seen is not None else None
    dropped = f"This run has dropped {count(late, 'late row')} so far. " if late else ""
    return (Diagnostic.of("MZ045.counts-late", address=record.address, dropped=dropped),)


@command("recompute", changing=True)
@click.argument("address", type=QUERY)
@click.option("--where", metavar="EXPR", help="Recompute the rows that meet this SQL condition over the key.")
@click.option("--cancel", is_flag=True, help="Cancel the tasks that aren't done.")
@auto_option
@live_option
@message_option
@wait_option
def command_recompute(
    invocation: Invocation,
    address: Address,
    where: str | None,
    cancel: bool,
    auto_approve: bool,
    live: bool | None,
    message: str | None,
    wait: float,
) -> int:
    """Compute a part of a view's rows again.

    mzplan runs the view's query over all rows that the view has read. It compares the result with the rows
    of the collection, where the condition is met, and writes the difference as one new step. Sinks and views
    that read the collection follow. All other rows stay as they are.
    """
    if cancel is (where is not None):
        raise click.UsageError("Give either --where or --cancel.")

    def plan(project: Project, state: State) -> Plan:
        statuses = project.store.read_statuses()
        if where is None:
            return plan_without_tasks(state, address, "recompute", statuses)
        return plan_recompute(state, address, where, statuses)

    why = (
        f"Recompute of {address} where {where}"
        if where is not None
        else f"Cancelled the recompute of {address}"
    )
    # A cancellation must not wait for the servers that may be the cause of it.
    live = False if cancel else live
    return carry_out_plan(
        invocation, "recompute", plan, auto_approve, wait, message if message is not None else why, live
    )
