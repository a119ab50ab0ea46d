"""The `cut-over` command: put a generation into service that runs beside the former one, or give it up."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import click

from mzplan.cli.apply import carry_out_plan
from mzplan.cli.arguments import QUERY
from mzplan.cli.context import Invocation, command
from mzplan.cli.options import auto_option, message_option, wait_option
from mzplan.model.address import Address
from mzplan.model.plan import Plan
from mzplan.model.state import State
from mzplan.operations.project import Project
from mzplan.plan.side_by_side import plan_abort, plan_cut_over
from mzplan.store.store import Store


@command("cut-over", changing=True)
@click.argument("addresses", type=QUERY, nargs=-1, required=True)
@click.option("--abort", is_flag=True, help="Give the new generation up; the former one stays in service.")
@auto_option
@message_option
@wait_option
def command_cut_over(
    invocation: Invocation,
    addresses: tuple[Address, ...],
    abort: bool,
    auto_approve: bool,
    message: str | None,
    wait: float,
) -> int:
    """Put a new generation into service that runs beside the former one, or give it up.

    The new generation of a replaced view or source waits for this command with `lifecycle: {cut_over:
    manual}`. Once it has read as much as the former one, all readers move to it.
    """

    def make_plan(project: Project, state: State) -> Plan:
        statuses = project.store.read_statuses()
        if not abort:
            return plan_cut_over(state, addresses, statuses)
        return plan_abort(state, addresses, statuses, partial(_earlier, project.store, state))

    name = f"cut-over{' --abort' if abort else ''}"
    why = message if message is not None else f"{name} {', '.join(map(str, addresses))}"
    return carry_out_plan(invocation, name, make_plan, auto_approve, wait, why, asked_for=addresses)


def _earlier(store: Store, state: State) -> Iterator[State]:
    for serial in reversed(store.serials()):
        earlier = store.read_serial(serial) if serial < state.serial else None
        if earlier is not None and earlier.lineage == state.lineage:
            yield earlier
