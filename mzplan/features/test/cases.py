"""The tests of a project: what each gives to a query, and what it expects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mzplan.features.test.written_rows import WrittenRows
from mzplan.model.address import Address
from mzplan.model.diagnostics import SourceRange
from mzplan.model.query_changes import StateEffect
from mzplan.model.trials import GivenRecord, GivenRow
from mzplan.schema.description import Description

Step = Mapping[str, tuple[GivenRow, ...]]
"""The rows of one step, by input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedStep:
    """What a test expects after a step; None for what it doesn't mention.

    - `late_rows`, `violations`: of this step, or, after the last one, of all steps.
    - `watermark`: in milliseconds since the epoch.
    """

    rows: WrittenRows | None = None
    late_rows: int | None = None
    watermark: int | None = None
    violations: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One test.

    - `description`: the query that it runs.
    - `range`: where it is written.
    - `after`: what it expects after a step, by the step's number, from 1. `finally_`: after the last step.
    - `malformed`: the number of malformed records, or a part of each one's reason.
    - `error`: the code of the error with which the query fails; "" if it doesn't.
    - `state`: the verdict on a change against the committed state.
    """

    name: str
    description: Description
    range: SourceRange | None = None
    steps: tuple[Step, ...] = ()
    records: tuple[GivenRecord, ...] = ()
    finally_: ExpectedStep = field(default_factory=ExpectedStep)
    after: Mapping[int, ExpectedStep] = field(default_factory=dict)
    malformed: int | tuple[str, ...] | None = None
    error: str = ""
    state: StateEffect | None = None

    @property
    def address(self) -> Address:
        return self.description.address

    @property
    def runs(self) -> bool:
        """Whether the test runs its query."""
        return bool(
            self.steps
            or self.records
            or self.after
            or self.error
            or self.malformed is not None
            or self.finally_ != ExpectedStep()
        )
