"""The `state` and `import` commands. Each one imports its own modules when it runs."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from mzplan.cli.arguments import ADDRESS, QUERY
from mzplan.cli.context import Invocation, command, global_options
from mzplan.cli.options import live_option, message_option, wait_option
from mzplan.cli.streams import write_bytes
from mzplan.host.files import read_bounded
from mzplan.model.address import ID, Address, natural, natural_item
from mzplan.model.codec import encode
from mzplan.model.diagnostics import ExitCode, error
from mzplan.model.history import HistoryEntry
from mzplan.model.plan import Plan
from mzplan.model.state import committed_record
from mzplan.model.words import count
from mzplan.operations.project import LOCK_WAIT
from mzplan.render.diagnostics import diagnostics_to_json
from mzplan.render.text import safe


class _InOrder(click.Group):
    """A group that lists its commands in the order of their definition."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group("state", cls=_InOrder)
@global_options
def command_state() -> None:
    """Inspect and edit the state."""


def _subcommand(name: str, *, changing: bool = False) -> Callable[[Callable[..., Any]], click.Command]:
    """Add a command to the group `state`."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        subcommand = command(name, changing=changing)(function)
        command_state.add_command(subcommand)
        return subcommand

    return decorate


@_subcommand("list")
def state_list(invocation: Invocation) -> None:
    """List the committed resources, one address per line."""
    state = invocation.project().store.read_state()
    if invocation.json:
        invocation.document(
            {
                "lineage": state.lineage,
                "serial": state.serial,
                "resources": [
                    {"address": str(a), "type": r.type, "id": r.id, "generation": r.generation}
                    for a, r in sorted(state.resources.items(), key=natural_item)
                ],
                "forgotten": [
                    {"address": str(a), "id": id_, "generation": generation}
                    for id_, (a, generation) in sorted(state.forgotten.items())
                ],
            }
        )
        return
    for address in sorted(state.resources, key=natural):
        invocation.out(str(address))
    for id_, (address, generation) in sorted(state.forgotten.items()):
        invocation.note(f"Forgotten, and kept: {address} ({id_}, generation {generation})")


@_subcommand("show")
@click.argument("address", type=ADDRESS)
def state_show(invocation: Invocation, address: Address) -> None:
    """Show a committed resource as JSON."""
    from mzplan.render.explain import resource_to_json

    state = invocation.project().store.read_state()
    invocation.document(resource_to_json(committed_record(state, address)))


@_subcommand("mv", changing=True)
@click.argument("former", type=ADDRESS)
@click.argument("new", type=ADDRESS)
@message_option
def state_mv(invocation: Invocation, former: Address, new: Address, message: str | None) -> None:
    """Rename a resource in the state, and keep its checkpoint and collection.

    The command doesn't edit the files: rename the resource there yourself.
    """
    from mzplan.features.state.state_edits import move

    plan = move(invocation.work(), former, new, message)
    _show_commit(invocation, plan, f"{former} was renamed to {new}. Now rename it in the files.")


@_subcommand("rm", changing=True)
@click.argument("addresses", nargs=-1, required=True, type=ADDRESS)
@message_option
def state_rm(invocation: Invocation, addresses: tuple[Address, ...], message: str | None) -> None:
    """Remove resources from the state, but keep their storage for `import`."""
    from mzplan.features.state.state_edits import forget

    requested = list(dict.fromkeys(addresses))
    plan = forget(invocation.work(), requested, message)
    _show_commit(invocation, plan, f"Forgot {', '.join(map(str, requested))}. Their storage stays.")


@_subcommand("rollback", changing=True)
@click.argument("serial", required=False, type=click.IntRange(min=0))
@click.option("--auto-approve", is_flag=True, help="Don't ask for confirmation.")
@live_option
@message_option
@wait_option
def state_rollback(
    invocation: Invocation,
    serial: int | None,
    auto_approve: bool,
    live: bool | None,
    message: str | None,
    wait: float,
) -> int:
    """Plan and commit the state of an earlier serial again (default: the previous serial)."""
    from mzplan.cli.apply import approval, finish
    from mzplan.features.state.state_edits import roll_back
    from mzplan.operations.apply import ApplyOptions

    ask = approval(invocation, auto_approve, "state rollback")

    def approve(plan: Plan, undone: list[HistoryEntry]) -> None:
        if not invocation.json:
            from mzplan.render.history import render_undone_commits

            invocation.out(render_undone_commits(undone))
        ask(plan)

    options = ApplyOptions(allow_replace=True, live=live, message=message, wait=wait)
    applied = roll_back(invocation.work(), serial, approve, options)
    code = finish(invocation, applied)
    if not invocation.json and not applied.plan.is_empty:
        invocation.out("Also change the files, or the next apply undoes it.")
    return code


def _show_commit(invocation: Invocation, plan: Plan, text: str) -> None:
    serial = invocation.progress.serial if invocation.progress.is_committed else plan.serial
    if invocation.json:
        from mzplan.render.plan_json import plan_to_json

        invocation.document(plan_to_json(plan) | {"serial": serial})
    elif plan.is_empty:
        invocation.out(f"No changes: serial {serial} already has this.")
    else:
        invocation.out(f"Committed serial {serial}: {count(len(plan.changes), 'resource')}. {text}")


@_subcommand("pull")
@click.option(
    "--out", metavar="FILE", type=click.Path(dir_okay=False), help="Write to this file (default: -, stdout)."
)
@click.option("--serial", type=click.IntRange(min=1), help="The serial to print: current or historical.")
def state_pull(invocation: Invocation, out: str | None, serial: int | None) -> None:
    """Print the state file unchanged.

    With --out, write it to a file, and write its runners' records beside it, to move the state elsewhere."""
    from mzplan.features.state.migration import pull, records_path

    data, records, live_instances = pull(invocation.project(), serial)
    if out in (None, "-"):
        invocation.output.raw(data.decode())
        return
    write_bytes(out, data)
    if records is None:
        records_path(out).unlink(missing_ok=True)  # left by an earlier pull
    elif Path(out).is_file():  # don't put a file beside a pipe or a device
        write_bytes(str(records_path(out)), records)
        invocation.note(f"Also wrote {records_path(out)}, the runners' records. `state push` reads it.")
    for name in live_instances:
        invocation.note(f"A runner of instance {name} follows this state: stop it before you push elsewhere.")
    invocation.result({"written": out}, f"Wrote {out}.")


@_subcommand("push", changing=True)
@click.argument("file", type=click.Path())
@click.option("--force", is_flag=True, help="Overwrite another lineage, later commits, or a damaged state.")
@live_option
@message_option
def state_push(
    invocation: Invocation, file: str, force: bool, live: bool | None, message: str | None
) -> None:
    """Replace the state with a state file (- for stdin).

    To move a state to another backend, push it into the empty store. mzplan first validates the queries that
    the push starts or changes. For an empty store, only a live runner validates them.
    """
    from mzplan.features.state.migration import push, records_path

    data, name = _read(file)
    records_file = records_path(file)
    records = _read(str(records_file))[0] if file != "-" and records_file.exists() else None
    serial, written = push(
        invocation.work(), data, name, force=force, live=live, records_data=records, message=message
    )
    invocation.result(
        {"serial": serial, "written": written},
        f"The state is serial {serial}." if written else f"Nothing to do: serial {serial}.",
    )


def _read(file: str) -> tuple[bytes, str]:
    if file == "-":
        return sys.stdin.buffer.read(), "stdin"
    try:
        return read_bounded(file), file
    except OSError as problem:
        raise error(
            "MZ030.cannot-read-name-file-written", file=file, strerror=problem.strerror or problem
        ) from None


@_subcommand("lock", changing=True)
@click.option("--reason", default="", help="The reason to show to others who need the lock.")
def state_lock(invocation: Invocation, reason: str) -> None:
    """Lock the state until `state unlock`."""
    store = invocation.project().store
    with store.lock(safe(reason)[:200] or "state lock", LOCK_WAIT) as info:
        store.hold(info)
    invocation.result({"lock": encode(info)}, f"Locked. To release it: mzplan state unlock {info.id}")


@_subcommand("unlock", changing=True)
@click.argument("lock_id", metavar="ID")
def state_unlock(invocation: Invocation, lock_id: str) -> None:
    """Release the lock of `state lock` or of a killed command."""
    store = invocation.project().store
    lock = store.release(lock_id)
    if lock is None:
        current = store.holder()
        detail = f"The lock that is held has id {current.id}." if current else "No lock is held."
        raise error("MZ070.no-lock", lock_id=safe(lock_id), why=detail)
    invocation.result(
        {"released": encode(lock), "by": getpass.getuser()},
        f"Released the lock of {safe(lock.user)} on {safe(lock.host)} ({safe(lock.command)}).",
    )


@_subcommand("prune", changing=True)
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    required=True,
    metavar="N",
    help="How many serials before the current one to keep.",
)
def state_prune(invocation: Invocation, keep: int) -> None:
    """Remove old serials from the history.

    `rollback`, `history` and `pull --serial` no longer find them. For `gc`, storage that only removed serials
    name is foreign.
    """
    store = invocation.project().store
    with store.lock("state prune", LOCK_WAIT):
        removed = store.prune_history(keep)
    invocation.result({"removed": removed}, f"Removed {count(len(removed), 'serial')} from the history.")


@_subcommand("gc")
@click.option(
    "--apply",
    "apply",
    is_flag=True,
    help="Remove unused storage that hasn't changed for at least the `retain_dropped` period.",
)
@click.option(
    "--foreign",
    is_flag=True,
    help="Include storage whose id was never in this state, such as a failed import's or another project's.",
)
def state_gc(invocation: Invocation, apply: bool, foreign: bool) -> int:
    """List unused checkpoints and collections in the warehouse, or remove them (--apply).

    Storage is in use if a resource or a runner's record names it, or if `state rm` kept it. Runners remove
    the storage of deleted resources by themselves.
    """
    from mzplan.features.state.storage_gc import (
        find_unused_storage,
        remove_unused_storage,
        render_unused_storage,
    )

    project, progress = invocation.project(), invocation.progress
    if apply:
        unused, problems = remove_unused_storage(project, progress, foreign=foreign)
    else:
        unused, problems = find_unused_storage(project, progress, foreign=foreign), []
    if invocation.json:
        listed = diagnostics_to_json(problems)
        invocation.document({"storage": [encode(entry) for entry in unused], "diagnostics": listed})
    else:
        invocation.out(render_unused_storage(unused, applied=apply, color=invocation.color))
        if problems:
            invocation.show(problems)
    return ExitCode.ERROR if problems else ExitCode.OK


@command("import", changing=True)
@click.argument("address", type=QUERY)
@click.option(
    "--id",
    "id_",
    metavar="ID",
    help="The name of a folder in checkpoints/ (default: the folder that `state rm` kept).",
)
@click.option("--generation", type=click.IntRange(min=1), help="The generation to adopt.")
@click.option(
    "--checkpoint",
    metavar="PATH",
    help="For a source or view: the path or URI of a hand-written query's checkpoint.",
)
@click.option(
    "--table",
    metavar="PATH",
    help="The Delta table that the hand-written query has written; mzplan copies it.",
)
@click.option("--auto-approve", is_flag=True, help="Don't ask for confirmation.")
@live_option
@message_option
@wait_option
def command_import(
    invocation: Invocation,
    address: Address,
    id_: str | None,
    generation: int | None,
    checkpoint: str | None,
    table: str | None,
    auto_approve: bool,
    live: bool | None,
    message: str | None,
    wait: float,
) -> int:
    """Adopt a stopped query's checkpoint and table.

    With --id, mzplan adopts storage that it made itself, in place. With --checkpoint and --table, it copies
    the checkpoint and table of a hand-written query into the warehouse.
    """
    from mzplan.cli.apply import approval, finish
    from mzplan.features.state.state_edits import plan_import
    from mzplan.operations.apply import ApplyOptions, CommitRequest, carry_out

    if id_ is not None and not ID.fullmatch(id_):
        raise click.BadParameter(
            f"{id_!r} isn't a valid id: give the name of a folder below checkpoints/.", param_hint="--id"
        )
    if (checkpoint is None) != (table is None):
        raise click.UsageError("--checkpoint and --table require each other.")
    work = invocation.work()
    approve = approval(invocation, auto_approve, "import")
    options = ApplyOptions(allow_replace=True, live=live, wait=wait, message=message)
    if checkpoint is not None and table is not None:
        from mzplan.features.state.adoption import adopt_foreign

        if id_ is not None or generation is not None:
            raise click.UsageError("--id and --generation can't be combined with --checkpoint.")
        return finish(invocation, adopt_foreign(work, address, checkpoint, table, approve, options))
    request = CommitRequest(
        command="import",
        make_plan=lambda state: plan_import(work, state, address, id_, generation),
        approve=approve,
        options=options,
    )
    return finish(invocation, carry_out(work, request))
