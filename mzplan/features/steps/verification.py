"""verify: replays the durable steps of a query and compares them with their records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from mzplan.features.steps.content import recompute
from mzplan.features.steps.steps import Range, history_of, in_range, input_history, readable
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, error
from mzplan.model.state import ResourceState, State, committed_record
from mzplan.model.tasks import ERASURE
from mzplan.model.times import instant_text
from mzplan.model.words import count
from mzplan.operations.connections import require_here
from mzplan.operations.project import Project, Reporter, read_state, why_nothing_runs
from mzplan.schema.columns import POSITION
from mzplan.schema.description import describe
from mzplan.schema.kinds import resource_kind
from mzplan.schema.relations.parse import recomputes
from mzplan.schema.source_columns import columns_of
from mzplan.schema.sql.view_query import is_row_view
from mzplan.schema.target_writes import writes_generation_difference
from mzplan.warehouse.damage import DamagedError, GoneError, VacuumedError
from mzplan.warehouse.erased_steps import ERASED_AT, last_erasure
from mzplan.warehouse.foreign_changes import ForeignChanges, foreign_changes
from mzplan.warehouse.rows.content_hash import ContentHash, content_hash
from mzplan.warehouse.rows.replay import ValuesSeen, collection_batches
from mzplan.warehouse.step_history import StepHistory
from mzplan.warehouse.step_record import StepRecord

if TYPE_CHECKING:
    from mzplan.connectors.api.connector import Upstream
    from mzplan.spark.verification.recomputed_view import RecomputationResult, RecomputedView
    from mzplan.spark.verification.sink_content import Downstream

Match = Literal["hash", "rows", "unknown"]
"""How a step matches its record: by its hash, or only by its number of rows. `unknown`: it has no record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDifference:
    """A step that differs from its record. `recorded_hash` is None if no hash was recorded.

    `code`: MZ088 if the sink was changed at this step, so the target may hold it as it was before."""

    step: int
    recorded_rows: int | None
    recorded_hash: str | None
    found_rows: int
    found_hash: str
    code: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationResult:
    """The result of verify, which stops at the first difference.

    - `equal_steps`: the steps that match their records.
    - `by_rows`: the equal steps for which only the number of rows was recorded.
    - `unrecorded`: the sink's steps that have no record in its target.
    - `never`: why the query can't have any steps; "" if it can.
    - `recomputed`: the result for a view that was recomputed as a whole, not step by step.
    - `foreign`: what other writers changed in the collection or the target.
    """

    address: Address
    equal_steps: tuple[int, ...] = ()
    by_rows: tuple[int, ...] = ()
    difference: StepDifference | None = None
    problems: tuple[Diagnostic, ...] = ()
    unrecorded: tuple[int, ...] = ()
    never: str = ""
    warnings: tuple[Diagnostic, ...] = ()
    recomputed: RecomputationResult | None = None
    foreign: ForeignChanges | None = None

    @property
    def is_wrong(self) -> bool:
        """Whether something differs or couldn't be checked."""
        is_other = self.recomputed is not None and self.recomputed.is_wrong
        return bool(self.difference or self.problems or is_other or self.foreign)


def verify(
    project: Project,
    address: Address,
    wanted: Range | None,
    upstream: Callable[[State, ResourceState], Upstream] | None,
    target: Callable[[State, ResourceState], Downstream],
    recomputation: Callable[[State, ResourceState], RecomputedView],
    reporter: Reporter,
    *,
    shared: bool = False,
) -> VerificationResult:
    """Replay the wanted steps (None: all) and compare them with their records.

    Also find what other writers have changed since the first of them; with `shared`, they may add rows to a
    sink's target. Steps are replayed from the collection or, with `upstream`, from the upstream. `target`
    opens the target of a sink. A current view, and with `upstream` a relational view without snapshots, is
    recomputed as of the last step instead; `recomputation` opens it."""
    state = read_state(project.store, reporter)
    resource = committed_record(state, address)
    if address.writes_target and upstream is not None:
        raise error("MZ094.cannot-read", address=address)
    require_here(project, state, [resource])
    history = history_of(project, state, resource)
    if recomputes(resource.body) or (upstream is not None and _is_recomputed(resource)):
        recomputed, problems = recompute(project, state, resource, wanted, recomputation, reporter)
        if recomputed is not None and recomputed.is_wrong:
            with readable(address):
                recomputed = replace(recomputed, explanation=_erased_input(project, state, resource))
        return VerificationResult(
            address=address,
            problems=problems,
            never=why_nothing_runs(state, resource),
            recomputed=recomputed,
            foreign=_changed_by_others(address, history, _first(history, address, wanted)),
        )
    values_seen = ValuesSeen()
    with reporter.working(f"reading the steps of {address}"), readable(address):
        records = in_range(history, address, wanted)
        first = records[0] if records else None
        excluded = _not_comparable(history, records, upstream is not None)
        others = [record for record in records if record not in excluded]
        difference = _generation_difference(state, resource, others)
        excluded = difference + excluded
        for source_read in resource.reads.values() if upstream is not None else ():
            excluded += _not_comparable(
                input_history(project, resource, state.resources[source_read]), records, False
            )
        records = [record for record in records if record not in excluded]
    foreign = None
    if address.writes_target:
        opened = target(state, resource)
        compare = partial(_with_target, opened)
        with readable(address):
            foreign = opened.foreign_changes(first.step, shared=shared) if first is not None else None
    else:
        foreign = _changed_by_others(address, history, first)
        source = upstream(state, resource) if upstream is not None else None
        compare = partial(_with_source, history, source, values_seen)
    with readable(address):
        erased = history.last_erasure()
    verified = _compare(address, records, compare, reporter, erased)
    warnings = [*verified.warnings]
    warnings += _empty_columns(resource, values_seen) if address.reads_upstream else []
    warnings += [_left_out(address, excluded, bool(difference))] if excluded else []
    never = why_nothing_runs(state, resource)
    return replace(verified, never=never, warnings=tuple(warnings), foreign=foreign)


def _is_recomputed(resource: ResourceState) -> bool:
    """Return whether `--from-upstream` computes all rows of a view, and not those of each step."""
    if not resource.address.is_view or resource.snapshots:
        return False
    return not is_row_view(resource_kind(resource.address.kind, resource.type), resource.body)


def _erased_input(project: Project, state: State, view: ResourceState) -> str:
    """Return which source has erased rows that a view still counts, as sentences; "" if none has."""
    if recomputes(view.body):
        return ""  # it follows the erasure
    oldest = next(iter(history_of(project, state, view).committed(0, None)), None)
    for read in view.reads.values():
        erasure = last_erasure(history_of(project, state, state.resources[read]).tasks)
        erased_at = float(erasure.details.get(ERASED_AT, 0.0)) if erasure is not None else 0.0
        is_whole = oldest is not None and oldest.step == 0
        began_later = is_whole and oldest is not None and (oldest.time or 0.0) > erased_at
        if erasure is not None and not began_later:
            still = "still counts" if is_whole else "may still count"
            at = instant_text(int(erased_at) * 1000)
            return (
                f"Rows were erased from {read} at {at}, and the view {still} them. Compute it again: "
                f"mzplan apply --replace {view.address} --allow-replace"
            )
    return ""


def _not_comparable(history: StepHistory, records: list[StepRecord], from_upstream: bool) -> list[StepRecord]:
    """Return the steps that can't be compared, because their input isn't in the upstream or the collection.

    A source's upstream doesn't have the rows of a replaced collection, nor dead letters. A sink may have read
    a collection that no longer exists."""
    if history.is_source:
        return [record for record in records if from_upstream and not record.reads_upstream]
    return [r for r in records if not history.has_read(r.end) or r.start == r.end]


def _generation_difference(
    state: State, resource: ResourceState, records: list[StepRecord]
) -> list[StepRecord]:
    """Return the first step of a sink's generation, if its rows depend on those of the former generation."""
    if not writes_generation_difference(describe(resource, state.resources)):
        return []
    return [record for record in records if record.step == 0]


def _erased(address: Address, records: list[StepRecord], erased: int | None) -> Diagnostic:
    steps, listed = _listed(records)
    return Diagnostic.of("MZ403.steps-erased", address=address, steps=steps, listed=listed, erased=erased)


def _listed(records: list[StepRecord]) -> tuple[str, str]:
    """Return how many steps these are, and their numbers."""
    steps, first, last = count(len(records), "step"), records[0].step, records[-1].step
    is_gapless = len(records) == last - first + 1
    listed = f"{first} to {last}" if is_gapless else ", ".join(str(record.step) for record in records)
    return steps, str(first) if first == last else listed


def _left_out(address: Address, records: list[StepRecord], has_difference: bool) -> Diagnostic:
    steps, listed = _listed(records)
    reasons = {
        "It holds the rows of the former generation, which aren't in the upstream.": any(
            record.migrated is not None for record in records
        ),
        "Dead letters were read from their own table, not from the upstream.": any(
            record.task is not None and record.task.kind != ERASURE for record in records
        ),
        "An erasure reads nothing from the upstream.": any(
            record.task is not None and record.task.kind == ERASURE for record in records
        ),
        "The first step of a generation has only what differs from the former one.": has_difference,
        "They were read from the collection of a former generation of its source.": (
            address.reads_collections and len(records) > has_difference
        ),
    }
    return Diagnostic.of(
        "MZ045.cannot-compared",
        address=address,
        steps=steps,
        listed=listed,
        items=" ".join((why for why, holds in reasons.items() if holds)),
    )


def _empty_columns(resource: ResourceState, seen: ValuesSeen) -> Iterator[Diagnostic]:
    """Yield MZ267 for each column that is NULL in all verified rows."""
    names = [column.name for column in columns_of(resource.type, resource.body)]
    for name, rows in seen.empty(names).items():
        yield Diagnostic.of("MZ267.column-null", address=resource.address, name=name, rows=rows)


def _first(history: StepHistory, address: Address, wanted: Range | None) -> StepRecord | None:
    with readable(address):
        return next(iter(in_range(history, address, wanted)), None)


def _changed_by_others(
    address: Address, history: StepHistory, first: StepRecord | None
) -> ForeignChanges | None:
    """Return what other writers changed in a collection since this step.

    Comparing steps doesn't find this: a step's files stay until a VACUUM; other files belong to no step."""
    with readable(address):
        commits = history.foreign_commits(first) if first is not None else []
        return foreign_changes(history.collection, commits)


def _compare(
    address: Address,
    records: list[StepRecord],
    compare: Callable[[StepRecord], StepDifference | Match],
    reporter: Reporter,
    erased: int | None = None,
) -> VerificationResult:
    """Compare the steps one by one, up to the first difference.

    `erased`: the last step that has erased rows of the collection. Files that a VACUUM has removed since are
    no problem.
    """
    vacuumed: list[StepRecord] = []
    steps: dict[Match, list[int]] = {"hash": [], "rows": [], "unknown": []}
    problems: list[Diagnostic] = []
    difference: StepDifference | None = None
    done = 0
    with reporter.working(lambda: f"{done} of {len(records)} steps verified"):
        for record in records:
            try:
                with readable(address):
                    outcome = compare(record)
            except GoneError as problem:
                if erased is not None and isinstance(problem, VacuumedError):
                    vacuumed.append(record)
                else:
                    problems.append(_gone(address, record, str(problem)))
            except DamagedError as problem:
                problems.append(_damaged(address, record, str(problem)))
            else:
                if isinstance(outcome, StepDifference):
                    difference = outcome
                    break
                steps[outcome].append(record.step)
            done += 1
    equal = sorted(steps["hash"] + steps["rows"])
    unknown = steps["unknown"]
    if unknown and not equal and not problems and difference is None:
        problems.append(_unknown(address, unknown))
    return VerificationResult(
        address=address,
        equal_steps=tuple(equal),
        by_rows=tuple(steps["rows"]),
        difference=difference,
        problems=tuple(problems),
        unrecorded=tuple(unknown),
        warnings=(_erased(address, vacuumed, erased),) if vacuumed else (),
    )


def _with_target(target: Downstream, record: StepRecord) -> StepDifference | Match:
    written = target.recorded(record.step)
    if written is None:
        return "unknown"
    differs = _difference(record.step, written.rows, written.digest, target.content_hash(record))
    if differs is not None and (changed := target.changed_hash(record)) is not None:
        if _difference(record.step, written.rows, written.digest, changed) is not None:
            return replace(differs, code="MZ088")
        differs = None
    return differs or ("rows" if ContentHash.parse(written.rows, written.digest) is None else "hash")


def _with_source(
    history: StepHistory, upstream: Upstream | None, seen: ValuesSeen, record: StepRecord
) -> StepDifference | Match:
    recorded, by_position = record.digest, upstream is None or upstream.keeps_positions
    if upstream is None:
        actual = content_hash(seen.watch(collection_batches(history.collection, record)))
    else:
        actual = upstream.content_hash(record)
        if not by_position:  # the recorded hash covers positions, so compare with the collection's content
            batches = collection_batches(history.collection, record)
            recorded = str(content_hash(batch.drop_columns([POSITION]) for batch in batches))
    differs = _difference(record.step, record.rows, recorded, actual)
    return differs or ("rows" if by_position and ContentHash.parse(0, record.digest) is None else "hash")


def _difference(
    step: int, rows: int | None, digest: str | None, actual: ContentHash
) -> StepDifference | None:
    """Return None if rows and hash match the record, or if rows match and no hash is recorded."""
    if actual.rows == rows and ContentHash.parse(actual.rows, digest) in (None, actual):
        return None
    return StepDifference(
        step=step,
        recorded_rows=rows,
        recorded_hash=digest,
        found_rows=actual.rows,
        found_hash=str(actual),
    )


def _unknown(address: Address, steps: list[int]) -> Diagnostic:
    listed = str(steps[0]) if len(steps) == 1 else f"{steps[0]} to {steps[-1]}"
    return Diagnostic.of("MZ091.target-no", address=address, listed=listed)


def _gone(address: Address, record: StepRecord, why: str) -> Diagnostic:
    return Diagnostic.of("MZ091.step-cannot", address=address, step=record.step, why=why)


def _damaged(address: Address, record: StepRecord, why: str) -> Diagnostic:
    return Diagnostic.of("MZ135.step-damaged", address=address, step=record.step, why=why)
