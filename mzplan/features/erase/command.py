"""The `erase` command: remove the rows that meet a condition from a source's collection."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from mzplan.cli.apply import carry_out_plan
from mzplan.cli.arguments import DURATION, QUERY
from mzplan.cli.context import Invocation, command
from mzplan.cli.options import auto_option, live_option, message_option, wait_option
from mzplan.features.erase.letters import committed_states, letters_elsewhere
from mzplan.features.erase.reach import Reach, reach_of
from mzplan.features.erase.replacement import reach_with_replacements
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.model.observed import Status
from mzplan.model.plan import Change, Plan
from mzplan.model.resources import is_dry
from mzplan.model.state import ResourceState, State, committed_record
from mzplan.model.tasks import CONDITION, DEADLINE, ERASURE
from mzplan.model.times import instant_text
from mzplan.operations.connections import require_here
from mzplan.operations.planning import stored_data_notices
from mzplan.operations.project import unreadable
from mzplan.plan.manual_changes import plan_of
from mzplan.plan.tasks import plan_task, plan_without_tasks
from mzplan.schema.columns import Column
from mzplan.schema.source_columns import columns_of
from mzplan.schema.sql.expressions import parse_where
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.erasures import EraseConditions, new_name
from mzplan.warehouse.paths import absolute

if TYPE_CHECKING:
    from mzplan.operations.project import Project

_INCOMPARABLE = ("MAP<", "VARIANT")  # in the type of a column: Spark can't compare its values
_SHORTEST = 4 * 3600.0  # seconds: VACUUM works in whole hours, and keeps the files of running micro-batches
_NO_STATUS: Mapping[str, Status] = {}


def plan_erasure(
    state: State,
    address: Address,
    where: str,
    name: str,
    deadline: str,
    statuses: Mapping[str, Status] = _NO_STATUS,
    *,
    replaces: bool = True,
) -> Plan:
    """Return the plan that erases the rows of a source that meet a condition.

    `name`: the name of the condition, which is all that the State gets of it. `deadline`: when the old files
    must be gone. `replaces`: whether queries that would still count the rows get a new generation. The plan
    restarts the source's query. Raises MzplanError MZ402 if the rows can't be erased.
    """
    before = committed_record(state, address)
    _ensure_able(before, statuses)
    _ensure_condition(address, where, columns_of(before.type, before.body))
    replacements: tuple[Change, ...] = ()
    found: tuple[Diagnostic, ...] = ()
    if replaces:
        reach, replacements, found = reach_with_replacements(state, before, where, statuses)
    else:
        reach = reach_of(state, before, where)
    paused = [address for address in reach.reached if state.resources[address].paused]
    notices = (*_notices(before, reach, paused, deadline), *found)
    arguments = {CONDITION: name, DEADLINE: deadline}
    plan = plan_task(state, before, ERASURE, "erase of rows", arguments, statuses, notices)
    if not replacements:
        return plan
    return plan_of(state, (*plan.changes, *replacements), statuses, plan.diagnostics, restarting=True)


def _ensure_able(record: ResourceState, statuses: Mapping[str, Status]) -> None:
    address = record.address
    if not address.reads_upstream:
        why = "Only the rows of a source can be erased; what its readers compute from them follows."
        raise error("MZ402.cannot-erase", address=address, why=why, how="name the source of its rows.")
    if record.paused:
        why = "It is paused, so nothing is erased until it is resumed."
        how = f"mzplan resume {address}, then run this command again."
        raise error("MZ402.cannot-erase", address=address, why=why, how=how)
    if former := record.former_in_service(statuses):
        why = f"Its generation {former} stays in service, and keeps the rows, until readers have moved."
        how = f"wait until generation {record.generation} is in service (mzplan status), then erase the rows."
        raise error("MZ402.cannot-erase", address=address, why=why, how=how)


def _ensure_condition(address: Address, where: str, columns: Sequence[Column]) -> None:
    """Raise MzplanError MZ402 unless the values of a row's columns decide whether it meets the condition."""
    parsed = parse_where(where)
    types = {column.name.lower(): column.type for column in columns}
    named = [name for name, _ in parsed.columns]
    unknown = [name for name in named if name.lower() not in types]
    if parsed.problem:
        why = f"{parsed.problem[0].upper()}{parsed.problem[1:]}."
    elif unknown:
        why = f"{unknown[0]} isn't a column of the source."
    elif not named:
        why = "It names no column, so it would select all rows or none."
    elif parsed.varies is not None:
        why = f"{parsed.varies[0]} has another value each time."
    elif maps := [name for name in named if any(w in types[name.lower()].upper() for w in _INCOMPARABLE)]:
        why = f"Spark can't compare the values of {maps[0]}: its type is {types[maps[0].lower()]}."
    else:
        return
    how = f"write a condition over {', '.join(column.name for column in columns)}."
    raise error("MZ402.condition", address=address, why=why, how=how)


def _notices(
    source: ResourceState, reach: Reach, paused: Sequence[Address], deadline: str
) -> Iterator[Diagnostic]:
    for query in reach.unreached:
        yield Diagnostic.of("MZ403.not-reached", address=query.address, why=query.why, how=query.how)
    for address in paused:
        yield Diagnostic.of("MZ403.paused", address=address)
    yield Diagnostic.of("MZ403.upstream", address=source.address)
    yield Diagnostic.of("MZ403.old-files", address=source.address, deadline=deadline)


@command("erase", changing=True)
@click.argument("address", metavar="SOURCE", type=QUERY)
@click.option(
    "--where", metavar="EXPR", help="Erase the rows that meet this SQL condition over the source's columns."
)
@click.option(
    "--by",
    type=DURATION,
    default="7d",
    show_default=True,
    help="How long old files of the collection may keep the rows.",
)
@click.option(
    "--replace/--no-replace",
    "replaces",
    default=True,
    show_default=True,
    help="Replace views and sinks that would still count the rows.",
)
@click.option("--cancel", is_flag=True, help="Cancel the erasures that haven't begun.")
@auto_option
@live_option
@message_option
@wait_option
def command_erase(
    invocation: Invocation,
    address: Address,
    where: str | None,
    by: float,
    replaces: bool,
    cancel: bool,
    auto_approve: bool,
    live: bool | None,
    message: str | None,
    wait: float,
) -> int:
    """Erase rows of a source, and what follows from them.

    The rows leave the source's collection and its dead letters as one new step. Sinks and views of a source
    with a key follow, down to their targets. Other views, and sinks with `on_replace: truncate` or
    `difference`, get a new generation, which begins once the rows are erased. The plan lists what isn't
    reached, with the command or the statement to run. The State and its history never have the condition.
    """
    if cancel == (where is not None):
        raise click.UsageError("Give either --where or --cancel.")
    if by < _SHORTEST:
        raise click.UsageError("--by must be 4h or longer: a reader may still read the old files.")
    deadline = instant_text(int(time.time() + by) * 1000)
    requests = _Requests(invocation, address, where, deadline, replaces=replaces)
    why = f"Cancelled the erasure of {address}" if cancel else f"Erased rows of {address}"
    # A cancellation must not wait for the servers that may be the cause of it.
    live = False if cancel else live
    try:
        return carry_out_plan(
            invocation,
            "erase",
            requests.plan,
            auto_approve,
            wait,
            message if message is not None else why,
            live,
        )
    finally:
        requests.forget_unused()


class _Requests:
    """The requests of one command, and the files with their conditions.

    Other commands write conditions only while they hold the lock of the state, as `plan` does.
    """

    def __init__(
        self, invocation: Invocation, address: Address, where: str | None, deadline: str, *, replaces: bool
    ):
        self._invocation, self._address, self._where = invocation, address, where
        self._deadline, self._replaces = deadline, replaces
        self._name = new_name()
        self._own: set[str] = set()  # the names of the conditions to forget unless the state names them

    def plan(self, project: Project, state: State) -> Plan:
        """Plan the request, and store its condition; or plan to cancel the open ones."""
        statuses, address = project.store.read_statuses(), self._address
        if self._where is None:
            plan = plan_without_tasks(state, address, "erase", statuses)
        else:
            plan = plan_erasure(
                state,
                address,
                self._where,
                self._name,
                self._deadline,
                statuses,
                replaces=self._replaces,
            )
            notices = (
                *letters_elsewhere(committed_record(state, address), committed_states(project.store, state)),
                *stored_data_notices(plan, project, state),
            )
            plan = dataclasses.replace(plan, diagnostics=(*plan.diagnostics, *notices))
        record = committed_record(state, address)
        require_here(project, state, [record])
        self._own = _named_by(record) | {self._name}
        with _stored(address):
            conditions, kept = _conditions(project, record), self._own | _begun(project, record)
            for name in set(conditions.names()) - kept:  # a command was killed before its commit
                conditions.remove(name)
            # A dry instance has no rows, and would never remove the condition.
            if self._where is not None and not is_dry(state.instances, record.instance):
                conditions.write(self._name, self._where)
        return plan

    def forget_unused(self) -> None:
        """Remove conditions that the state doesn't name: of a refused request, or a cancelled one.

        Leaves them if the state can't be read, because the request may have been committed. The next request
        for the source removes them.
        """
        if not self._own:
            return
        try:
            project = self._invocation.project()
            record = committed_record(project.store.read_state(), self._address)
            for name in self._own - _named_by(record) - _begun(project, record):
                _conditions(project, record).remove(name)
        except (MzplanError, OSError):
            return


def _named_by(record: ResourceState) -> set[str]:
    return {str(task.arguments[CONDITION]) for task in record.own_tasks if CONDITION in task.arguments}


def _begun(project: Project, record: ResourceState) -> set[str]:
    """Return the conditions of erasures that a runner has begun: it removes them. Raises OSError."""
    tasks = [begun.task for begun in _checkpoint(project, record).tasks.all()]
    return {str(task.arguments[CONDITION]) for task in tasks if task.kind == ERASURE}


def _conditions(project: Project, record: ResourceState) -> EraseConditions:
    return EraseConditions(_checkpoint(project, record).folder)


def _checkpoint(project: Project, record: ResourceState) -> Checkpoint:
    return Checkpoint.of(absolute(project.settings.directory, project.settings.warehouse), *record.place)


@contextmanager
def _stored(address: Address) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise unreadable(f"The condition for {address} can't be stored", problem, address) from None
