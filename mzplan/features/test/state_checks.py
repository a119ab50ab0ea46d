"""Checks what the change of a view against the committed state does to the view's own state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mzplan.features.test.cases import Case
from mzplan.features.test.runs import Mismatch, Result
from mzplan.model.plan import Change
from mzplan.operations.planning import plan_configuration
from mzplan.operations.project import Workbench, read_state


def check_states(work: Workbench, results: Sequence[Result]) -> list[Result]:
    """Return the results with the mismatches of tests that expect a verdict. Reads the project's state."""
    if not any(result.case.state for result in results):
        return list(results)
    state = read_state(work.store, work.reporter)
    plan = plan_configuration(work, state, [], [])
    changes = {change.address: change for change in plan.changes}

    def checked(result: Result) -> Result:
        case = result.case
        if case.state is None:
            return result
        found = _verdict(case, changes.get(case.address), is_committed=case.address in state.resources)
        if found == case.state:
            return result
        mismatch = Mismatch(subject="state", expected=case.state, found=found)
        return replace(result, mismatches=(*result.mismatches, mismatch))

    return [checked(result) for result in results]


def _verdict(case: Case, change: Change | None, *, is_committed: bool) -> str:
    """Return the verdict, or why there is none."""
    if change is None:
        return "kept" if is_committed else f"no committed {case.address}"
    if change.query is not None:
        because = f": {change.query.because}" if change.query.because else ""
        return change.query.state if change.query.state == case.state else f"{change.query.state}{because}"
    if change.before is None:
        return f"no committed {case.address}"
    return "lost" if change.action == "replace" else "kept"
