"""VALIDATE CONNECTION: reach one connection, as the files declare it, and say what was reached and what was
not."""

from __future__ import annotations

from mzplan.features.alter.requests import find_named
from mzplan.features.alter.sql.statements import ValidateConnection
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.operations.guards import guard_to_look
from mzplan.operations.project import Project, Reporter, Runners, read_state
from mzplan.operations.reached import Reach, nothing_reached, reached, users_of
from mzplan.operations.validation import by_cause, reach, reach_alone
from mzplan.secrets.policy import Guard


def validate_connection(
    project: Project,
    runners: Runners,
    reporter: Reporter,
    text: str,
    statement: ValidateConnection,
    chosen: Guard | None = None,
) -> tuple[tuple[Reach, ...], tuple[Diagnostic, ...]]:
    """Reach a connection through every source and sink that uses it, at any depth; by itself where none
    does. Changes nothing. `chosen`: see operations.guards. Returns what was reached, and warnings.
    Raises MzplanError with every problem, and MZ143 (exit 7) where nothing could be reached."""
    from mzplan.plan import apply_changes, build_plan

    configuration = project.configuration()
    address = find_named(configuration.resources, text, "connection", statement.name).address
    state = read_state(project.store, reporter)
    wanted = apply_changes(state, build_plan(configuration, state))
    users = users_of(wanted, address)
    here = guard_to_look(project, state, chosen, "error")
    if users:
        found = reach(project, runners, reporter, wanted, users, here=here)
    else:
        found = reach_alone(project, runners, reporter, wanted, [address], here=here)
    if any(d.severity == "error" for d in found):
        raise MzplanError(by_cause(found))
    shown = tuple(r for r in reached(wanted, users) if r.address == address)
    if all(one.why for one in shown):
        raise MzplanError(nothing_reached(shown))
    return shown, tuple(by_cause(found))
