"""verify --content: compares a sink's target with its collection; and recomputes a relational view as of a
step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.targets import ComparisonResult
from mzplan.features.steps.steps import Range, history_of, in_range, readable
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, error
from mzplan.model.state import ResourceState, State, committed_record
from mzplan.model.words import count
from mzplan.operations.connections import require_here
from mzplan.operations.project import Project, Reporter, read_state
from mzplan.render.text import Paint, safe
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.step_record import StepRecord

if TYPE_CHECKING:
    from mzplan.spark.verification.content_comparison import ContentComparison
    from mzplan.spark.verification.recomputed_view import RecomputationResult, RecomputedView


def recompute(
    project: Project,
    state: State,
    resource: ResourceState,
    steps: Range | None,
    open_view: Callable[[State, ResourceState], RecomputedView],
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
    return Diagnostic.of("MZ091.cannot-recomputed", address=resource.address, step=record.step, why=why)


def compare_content(
    project: Project,
    address: Address,
    open_comparison: Callable[[State, ResourceState], ContentComparison],
    reporter: Reporter,
) -> ComparisonResult:
    state = read_state(project.store, reporter)
    resource = committed_record(state, address)
    if not address.writes_target:
        raise error("MZ094.no-target", address=address)
    require_here(project, state, [resource])
    comparison = open_comparison(state, resource)
    (source,) = resource.reads.values()

    def doing() -> str:
        return f"comparing the target of {address} with {source}: {comparison.rows_read():,} rows read"

    with reporter.working(doing):
        try:
            return comparison.compare()
        except OSError as problem:
            raise error("MZ090.content-cannot", address=address, problem=problem) from None


def compared_to_json(result: ComparisonResult, *, shared: bool) -> dict[str, Any]:
    """Return the document of `verify --content --json`."""
    return {
        "address": str(result.address),
        "target": result.target,
        "first": result.first,
        "last": result.last if result.last >= 0 else None,
        "equal": result.is_equal(shared=shared),
        "rows": {"collection": result.expected_rows, "target": result.target_rows},
        "missing": result.missing,
        "doubled": result.doubled,
        "more": result.more,
        "examples": {kind: list(listed) for kind, listed in result.examples.items() if listed},
        "not_compared": list(result.not_compared),
    }


def render_compared(result: ComparisonResult, *, shared: bool, color: bool = False) -> str:
    """Return the compared steps and rows, the differences, and the columns left out."""
    paint = Paint(color)
    lines = [_range(result)]
    wrong = {
        "missing": (result.missing, "missing in the target", True),
        "doubled": (result.doubled, "more than once in the target", not result.repeats),
        "more": (result.more, "extra in the target: changed by hand, or written by others", not shared),
    }
    for kind, (number, difference, counts) in wrong.items():
        if number:
            listed = "; ".join(safe(example) for example in result.examples.get(kind, ()))
            line = f"{count(number, 'row')} {'is' if number == 1 else 'are'} {difference} ({listed})."
            lines.append(paint(line, "red") if counts else line)
    if result.is_equal(shared=shared):
        lines.append(_EQUAL if result.last >= 0 and result.first is not None else "Nothing differs.")
    lines += [f"Not compared: {safe(part)}." for part in result.not_compared]
    return "\n".join(lines)


def _range(result: ComparisonResult) -> str:
    wanted = f"{result.expected_rows:,} row{'' if result.expected_rows == 1 else 's'} of the collection"
    rows = f"{wanted}, {result.target_rows:,} in the target, {safe(result.target)}"
    if result.last < 0:
        return f"{result.address} has written nothing yet: {rows}."
    if result.first is None:
        condition = f"the target no longer keeps all rows of any step up to {result.last}"
        return f"{result.address}: {condition}: {rows}."
    earlier = "" if result.first == 0 else f"; it may have lost rows of steps before {result.first}"
    steps = str(result.last) if result.first == result.last else f"{result.first}..{result.last}"
    return f"{result.address}, steps {steps}: {rows}{earlier}."


_EQUAL = "The target holds the expected rows."
