"""verify --content: compares the rows in a sink's target with its collection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from mzplan.connectors.api.targets import Compared
from mzplan.model.address import Address
from mzplan.model.diagnostics import ExitCode, error
from mzplan.model.state import ResourceState, State
from mzplan.model.words import count
from mzplan.operations.project import Project, Reporter, committed_resource, read_state
from mzplan.render.text import Paint, safe

if TYPE_CHECKING:
    from mzplan.connectors.api.targets import Compared


class Comparison(Protocol):
    """The comparison of one sink with its collection."""

    def compare(self) -> Compared:
        """Read and compare both. Raises MzplanError, OSError."""

    def rows_read(self) -> int:
        """Return the number of rows of both that were read so far."""


def compare_content(
    project: Project,
    address: Address,
    opened: Callable[[State, ResourceState], Comparison],
    reporter: Reporter,
) -> Compared:
    state = read_state(project.store, reporter)
    resource = committed_resource(state, address)
    if not address.writes_target:
        raise error(
            "MZ094",
            f"{address} has no target",
            "Its rows are in its collection, and --content compares the target of a sink with that.",
            "leave out --content, or name a sink.",
            address=address,
            exit_code=ExitCode.USAGE,
        )
    comparison = opened(state, resource)
    (source,) = resource.reads.values()

    def doing() -> str:
        return f"comparing the target of {address} with {source}: {comparison.rows_read():,} rows read"

    with reporter.working(doing):
        try:
            return comparison.compare()
        except OSError as problem:
            raise error(
                "MZ090",
                f"The content of {address} can't be compared",
                f"{problem}.",
                "check the warehouse (mzplan.yaml) and the target, and that they can be read from here.",
                address=address,
            ) from None


def compared_to_json(found: Compared, *, shared: bool) -> dict[str, Any]:
    """Return the document of `verify --content --json`: numbers of rows, and first and last step."""
    return {
        "address": str(found.address),
        "target": found.target,
        "first": found.first,
        "last": found.last if found.last >= 0 else None,
        "equal": found.is_equal(shared=shared),
        "rows": {"collection": found.wanted, "target": found.found},
        "missing": found.missing,
        "doubled": found.doubled,
        "more": found.more,
        "examples": {kind: list(listed) for kind, listed in found.examples.items() if listed},
        "not_compared": list(found.unseen),
    }


def render_compared(found: Compared, *, shared: bool, color: bool = False) -> str:
    """Return the compared steps and rows, the differences, and the columns left out."""
    paint = Paint(color)
    lines = [_range(found)]
    wrong = {
        "missing": (found.missing, "missing in the target", True),
        "doubled": (found.doubled, "there more than once", not found.repeats),
        "more": (found.more, "more in the target: changed by hand, or written by others", not shared),
    }
    for kind, (number, difference, counts) in wrong.items():
        if number:
            listed = "; ".join(safe(example) for example in found.examples.get(kind, ()))
            line = f"{count(number, 'row')} {'is' if number == 1 else 'are'} {difference} ({listed})."
            lines.append(paint(line, "red") if counts else line)
    if found.is_equal(shared=shared):
        lines.append(_EQUAL if found.last >= 0 and found.first is not None else "Nothing differs.")
    lines += [f"Not compared: {safe(unseen)}." for unseen in found.unseen]
    return "\n".join(lines)


def _range(found: Compared) -> str:
    wanted = f"{found.wanted:,} row{'' if found.wanted == 1 else 's'} of the collection"
    rows = f"{wanted}, {found.found:,} in the target, {safe(found.target)}"
    if found.last < 0:
        return f"{found.address} has written nothing yet: {rows}."
    if found.first is None:
        gone = f"of none of its steps, up to {found.last}, does the target keep all rows any more"
        return f"{found.address}: {gone}: {rows}."
    kept = "" if found.first == 0 else f"; of steps before {found.first}, it keeps some rows or none"
    steps = str(found.last) if found.first == found.last else f"{found.first}..{found.last}"
    return f"{found.address}, steps {steps}: {rows}{kept}."


_EQUAL = "The target holds what it should."
