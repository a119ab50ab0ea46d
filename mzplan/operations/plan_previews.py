"""What the changed queries of a plan give over the rows that are there. The plan stays the same.

A query that can't be previewed doesn't fail the plan; its preview says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.plan import Change, Plan
from mzplan.model.previews import ChangePreview, PreviewedRows
from mzplan.model.row_comparison import RowsOfBoth
from mzplan.model.state import State
from mzplan.operations.previews import Definitions, Extent, Previewed, find_definitions, preview_on
from mzplan.operations.project import Workbench, read_state
from mzplan.plan import apply_changes
from mzplan.plan.highlights import row_changes
from mzplan.schema.description import packages_of
from mzplan.schema.expectations import changed_expectations
from mzplan.schema.sensitive_columns import sensitive_columns
from mzplan.schema.user_functions import function_of, functions_of
from mzplan.spark.trials.bench import TrialBench

if TYPE_CHECKING:
    import pyarrow as pa

    from mzplan.secrets.policy import Guard

EXAMPLES = 5  # rows of each kind
_MASK, _OTHER = "***", "*** (another value)"


@dataclass(frozen=True, slots=True)
class _Request:
    """A change to preview. `expectations`: the names of its new or changed expectations."""

    change: Change
    shows_rows: bool
    expectations: Sequence[str]

    @property
    def address(self) -> Address:
        return self.change.address


def preview_changes(
    work: Workbench, plan: Plan, policy: Guard | None, starting: Callable[[], None]
) -> Mapping[Address, ChangePreview]:
    """Return what each changed view or sink gives, and what violates new expectations. Writes nothing.

    `policy`: the user's policy, which allows functions to run. `starting`: called before Spark starts here.
    """
    requests = list(_requests(plan)) if not plan.errors else []
    if not requests:
        return {}
    state = read_state(work.store, work.reporter)
    found: dict[Address, ChangePreview] = {}
    ready: list[tuple[_Request, Definitions]] = []
    wanted = apply_changes(state, plan, allow_loss=True)
    for request in requests:
        try:
            if state.serial != plan.serial:
                raise error("MZ353.other-serial", address=request.address)
            before = request.change.before
            record = state.resources.get(before.address) if before is not None else None
            definitions = find_definitions(work, state, wanted, request.address, record, Extent())
            _require_allowed(definitions, policy)
            ready.append((request, definitions))
        except MzplanError as problem:
            found[request.address] = _unavailable(problem)
    if ready:
        found |= _computed(work, state, wanted, ready, starting)
    return {request.address: found[request.address] for request in requests}


def _requests(plan: Plan) -> Iterator[_Request]:
    rows = {change.address for change, _ in row_changes(plan)}
    for change in plan.changes:
        address, after = change.address, change.after
        if after is None or address.is_connection:
            continue
        is_new_view = change.action == "create" and address.writes_collection
        shows_rows = address.reads_collections and (address in rows or is_new_view)
        if address.reads_upstream and change.before is None:
            continue  # it has no rows yet
        before = change.before.body if change.before is not None else {}
        expectations = changed_expectations(before, after.body) if address.writes_collection else ()
        if shows_rows or expectations:
            yield _Request(change, shows_rows, expectations)


def _require_allowed(definitions: Definitions, policy: Guard | None) -> None:
    """Raise MzplanError if a preview would run code of the user that no policy allows."""
    for description in filter(None, (definitions.after, definitions.before)):
        own = function_of(description.address.kind, description.type, description.body)
        if own is not None and not description.address.writes_collection:
            continue  # a sink's function gets rows, and a preview gives it none
        for function in functions_of(description.address.kind, description.type, description.body):
            if policy is None:
                raise error("MZ353.function", address=description.address, function=function)
            policy.run(str(description.address), str(function))


def _computed(
    work: Workbench,
    state: State,
    wanted: State,
    ready: Iterable[tuple[_Request, Definitions]],
    starting: Callable[[], None],
) -> Iterator[tuple[Address, ChangePreview]]:
    """Yield the preview of each request, all in one Spark session."""
    try:
        bench = TrialBench.open(work.directory, starting, packages_of(state.resources))
    except MzplanError as problem:
        yield from ((request.address, _unavailable(problem)) for request, _ in ready)
        return
    try:
        for request, definitions in ready:
            with work.reporter.working(f"previewing {request.address}"):
                try:
                    with preview_on(bench, definitions) as previewed:
                        preview = _preview(previewed, request)
                except (MzplanError, OSError) as problem:
                    preview = _unavailable(problem)
            yield request.address, _masked(preview, _sensitive(request, state, wanted))
    finally:
        bench.close()


def _preview(previewed: Previewed, request: _Request) -> ChangePreview:
    preview, before, after = previewed.preview, previewed.before, previewed.after
    rows: RowsOfBoth | PreviewedRows | None = None
    if request.shows_rows:
        rows = (
            preview.compare(before, after, None, EXAMPLES)
            if before is not None
            else preview.rows(after, None, EXAMPLES)
        )
    if not request.expectations:
        return ChangePreview(rows=rows)
    violations, checked = preview.violations(after)
    chosen = {name: violations[name] for name in request.expectations}
    return ChangePreview(rows=rows, violations=chosen, checked=checked)


def _unavailable(problem: MzplanError | OSError) -> ChangePreview:
    if isinstance(problem, OSError):
        return ChangePreview(problem=f"{problem}.")
    first = problem.diagnostics[0]
    parts = (f"{part.rstrip('.')}." for part in (first.summary, first.detail) if part)
    return ChangePreview(problem=" ".join(" ".join(parts).split()))


def _sensitive(request: _Request, state: State, wanted: State) -> frozenset[str]:
    """Return the columns to mask, by the labels of the files and of the committed state."""
    labelled = (*state.resources.values(), *wanted.resources.values())
    found = sensitive_columns(request.address, wanted.resources, labelled)
    before = request.change.before
    if before is None or before.address not in state.resources:
        return found
    return found | sensitive_columns(before.address, state.resources, labelled)


def _masked(preview: ChangePreview, sensitive: frozenset[str]) -> ChangePreview:
    """Return a preview without the values of these columns. A changed value is still shown as changed."""
    rows = preview.rows
    if rows is None:
        return preview
    if isinstance(rows, PreviewedRows):
        names = [name for name in rows.rows.column_names if name.lower() in sensitive]
        return replace(preview, rows=replace(rows, rows=_hidden(rows.rows, names)), masked=tuple(names))
    names = [name for name in rows.compared if name.lower() in sensitive]
    masked = replace(
        rows,
        before_rows=_hidden(rows.before_rows, names),
        after_rows=_hidden(rows.after_rows, names),
        changed_before=_hidden(rows.changed_before, names),
        changed_after=_hidden(rows.changed_after, names, rows.changed_before),
    )
    return replace(preview, rows=masked, masked=tuple(names))


def _hidden(rows: pa.Table, names: Sequence[str], former: pa.Table | None = None) -> pa.Table:
    """Return the rows with masks in place of these columns. `former`: the same rows before a change."""
    import pyarrow as pa

    for name in names:
        at = rows.column_names.index(name)
        now = rows.column(at).to_pylist()
        then = former.column(at).to_pylist() if former is not None else now
        masks = [_MASK if one == other else _OTHER for one, other in zip(then, now, strict=True)]
        rows = rows.set_column(at, name, pa.array(masks, pa.string()))
    return rows
