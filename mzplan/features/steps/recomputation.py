"""verify --from-upstream for a relational view: recomputes its rows as of a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from mzplan.features.steps.steps import Range, history_of, in_range, readable
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.state import ResourceState, State
from mzplan.operations.project import Project, Reporter
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.step_record import StepRecord

if TYPE_CHECKING:
    from mzplan.connectors.api.recomputed import RecomputationResult


class Recomputation(Protocol):
    """A relational view, whose query computes a row from several rows."""

    def compare(self, record: StepRecord) -> RecomputationResult:
        """Recompute the view's rows as of a step, and compare them with its collection.

        Raises GoneError, MzplanError."""


def recompute(
    project: Project,
    state: State,
    resource: ResourceState,
    steps: Range | None,
    open_view: Callable[[State, ResourceState], Recomputation],
    reporter: Reporter,
) -> tuple[RecomputationResult | None, tuple[Diagnostic, ...]]:
    """Recompute a view as of the last of the wanted steps (None: of all steps).

    Returns the result, or None without one, and the problems that prevented it."""
    address = resource.address
    with reporter.working(f"reading the steps of {address}"), readable(address):
        records = in_range(history_of(project, state, resource), address, steps)
    if not records:
        return None, ()
    view, record = open_view(state, resource), records[-1]
    with reporter.working(f"recomputing {address} as of step {record.step}"), readable(address):
        try:
            return view.compare(record), ()
        except GoneError as problem:
            return None, (_gone(resource, record, str(problem)),)


def _gone(resource: ResourceState, record: StepRecord, why: str) -> Diagnostic:
    return Diagnostic(
        code="MZ091",
        summary=f"{resource.address} can't be recomputed as of step {record.step}",
        detail=why,
        hint="choose a later step with --steps, or verify without --from-upstream.",
        address=resource.address,
    )
