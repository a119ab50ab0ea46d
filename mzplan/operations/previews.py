"""Finds what a preview runs: the edited and the committed definition, and the rows of their inputs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.resources import inlined_view
from mzplan.model.state import ResourceState, State
from mzplan.model.trials import GivenRecord
from mzplan.model.words import did_you_mean
from mzplan.operations.connections import require_here
from mzplan.operations.local_checks import validate
from mzplan.operations.planning import plan_configuration
from mzplan.operations.project import Workbench, read_state, unreadable
from mzplan.plan import apply_changes
from mzplan.schema.description import Description, describe, packages_of
from mzplan.schema.source_columns import keys_of
from mzplan.spark.trials.bench import TrialBench
from mzplan.spark.trials.previews import InputExtent, Preview
from mzplan.warehouse.checkpoints import collection_path
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.paths import absolute
from mzplan.warehouse.rows.replay import commit_of
from mzplan.warehouse.step_history import StepHistory


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Which steps of the inputs a preview reads; all by default.

    - `steps`: the first and last step, both included (None: the newest).
    - `since`: only steps that became durable at this time or later, in seconds since the epoch.
    """

    steps: tuple[int, int | None] | None = None
    since: float | None = None

    @property
    def is_all(self) -> bool:
        return self.steps is None and self.since is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Definitions:
    """What a preview runs.

    - `after`, `before`: the edited and the committed definition of a query; `before` is None for a new query.
    - `extents`: which rows to read of each collection, by its id.
    - `records`: the records that a source's format parses instead.
    """

    after: Description
    before: Description | None
    extents: Mapping[str, InputExtent]
    records: Sequence[GivenRecord] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Previewed:
    """The definitions of a query, and their preview. `records`: see Definitions."""

    after: Description
    before: Description | None
    records: Sequence[GivenRecord]
    preview: Preview


@contextmanager
def open_preview(
    work: Workbench,
    address: Address,
    extent: Extent,
    records: Sequence[GivenRecord],
    starting: Callable[[], None],
) -> Iterator[Previewed]:
    """Start Spark, and yield the preview of a view, a sink, or a source's format. Writes nothing.

    `records`: what the format parses; empty for a view or sink. Raises MzplanError.
    """
    state = read_state(work.store, work.reporter)
    configuration = validate(work.project, work.reporter, state.resources)
    if address not in configuration.resources:
        if (inlined := inlined_view(address, configuration.resources)) is not None:
            raise error("MZ353.inlined", address=address, why=inlined[0])
        names = map(str, configuration.resources)
        raise error("MZ353.undeclared", address=address, near=did_you_mean(str(address), sorted(names)))
    if not address.reads_collections and not records:
        raise error("MZ353.no-inputs", address=address)
    if address.reads_collections and records:
        raise error("MZ353.no-records", address=address)
    plan = plan_configuration(work, state, [], [], configuration)
    if plan.errors:
        raise MzplanError(plan.errors)
    wanted = apply_changes(state, plan, allow_loss=True)
    record = state.resources.get(address)
    definitions = (
        _over_records(state, wanted, address, record, records)
        if records
        else find_definitions(work, state, wanted, address, record, extent)
    )
    bench = TrialBench.open(work.directory, starting, packages_of(state.resources))
    try:
        with preview_on(bench, definitions) as previewed:
            yield previewed
    finally:
        bench.close()


@contextmanager
def preview_on(bench: TrialBench, definitions: Definitions) -> Iterator[Previewed]:
    """Yield the preview of a query in a Spark session."""
    with tempfile.TemporaryDirectory(prefix="mzplan-preview-") as folder:
        preview = Preview(bench, definitions.extents, folder, definitions.records)
        yield Previewed(
            after=definitions.after,
            before=definitions.before,
            records=definitions.records,
            preview=preview,
        )


def find_definitions(
    work: Workbench,
    state: State,
    wanted: State,
    address: Address,
    record: ResourceState | None,
    extent: Extent,
) -> Definitions:
    """Return the definitions of a query in the wanted and the committed state, without Spark.

    `record`: the committed query; None for a new one. A source reads its own collection. Raises MzplanError.
    """
    found = _over_records(state, wanted, address, record, ())
    return replace(found, extents=_extents(work, state, found.after, found.before or found.after, extent))


def _over_records(
    state: State,
    wanted: State,
    address: Address,
    record: ResourceState | None,
    records: Sequence[GivenRecord],
) -> Definitions:
    after = describe(wanted.resources[address], wanted.resources)
    before = describe(record, state.resources) if record is not None else None
    return Definitions(after=after, before=before, extents={}, records=records)


def _extents(
    work: Workbench, state: State, after: Description, before: Description, extent: Extent
) -> Mapping[str, InputExtent]:
    """Return which rows these definitions read of each collection, by its id."""
    inputs = [*after.inputs.values(), *before.inputs.values()]
    read = {input_.id: input_.address for input_ in inputs} or {after.id: after.address}
    committed = {record.id: record for record in state.resources.values()}  # perhaps under a former name
    missing = [address for id_, address in read.items() if id_ not in committed]
    if missing:
        raise error("MZ353.not-committed", address=after.address, missing=sorted(map(str, missing)))
    records = [committed[id_] for id_ in read]
    require_here(work.project, state, records)
    warehouse = absolute(work.directory, state.warehouse or work.project.settings.warehouse)
    streams = {input_.id for each in (after, before) for input_ in each.reads.values()}
    return {
        record.id: _extent_of(warehouse, record, extent if record.id in streams else Extent())
        for record in records
    }


def _extent_of(warehouse: str, record: ResourceState, extent: Extent) -> InputExtent:
    collection = collection_path(warehouse, *record.place)
    history = StepHistory(warehouse, record.place)
    try:
        steps = history.read(1)
        if steps.upper == 0:
            raise error("MZ353.empty", address=record.address)
        newest = history.collection.versions()[-1]
        if extent.is_all:
            # A version, because the runner may write while both definitions of a comparison are computed.
            return InputExtent(collection=collection, version=newest, snapshot=newest)
        first, last = extent.steps if extent.steps is not None else (0, None)
        if extent.since is not None:
            first = max(first, history.first_young(extent.since))
        found = [step for step in history.committed(first, last) if step.version is not None]
        # A part of the changes of a keyed collection has no meaning: its rows as of the last step have.
        is_keyed = bool(keys_of(record.type, record.body))
        files = None if is_keyed else [f for step in found for f in commit_of(history.collection, step).files]
    except GoneError as gone:
        raise error("MZ091.collection-no", address=record.address, gone=gone) from None
    except OSError as problem:
        raise unreadable(f"The steps of {record.address} can't be read", problem, record.address) from None
    if not found:
        raise error("MZ353.no-steps", address=record.address, since=steps.since, last=steps.upper - 1)
    return InputExtent(
        collection=collection,
        version=found[-1].version,
        snapshot=newest,
        files=tuple(files) if files is not None else None,
    )
