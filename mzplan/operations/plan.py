"""validate and plan: check the files, and show what apply would do. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.plan import Plan
from mzplan.model.resources import Configuration
from mzplan.model.state import State
from mzplan.model.words import count
from mzplan.operations.project import Project, Reporter, Runners, read_state
from mzplan.operations.status import find_drift
from mzplan.operations.stored_data import with_stored_data

if TYPE_CHECKING:
    from mzplan.operations.reached import Reach
    from mzplan.secrets.policy import Guard


def validate(project: Project, reporter: Reporter) -> Configuration:
    """The static checks alone. Raises MzplanError with every problem."""
    with reporter.working("reading the files"):
        configuration = project.configuration()
    reporter.detail(f"read {count(len(configuration.resources), 'resource')} from the files")
    return configuration


def validate_each(
    open_one: Callable[[str], Project], environments: Sequence[str], reporter: Reporter
) -> dict[str, Configuration]:
    """The static checks of each environment (`open_one` gives its project). Raises MzplanError with every
    problem once; one that is not a problem of all names those whose it is."""
    configurations: dict[str, Configuration] = {}
    found: dict[Diagnostic, list[str]] = {}
    for name in environments:
        try:
            configurations[name] = validate(open_one(name), reporter)
        except MzplanError as problem:
            for diagnostic in problem.diagnostics:
                found.setdefault(diagnostic, []).append(name)
    if found:
        raise MzplanError([_of_some(d, names, len(environments)) for d, names in found.items()])
    return configurations


def _of_some(diagnostic: Diagnostic, names: Sequence[str], number: int) -> Diagnostic:
    if len(names) == number:
        return diagnostic
    which = f"{'environment' if len(names) == 1 else 'environments'} {', '.join(names)}"
    return replace(diagnostic, summary=f"{diagnostic.summary} ({which})")


def validate_live(
    project: Project, runners: Runners, reporter: Reporter, chosen: Guard | None = None
) -> tuple[Configuration, tuple[Reach, ...], tuple[Diagnostic, ...]]:
    """The static checks, and every connection reached: through what uses it, or by itself. Changes nothing.
    `chosen`: what its user lets it send from here (see operations.guards).

    Returns the configuration, what was reached, and warnings; raises MzplanError with every problem.
    """
    from mzplan.operations.guards import guard_to_look
    from mzplan.operations.reached import reached, unused
    from mzplan.operations.validation import by_cause, reach, reach_alone
    from mzplan.plan import apply_changes, build_plan

    configuration = validate(project, reporter)
    state = read_state(project.store, reporter)
    wanted = apply_changes(state, build_plan(configuration, state))
    queries = [r for r in wanted.resources.values() if r.address in configuration.resources and r.digest]
    here = guard_to_look(project, state, chosen, "error")
    found = reach(project, runners, reporter, wanted, queries, here=here)
    found += reach_alone(project, runners, reporter, wanted, unused(wanted), here=here)
    found = by_cause(found)
    if any(d.severity == "error" for d in found):
        raise MzplanError(found)
    return configuration, reached(wanted, queries), tuple(found)


def make_plan(
    project: Project,
    runners: Runners,
    reporter: Reporter,
    *,
    targets: Sequence[Address] = (),
    replacing: Sequence[Address] = (),
    live: bool = False,
    chosen: Guard | None = None,
    canary: float | None = None,
) -> Plan:
    """What apply would do now. Changes nothing. With `live`, its queries are validated as by apply (from
    here, where no runner is alive, with the secrets that `chosen` lets it send), and the findings are among
    the plan's diagnostics. `canary`: one query of
    each connection goes first, and has so many seconds to make progress."""
    state = read_state(project.store, reporter)
    plan = plan_configuration(project, reporter, state, targets, replacing, with_drift=True, canary=canary)
    return validated(project, runners, reporter, state, plan, chosen) if live else plan


def validated(
    project: Project,
    runners: Runners,
    reporter: Reporter,
    state: State,
    plan: Plan,
    chosen: Guard | None = None,
) -> Plan:
    """The plan with what its live validation finds (from here, where no runner is alive). One with errors is
    left as it is."""
    from mzplan.operations.guards import guard_to_look
    from mzplan.operations.validation import reach_changed
    from mzplan.plan import apply_changes

    if any(d.severity == "error" for d in plan.diagnostics):
        return plan
    new = apply_changes(state, plan)
    here = guard_to_look(project, state, chosen, "warning")
    found = reach_changed(project, runners, reporter, plan, new, here=here)
    return replace(plan, diagnostics=(*plan.diagnostics, *found))


def plan_configuration(
    project: Project,
    reporter: Reporter,
    state: State,
    targets: Sequence[Address],
    replacing: Sequence[Address],
    configuration: Configuration | None = None,
    *,
    with_drift: bool = False,
    canary: float | None = None,
) -> Plan:
    """The plan of a configuration, by default that of the files. `with_drift`: with what has drifted.
    `canary`: see make_plan."""
    from mzplan.operations.rotation import find_rotations
    from mzplan.operations.versions import version_notices
    from mzplan.plan import build_plan
    from mzplan.plan.canaries import choose_canaries

    configuration = configuration or validate(project, reporter)
    statuses = project.store.read_statuses()
    with reporter.working("planning"):
        rotations = find_rotations(project.settings.directory, state, statuses)
        plan = build_plan(
            configuration,
            state,
            statuses,
            targets=targets,
            replace=replacing,
            rotated=rotations.queries,
        )
        if with_drift:
            plan = replace(plan, drift=find_drift(project, state, statuses, rotations.queries))
        if canary is not None:
            plan = replace(plan, canaries=choose_canaries(plan, state, canary))
    plan = replace(with_stored_data(plan, project, state), environment=project.settings.environment)
    reporter.detail(f"planned: {count(len(plan.changes), 'change')}")
    notices = tuple(filter(None, (rotations.notice(), *version_notices(project, state, statuses))))
    return replace(plan, diagnostics=(*plan.diagnostics, *notices)) if notices else plan
