"""The `alter` command: SQL statements that change connections and the queries that use them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mzplan.cli.apply import applied_to_json, apply_options, approval, finish
from mzplan.cli.arguments import policy_option, send_secrets_option
from mzplan.cli.context import Invocation, command
from mzplan.cli.options import allow_options, auto_option, canary_options, message_option, wait_option
from mzplan.cli.show import show_plan
from mzplan.features.alter import alteration
from mzplan.model.address import natural_item
from mzplan.model.diagnostics import ExitCode, MzplanError
from mzplan.model.words import count
from mzplan.render.diagnostics import diagnostics_to_json
from mzplan.render.plan_json import plan_to_json
from mzplan.render.status_json import reach_to_json
from mzplan.render.text import safe

if TYPE_CHECKING:
    from mzplan.config.edits import FileEdit
    from mzplan.features.alter.alteration import AlterResult
    from mzplan.model.plan import Plan
    from mzplan.operations.apply import ApplyOptions


@command("alter", changing=True)
@click.argument("statement", required=False)
@click.option("-f", "--file", "file", metavar="FILE", help="Read the statements from a file (- for stdin).")
@click.option("--dry-run", is_flag=True, help="Only show the edit and the queries that it would restart.")
@click.option("--no-apply", is_flag=True, help="Only edit the file, for a pull request.")
@auto_option
@click.option(
    "--live/--no-live",
    default=None,
    help="Validate against the servers (default: when a runner is available and the connection's type "
    "supports it).",
)
@policy_option
@send_secrets_option
@allow_options
@canary_options
@message_option
@wait_option
@apply_options
def command_alter(
    invocation: Invocation,
    statement: str | None,
    file: str | None,
    dry_run: bool,
    no_apply: bool,
    auto_approve: bool,
    policy: str | None,
    send_secrets: bool,
    options: ApplyOptions,
) -> int:
    """Change a connection, or which connection a query uses.

    Statements: ALTER CONNECTION, ALTER SOURCE, ALTER SINK, VALIDATE CONNECTION. mzplan edits the YAML file in
    place, then plans and applies exactly that edit. Edit and commit are atomic: if one fails, neither
    happens. Several statements, separated by ;, are one transaction.

    \b
      mzplan alter "ALTER CONNECTION shop_kafka SET BROKERS = ('b1:9092', 'b2:9092')"
      mzplan alter "ALTER SOURCE orders SET CONNECTION other_kafka" --dry-run
      mzplan alter "VALIDATE CONNECTION shop_pg"
      mzplan alter -f repair.sql
    """
    if dry_run and no_apply:
        raise click.UsageError("--dry-run and --no-apply can't be combined.")
    text = _text(statement, file)
    options = replace(options, guard=invocation.guard(policy, send_secrets))
    work = invocation.work(whole=True, policy=policy)
    if dry_run:
        return _show_preview(invocation, alteration.preview(work, text, options))
    if no_apply:
        return _show_edit(invocation, alteration.edit_only(work.project, work.reporter, text))
    result = alteration.alter(work, text, _approval(invocation, auto_approve), options)
    if result.applied is None:
        return _show_edit(invocation, result)
    if invocation.json:
        document = {**applied_to_json(result.applied), **_edit_to_json(result)}
        invocation.document(document)
        return result.exit_code
    code = finish(invocation, result.applied)
    _show_keys(invocation, result)
    return code


def _text(statement: str | None, file: str | None) -> str:
    """Return the statements from the argument, a file, or stdin unless it is a terminal."""
    if statement is not None and file is not None:
        raise click.UsageError("give either STATEMENT or -f FILE.")
    if statement is not None and statement != "-":
        return statement
    try:
        if file is not None and file != "-":
            return Path(file).read_text(encoding="utf-8")
        if statement is None and file is None and sys.stdin.isatty():
            raise click.UsageError("give a STATEMENT, or -f FILE, or write statements to stdin.")
        return sys.stdin.read()
    except (OSError, UnicodeDecodeError) as problem:
        why = problem.strerror if isinstance(problem, OSError) else "it is not UTF-8"
        raise click.UsageError(f"{file or 'stdin'} can't be read: {why}.") from None


def _approval(invocation: Invocation, auto_approve: bool) -> Callable[[Plan, Sequence[FileEdit]], None]:
    ask = approval(invocation, auto_approve, "alter")

    def approve(plan: Plan, edits: Sequence[FileEdit]) -> None:
        if not invocation.json:
            _show_diff(invocation, edits)
        ask(plan)

    return approve


def _show_preview(invocation: Invocation, result: AlterResult) -> int:
    plan = result.plan
    if plan is None:
        return _show_edit(invocation, result)
    if invocation.json:
        invocation.document({**plan_to_json(plan), **_edit_to_json(result)})
    else:
        _show_diff(invocation, result.edits)
        show_plan(invocation, plan)
    return MzplanError(plan.errors).exit_code if plan.errors else ExitCode.OK


def _show_edit(invocation: Invocation, result: AlterResult) -> int:
    """Show the result of a statement that planned nothing."""
    if invocation.json:
        document: dict[str, Any] = {
            "diagnostics": diagnostics_to_json(result.notices),
            **_edit_to_json(result),
        }
        if result.reached:
            document["connections"] = [reach_to_json(r) for r in result.reached]
        invocation.document(document)
        return result.exit_code
    for reached in result.reached:
        through = f", for {count(len(reached.queries), 'query', 'queries')}" if reached.queries else ""
        validity = "Valid" if not reached.unreached else "Valid, but not every connection was reached"
        invocation.out(f"{validity}: {reached.address}{through}")
        for query, why in sorted(reached.unreached.items(), key=natural_item):
            invocation.out(f"Not reached: {reached.address} for {query}: {why}")
    if result.edits:
        _show_diff(invocation, result.edits)
        names = ", ".join(safe(edit.path) for edit in result.edits)
        invocation.out(f"Edited {names}. `mzplan apply` commits it.")
    elif not result.reached and not result.notices:
        invocation.out("Nothing to edit: the files already have this change.")
    _show_keys(invocation, result)
    if result.notices:
        invocation.show(result.notices)
    return result.exit_code


def _show_diff(invocation: Invocation, edits: Sequence[FileEdit]) -> None:
    for edit in edits:
        invocation.out("\n".join(safe(line) for line in edit.diff.splitlines()) + "\n")
    if edits:
        invocation.out("")


def _show_keys(invocation: Invocation, result: AlterResult) -> None:
    if not result.keys:
        return
    invocation.out("Public keys, for ~/.ssh/authorized_keys on the server:")
    for key in result.keys:
        invocation.out(
            f"  {key.property}  {key.text or f'(of {safe(key.reference)}, which has no value here)'}"
        )


def _edit_to_json(result: AlterResult) -> dict[str, Any]:
    """Return the edits. `edit` is the first of `edits`, because most statements make one."""
    edits = [{"path": edit.path, "diff": edit.diff} for edit in result.edits]
    document: dict[str, Any] = {"edit": edits[0] if edits else None}
    if len(edits) > 1:
        document["edits"] = edits
    if result.other_changes:
        document["left_out"] = [str(address) for address in result.other_changes]
    if result.keys:
        document["public_keys"] = {key.property: key.text for key in result.keys}
    return document
