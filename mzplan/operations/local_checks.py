"""Live validation from this process, for queries without a runner.

The command decides which secrets this process may send.

Also the static checks of the files (`validate`). Nothing here changes anything.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from mzplan.config import OtherEnvironment
from mzplan.host.checkout import may_be_foreign, why_foreign_file
from mzplan.host.extras import missing_extras_reported
from mzplan.model.address import Address, natural
from mzplan.model.diagnostics import Diagnostic, MzplanError, Severity
from mzplan.model.resources import Configuration
from mzplan.model.state import ResourceState, State
from mzplan.model.words import count
from mzplan.operations.project import Project, Reporter
from mzplan.schema.description import Description
from mzplan.secrets.guards import AllowingGuard, CommittedFlowsGuard
from mzplan.secrets.policy import Guard
from mzplan.store.backends.local import STATE_KEY, LocalBackend
from mzplan.warehouse.paths import absolute, local_path

AT_ONCE = 8  # parallel checks from this process
SHOWN = 5  # queries listed in an error; JSON lists all


def read_only_guard(project: Project, state: State, policy: Guard | None, severity: Severity) -> Guard:
    """Return the guard for a command that commits nothing.

    `policy`: the user's own policy, which alone decides. Without it, the committed state decides in a
    checkout, unless the checkout could have forged that state. `severity`: the severity of findings about
    secrets that aren't sent.
    """
    from mzplan.connectors.admission import flows_of_state

    if policy is not None:
        return policy
    if not may_be_foreign(Path(project.settings.directory)):
        return AllowingGuard()
    if not state.serial:
        return CommittedFlowsGuard(committed_flows=frozenset(), severity=severity)
    why = _distrust_of_state(project)
    return CommittedFlowsGuard(
        committed_flows=frozenset() if why else flows_of_state(state), reason=why, severity=severity
    )


def _distrust_of_state(project: Project) -> str:
    """Return why the committed state can't decide where secrets may go; "" if it can.

    A checkout that names its state, or contains it, could put anything into it.
    """
    backend = project.store.backend
    file = backend.folder / STATE_KEY if isinstance(backend, LocalBackend) else None
    inside = file is not None and file.resolve().is_relative_to(Path(project.settings.directory).resolve())
    if project.settings.state_config and not inside:
        return ""
    if file is None:
        return (
            "The committed state isn't trusted, because the project's own files name its server. To trust "
            "it, take `state:` from a file outside the project: --state-config."
        )
    why = why_foreign_file(file)
    return f"The committed state in {file} isn't trusted: {why}." if why else ""


def check_locally(
    descriptions: Sequence[Description], directory: str, warehouse: str, guard: Guard
) -> list[Diagnostic]:
    """Check queries or single connections from this process, without Spark.

    Uses this process's network, and the environment variables and files that the guard permits. If the
    warehouse isn't on this machine, the runner checks the checkpoints.
    """
    from mzplan.connectors.admission import GuardedSecrets
    from mzplan.connectors.catalogue import Connectors
    from mzplan.connectors.checks import check_description

    secrets, connectors = GuardedSecrets(directory, guard).proposed(), Connectors()
    place = local_path(absolute(directory, warehouse))
    local_warehouse = str(place) if place is not None and place.is_dir() else None

    def check(description: Description) -> tuple[Diagnostic, ...]:
        report = check_description(
            description, secrets, connectors, directory=directory, warehouse=local_warehouse
        )
        return report.diagnostics

    return _run_checks([(description.address, partial(check, description)) for description in descriptions])


def _run_checks(checks: Sequence[tuple[Address, Callable[[], tuple[Diagnostic, ...]]]]) -> list[Diagnostic]:
    """Return the findings of all checks, in their order; AT_ONCE checks run in parallel."""
    findings: list[tuple[Diagnostic, ...]] = [()] * len(checks)
    numbers = iter(range(len(checks)))  # the threads share it: each number goes to one of them

    def work() -> None:
        for number in numbers:
            address, check = checks[number]
            try:
                with missing_extras_reported():
                    findings[number] = check()
            except MzplanError as problem:
                findings[number] = problem.diagnostics
            except Exception as problem:
                findings[number] = (_broken(address, problem),)

    # Daemon threads: an interrupted command doesn't wait for a silent server.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(AT_ONCE, len(checks)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [diagnostic for each in findings for diagnostic in each]


def _broken(address: Address, problem: Exception) -> Diagnostic:
    """Return a finding about a defect of a connector, so that other findings are still shown."""
    return Diagnostic.of("MZ064.check-failed", address=address, name=type(problem).__name__)


def by_cause(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Merge diagnostics that differ only in their query, and name all these queries.

    A diagnostic about a package that isn't installed here names no query.
    """
    causes: dict[tuple[str, ...], list[Diagnostic]] = {}
    for diagnostic in diagnostics:
        detail = "" if diagnostic.kind == "missing-package" else diagnostic.detail
        causes.setdefault(
            (diagnostic.severity, diagnostic.code, diagnostic.summary, detail, diagnostic.hint), []
        ).append(diagnostic)
    return [_merged(alike) for alike in causes.values()]


def _merged(diagnostics: Sequence[Diagnostic]) -> Diagnostic:
    first = diagnostics[0]
    if first.kind == "missing-package":
        return replace(first, address=None)
    addresses = tuple(
        sorted(
            {diagnostic.address for diagnostic in diagnostics if diagnostic.address is not None}, key=natural
        )
    )
    if len(addresses) < 2:
        return first
    shown = ", ".join(map(str, addresses[:SHOWN])) + (" …" if len(addresses) > SHOWN else "")
    reached = f"Reached by {count(len(addresses), 'query', 'queries')}: {shown}."
    detail = f"{first.detail}\n{reached}" if first.detail else reached
    return replace(first, address=addresses[0], addresses=addresses, detail=detail)


def validate(
    project: Project, reporter: Reporter, records: Mapping[Address, ResourceState] = MappingProxyType({})
) -> Configuration:
    """Run the static checks. Raises MzplanError with every problem. `records`: see `read_files`."""
    with reporter.working("reading the files"):
        configuration = project.configuration(records=records)
    reporter.detail(f"read {count(len(configuration.resources), 'resource')} from the files")
    return configuration


def check_files(project: Project, reporter: Reporter) -> Configuration:
    """Run the static checks like `validate`, but without the state of any environment.

    What a source copies from another environment then follows from the files.
    """

    def declared(name: str, by: Project, through: tuple[str, ...]) -> OtherEnvironment:
        from mzplan.plan.commit import declared_state  # imports the planner

        if name in through:  # the environments copy from each other
            return OtherEnvironment(state=State(project=""), is_declared=True, mistaken=None)
        other = by.in_environment(name)
        files = other.files(read_environment=partial(declared, by=other, through=(*through, name)))
        state = declared_state(other.settings, files.resources)
        mistaken = files.mistaken if files.is_whole else None
        return OtherEnvironment(state=state, is_declared=True, mistaken=mistaken)

    with reporter.working("reading the files"):
        read = partial(declared, by=project, through=(project.settings.environment,))
        configuration = project.configuration(read_environment=read)
    reporter.detail(f"read {count(len(configuration.resources), 'resource')} from the files")
    return configuration


def validate_each(
    open_one: Callable[[str], Project], environments: Sequence[str], reporter: Reporter
) -> dict[str, Configuration]:
    """Run the static checks of each environment, without any state; `open_one` opens its project.

    Raises MzplanError with every problem once. A problem of only some environments names them.
    """
    configurations: dict[str, Configuration] = {}
    problems: dict[Diagnostic, list[str]] = {}
    for name in environments:
        try:
            configurations[name] = check_files(open_one(name), reporter)
        except MzplanError as problem:
            for diagnostic in problem.diagnostics:
                problems.setdefault(diagnostic, []).append(name)
    if problems:
        raise MzplanError([_of_some(d, names, len(environments)) for d, names in problems.items()])
    return configurations


def _of_some(diagnostic: Diagnostic, names: Sequence[str], number: int) -> Diagnostic:
    if len(names) == number:
        return diagnostic
    which = f"{'environment' if len(names) == 1 else 'environments'} {', '.join(names)}"
    return replace(diagnostic, summary=f"{diagnostic.summary} ({which})")
