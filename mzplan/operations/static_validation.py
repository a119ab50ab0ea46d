"""validate: static checks of the files. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.resources import Configuration
from mzplan.model.state import ResourceState
from mzplan.model.words import count
from mzplan.operations.project import Project, Reporter


def validate(
    project: Project, reporter: Reporter, records: Mapping[Address, ResourceState] = MappingProxyType({})
) -> Configuration:
    """Run the static checks. Raises MzplanError with every problem. `records`: see `read_files`."""
    with reporter.working("reading the files"):
        configuration = project.configuration(records=records)
    reporter.detail(f"read {count(len(configuration.resources), 'resource')} from the files")
    return configuration


def validate_each(
    open_one: Callable[[str], Project], environments: Sequence[str], reporter: Reporter
) -> dict[str, Configuration]:
    """Run the static checks of each environment; `open_one` opens the environment's project.

    Raises MzplanError with every problem once. A problem of only some environments names them.
    """
    configurations: dict[str, Configuration] = {}
    problems: dict[Diagnostic, list[str]] = {}
    for name in environments:
        try:
            configurations[name] = validate(open_one(name), reporter)
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
