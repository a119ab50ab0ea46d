"""Lists and expires the durable steps of queries, as recorded in the warehouse."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mzplan.model.address import Address, natural_item
from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.model.state import ResourceState, State, committed_record
from mzplan.operations.connections import require_here
from mzplan.operations.project import Project, Reporter, locked, read_state, unreadable, why_nothing_runs
from mzplan.operations.selection import Selection
from mzplan.operations.status import select
from mzplan.schema.expectations import EXPECT
from mzplan.schema.relations.parse import recomputes
from mzplan.schema.target_writes import writes_all
from mzplan.warehouse.damage import DamagedError
from mzplan.warehouse.paths import absolute
from mzplan.warehouse.step_history import StepHistory, Steps, oldest_needed_step
from mzplan.warehouse.step_record import StepRecord

Range = tuple[int, int | None]
"""The first and last step of a range, both included; None: up to the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownSteps:
    """The steps of a committed resource. `never`: why it can't have any; "" if it can."""

    resource: ResourceState
    steps: Steps
    never: str = ""


def read_steps(
    project: Project, selection: Selection, count: int | None, reporter: Reporter
) -> list[ShownSteps]:
    """Return the newest `count` steps of each selected query. If `count` is None, return all known steps."""
    state = read_state(project.store, reporter)
    histories, resources = [], select(project, state, selection)
    require_here(project, state, resources)
    for resource in resources:
        with reporter.working(f"reading the steps of {resource.address}"), readable(resource.address):
            steps = history_of(project, state, resource).read(count)
        histories.append(ShownSteps(resource=resource, steps=steps, never=why_nothing_runs(state, resource)))
    return histories


def expire(project: Project, address: Address, before: int, reporter: Reporter) -> Steps:
    """Record that the steps below `before` are no longer needed.

    Raises MzplanError MZ093 while a query still has to read one of them. The last step is always kept, as
    with `retention`, because the count continues from it. The runner removes the files later.
    """
    with locked(project.store, reporter, "expire", wait=10.0):
        state = read_state(project.store, reporter)
        resource = committed_record(state, address)
        require_here(project, state, [resource])
        history = history_of(project, state, resource)
        with readable(address):
            steps = history.read(1)
            if before > steps.upper:
                raise _beyond(address, before, steps)
            first = max(0, min(before, steps.upper - 1))
            _refuse_needed(project, state, resource, first)
            history.index.expire(first)
            return history.read(1)


def _refuse_needed(project: Project, state: State, resource: ResourceState, before: int) -> None:
    problems: list[Diagnostic] = []
    for address, sink in sorted(state.resources.items(), key=natural_item):
        if resource.address not in sink.reads.values():
            continue
        needed = oldest_needed_step(input_history(project, sink, resource))
        if needed is not None and needed < before:
            problems.append(_still_needed(resource.address, address, needed, before))
    if problems:
        raise MzplanError(problems)


def history_of(project: Project, state: State, resource: ResourceState) -> StepHistory:
    """Return a query's steps: the steps that a source or view wrote, or that a sink read."""
    if not resource.address.writes_collection:
        (source,) = resource.reads.values()
        return input_history(project, resource, state.resources[source])
    return StepHistory(
        _warehouse(project),
        resource.place,
        recomputes=recomputes(resource.body),
        expects=EXPECT in resource.body,
    )


def input_history(project: Project, resource: ResourceState, source: ResourceState) -> StepHistory:
    """Return the steps in which a query has read the collection of `source`."""
    return StepHistory(
        _warehouse(project), resource.place, source.place, writes_all_rows=writes_all(resource.body)
    )


def _warehouse(project: Project) -> str:
    return absolute(project.settings.directory, project.settings.warehouse)


def in_range(history: StepHistory, address: Address, wanted: Range | None) -> list[StepRecord]:
    """Return the recorded steps of a range. Raises MzplanError if the range is outside the steps."""
    if wanted is None:
        return history.committed(0, None)
    first, last = wanted
    steps = history.read(1)
    if first < steps.since or (last is not None and last >= steps.upper) or first > steps.upper:
        outside = first if first < steps.since or first > steps.upper or last is None else last
        raise _beyond(address, outside, steps)
    return history.committed(first, last)


@contextmanager
def readable(address: Address) -> Iterator[None]:
    """Raise failures of the storage as MzplanError MZ090. DamagedError passes unchanged."""
    try:
        yield
    except DamagedError:
        raise
    except OSError as problem:
        raise unreadable(f"The steps of {address} can't be read", problem, address) from None


def _still_needed(source: Address, sink: Address, needed: int, before: int) -> Diagnostic:
    return Diagnostic.of("MZ093.still-needs", address=sink, needed=needed, source=source, before=before)


def _beyond(address: Address, step: int, steps: Steps) -> MzplanError:
    kept = f"{steps.since} to {steps.upper - 1}" if steps.upper > steps.since else "none"
    why = "was expired" if step < steps.since else "doesn't exist yet"
    return error("MZ094.step", address=address, step=step, why=why, kept=kept)
