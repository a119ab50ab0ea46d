"""Warns if this project's warehouse isn't the one that the last runner used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mzplan.model.diagnostics import Diagnostic
from mzplan.model.observed import Status
from mzplan.model.state import State
from mzplan.operations.project import Project
from mzplan.warehouse.elsewhere import former_place, stored_elsewhere
from mzplan.warehouse.paths import absolute


def warehouses_elsewhere(
    project: Project, state: State, statuses: Mapping[str, Status]
) -> Iterator[tuple[str, Diagnostic]]:
    """Yield each embedded instance whose data is in another warehouse than here, with MZ341.

    The runner of another type of instance isn't started from here.
    """
    warehouse = absolute(project.settings.directory, state.warehouse or project.settings.warehouse)
    for name, instance in state.instances.items():
        if instance.type != "embedded":
            continue
        stored = [r.place for r in state.resources.values() if r.digest and r.instance == name]
        if former := former_place(statuses.get(name), warehouse, stored):
            yield name, stored_elsewhere(former, warehouse, name)
