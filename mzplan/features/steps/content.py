"""verify --content: what a sink's target holds, compared with the collection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mzplan.connectors.api.content import Compared
from mzplan.model.address import Address
from mzplan.model.diagnostics import ExitCode, error
from mzplan.model.state import ResourceState, State
from mzplan.operations.project import Project, Reporter, read_state, unknown_address


class Comparison(Protocol):
    """The compare of one sink with its collection."""

    def compare(self) -> Compared:
        """Read both. Raises MzplanError, OSError."""

    def rows_read(self) -> int:
        """How many rows of both were read by now."""


def compare_content(
    project: Project,
    address: Address,
    opened: Callable[[State, ResourceState], Comparison],
    reporter: Reporter,
) -> Compared:
    """Compare the target of a committed sink with the collection of its source."""
    state = read_state(project.store, reporter)
    if address not in state.resources:
        raise unknown_address(address, state)
    resource = state.resources[address]
    if address.kind != "sink":
        raise error(
            "MZ094",
            f"{address} has no target",
            "Its rows are in its collection, and --content compares the target of a sink with that.",
            "leave out --content, or name a sink.",
            address=address,
            exit_code=ExitCode.USAGE,
        )
    comparison = opened(state, resource)
    source = resource.references.get("from")

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
