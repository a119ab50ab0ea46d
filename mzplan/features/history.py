"""The `history` command: who committed what, when, from which git commit, why, and how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mzplan.cli.context import Invocation, command, global_options
from mzplan.model.codec import encode
from mzplan.model.diagnostics import ExitCode
from mzplan.operations.commits import changes_between, changes_of, entry_of, with_present
from mzplan.operations.events import events_of_serial
from mzplan.render.event_text import events_to_json, render_serial_events
from mzplan.render.history import render_entry, render_history
from mzplan.render.plan_json import plan_to_json
from mzplan.render.plan_text import render_changes

if TYPE_CHECKING:
    from mzplan.model.plan import Plan

DEFAULT_ENTRIES = 20

_SERIAL = click.IntRange(min=1)


@click.group("history", invoke_without_command=True)
@click.option(
    "-n",
    "most",
    metavar="N",
    type=click.IntRange(min=1),
    default=DEFAULT_ENTRIES,
    show_default=True,
    help="Show at most this many commits.",
)
@global_options
def command_history(most: int) -> int | None:
    """List the commits: who, what, when, why, and the outcome."""
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        return None
    invocation = context.ensure_object(Invocation)
    store = invocation.project().store
    entries = with_present(store, store.read_history(most))
    if invocation.json:
        invocation.document({"history": [encode(entry) for entry in entries]})
    else:
        invocation.out(render_history(entries, invocation.color))
    return ExitCode.OK


@command("show")
@click.argument("serial", type=_SERIAL)
def history_show(invocation: Invocation, serial: int) -> None:
    """Show one commit: its author, reason, changes, events and outcome."""
    store = invocation.project().store
    (entry,), plan = with_present(store, [entry_of(store, serial)]), changes_of(store, serial)
    events = events_of_serial(store, serial, entry.commit)
    if invocation.json:
        plan_json = plan_to_json(plan) | {"digest": entry.commit.digest or None}
        events_json = events_to_json(events)["events"]
        invocation.document(encode(entry) | {"plan": plan_json, "events": events_json})
        return
    shown_entry = render_entry(entry, invocation.color) + render_serial_events(events)
    invocation.out(f"{shown_entry}\n{_changes(invocation, plan)}")


@command("diff")
@click.argument("one", metavar="A", type=_SERIAL)
@click.argument("other", metavar="B", type=_SERIAL)
def history_diff(invocation: Invocation, one: int, other: int) -> None:
    """Show the changes from serial A to serial B, as a plan would."""
    plan = changes_between(invocation.project().store, one, other)
    if invocation.json:
        plan_json = plan_to_json(plan)
        del plan_json["digest"]  # no plan file is applied by it
        invocation.document({"from": one, "to": other, "plan": plan_json})
    else:
        invocation.out(f"From serial {one} to serial {other}\n\n{_changes(invocation, plan)}")


def _changes(invocation: Invocation, plan: Plan) -> str:
    return render_changes(plan, invocation.color, whole=bool(invocation.verbose))


command_history.add_command(history_show)
command_history.add_command(history_diff)
