"""snapshot: a collection as of a step, read from the warehouse, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.state import ResourceState, unknown_address
from mzplan.operations.connections import require_here
from mzplan.operations.project import TO_RUN, Project, Reporter, read_state, unreadable, why_nothing_runs
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.paths import absolute
from mzplan.warehouse.rows.snapshot import ConditionError, TableSnapshot, snapshot_of
from mzplan.warehouse.step_history import StepHistory, Steps

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionSnapshot:
    """A collection with all rows up to and including a step.

    The readable steps are from `since` to `upper` (excluded)."""

    address: Address
    as_of: int
    since: int
    upper: int
    table: TableSnapshot

    def count(self, where: str | None) -> int:
        """Return the number of rows. Raises MzplanError."""
        with _readable(self.address):
            return self.table.count(where)

    def rows(self, where: str | None, *, position: bool) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the schema and the rows in batches. Raises MzplanError, also while rows are read."""
        with _readable(self.address):
            schema, batches = self.table.rows(where, position=position)
        return schema, self._read(batches)

    def _read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with _readable(self.address):
            yield from batches


def open_snapshot(
    project: Project, address: Address, as_of: int | None, reporter: Reporter
) -> CollectionSnapshot:
    """Open a collection as of a step (None: the newest committed one).

    Raises MzplanError:
    - MZ094: the query has no collection, or the step doesn't exist yet or was expired.
    - MZ091: files of the step, or the log, are gone.
    - MZ090: the storage failed.
    - MZ341: the collection is in another warehouse.
    """
    state = read_state(project.store, reporter)
    resource = state.resources.get(address)
    if resource is None:
        raise unknown_address(address, state)
    if not address.writes_collection:
        raise _no_collection(resource)
    warehouse = absolute(project.settings.directory, state.warehouse or project.settings.warehouse)
    history = StepHistory(warehouse, resource.place)
    with reporter.working(f"looking for the step of {address}"), _readable(address):
        steps = history.read(1)
        if steps.upper == 0:
            require_here(project, state, [resource])
        step = _step(address, steps, as_of, why_nothing_runs(state, resource))
        table = snapshot_of(history, step)
    reporter.detail(f"step {step} of {address} is version {table.version} of {table.place}")
    return CollectionSnapshot(address=address, as_of=step, since=steps.since, upper=steps.upper, table=table)


def _step(address: Address, steps: Steps, as_of: int | None, never_runs: str) -> int:
    range_text = f"It can be read as of the steps {steps.since} to {steps.upper - 1}."
    if steps.upper == 0:
        raise _refused(
            address,
            f"The collection of {address} is still empty",
            never_runs or "None of its steps is committed.",
            TO_RUN if never_runs else "wait for its query's first step: mzplan status.",
        )
    newest = steps.upper - 1
    if as_of is None:
        as_of = newest
    if as_of > newest:
        raise _refused(
            address,
            f"Step {as_of} of {address} doesn't exist yet",
            range_text if newest >= steps.since else f"All steps below {steps.since} were expired.",
            f"`mzplan steps {address}` lists the steps.",
        )
    if as_of < steps.since:
        raise _refused(
            address,
            f"Step {as_of} of {address} was expired",
            range_text
            if newest >= steps.since
            else f"All steps below {steps.since} were expired, and no later step exists.",
            "read a later step with --as-of, or the newest one without it.",
        )
    return as_of


def _no_collection(resource: ResourceState) -> MzplanError:
    source = next(iter(resource.reads.values()), None)
    return _refused(
        resource.address,
        f"{resource.address} has no collection",
        f"Only sources and views have one; a {resource.address.kind} has none.",
        f"read its input instead: mzplan snapshot {source}."
        if source is not None
        else "name a source or a view.",
    )


def _refused(address: Address, summary: str, detail: str, hint: str) -> MzplanError:
    return error("MZ094.other", address=address, what=summary, why=detail, how=hint)


@contextmanager
def _readable(address: Address) -> Iterator[None]:
    """Raise failures of the storage and of the query engine as MzplanError."""
    try:
        yield
    except GoneError as gone:
        raise error("MZ091.collection-no", address=address, gone=gone) from None
    except ConditionError as problem:
        raise error("MZ019.condition-where", address=address, problem=problem) from None
    except OSError as problem:
        raise unreadable(f"The collection of {address} can't be read", problem, address) from None
