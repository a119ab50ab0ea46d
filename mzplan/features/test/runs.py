"""Runs tests on Spark, several at once, and checks what they expect."""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from mzplan.config.findings import Findings
from mzplan.config.locations import diagnose
from mzplan.endpoints.arrow import arrow_schema
from mzplan.features.test.cases import Case, ExpectedStep, Step
from mzplan.features.test.comparison import RowDifference, compare_rows, rows_of
from mzplan.features.test.written_rows import WrittenRows, expected_rows
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.times import instant_text
from mzplan.model.trials import StepOutcome
from mzplan.schema.columns import Column
from mzplan.schema.description import Description
from mzplan.schema.source_columns import columns_of, keys_of
from mzplan.spark.trials.bench import TrialBench
from mzplan.spark.trials.inputs import table_of
from mzplan.spark.trials.records import parse_records
from mzplan.spark.trials.trial import SinkTrial, Trial, ViewTrial

if TYPE_CHECKING:
    import pyarrow as pa

_Subject = Literal["rows", "late_rows", "violations", "watermark", "malformed", "error", "state"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """An expectation that doesn't hold.

    - `step`: the step after which it was checked, from 1; None for the whole test.
    - `expected`, `found`: as text; "" for rows, whose `rows` say how they differ.
    """

    subject: _Subject
    step: int | None = None
    expected: str = ""
    found: str = ""
    rows: RowDifference | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a test. `problems`: the errors that kept it from running to its end."""

    case: Case
    seconds: float = 0.0
    mismatches: tuple[Mismatch, ...] = ()
    problems: tuple[Diagnostic, ...] = ()

    @property
    def passed(self) -> bool:
        return not (self.mismatches or self.problems)


def run_cases(
    cases: Sequence[Case], directory: str, starting: Callable[[], None], done: Callable[[Result], None]
) -> list[Result]:
    """Run tests, and return their results in order. `done` gets each result as soon as it is there.

    Raises MzplanError if Spark can't start. `starting`: called before it does.
    """
    if not cases:
        return []
    bench = TrialBench.open(directory, starting)
    try:
        with ThreadPoolExecutor(_at_once()) as pool:

            def run(numbered: tuple[int, Case]) -> Result:
                result = _run(bench, numbered[1], numbered[0])
                done(result)
                return result

            return list(pool.map(run, enumerate(cases)))
    finally:
        bench.close()


def run_once(
    view: Description, steps: Sequence[Step], directory: str, starting: Callable[[], None]
) -> pa.Table:
    """Return the rows of a view after these steps. Raises MzplanError."""
    bench = TrialBench.open(directory, starting)
    try:
        with tempfile.TemporaryDirectory(prefix="mzplan-test-") as folder:
            trial = ViewTrial(bench, view, folder, 0)
            trial.run(steps)
            return trial.rows_after(len(steps) - 1)
    finally:
        bench.close()


def _at_once() -> int:
    """Return how many tests run at once. A test waits for half of its time for Python or the disk."""
    return min(max(2 * (os.cpu_count() or 1), 2), 16)


def _run(bench: TrialBench, case: Case, number: int) -> Result:
    began = time.monotonic()
    check = _Check(case)
    problems: tuple[Diagnostic, ...] = ()
    try:
        if case.address.kind == "source":
            check.records(bench)
        else:
            with tempfile.TemporaryDirectory(prefix="mzplan-test-") as folder:
                check.steps(bench, folder, number)
    except MzplanError as problem:
        if case.error:
            check.error(problem.diagnostics)
        else:
            problems = problem.diagnostics
    else:
        if case.error:
            check.mismatches.append(Mismatch(subject="error", expected=case.error, found="no error"))
    return Result(
        case=case,
        seconds=time.monotonic() - began,
        mismatches=tuple(check.mismatches),
        problems=problems,
    )


@dataclass(slots=True)
class _Check:
    """Collects the mismatches of one test while it runs."""

    case: Case
    mismatches: list[Mismatch] = field(default_factory=list)

    def steps(self, bench: TrialBench, folder: str, number: int) -> None:
        """Run the steps of a view or sink. Raises MzplanError."""
        case, description = self.case, self.case.description
        make: type[Trial] = ViewTrial if case.address.writes_collection else SinkTrial
        trial = make(bench, description, folder, number)
        outcomes = trial.run(case.steps or ({},))
        for step, expected in sorted(case.after.items()):
            self._expectations(expected, step, trial, outcomes[step - 1])
        late = sum(outcome.late_rows for outcome in outcomes)
        violations: Counter[str] = Counter()
        for outcome in outcomes:
            violations.update(outcome.violations)
        summed = replace(outcomes[-1], late_rows=late, violations=violations)
        self._expectations(case.finally_, None, trial, summed)

    def records(self, bench: TrialBench) -> None:
        """Parse the records of a source. Raises MzplanError."""
        case, description = self.case, self.case.description
        parsed = parse_records(bench, description, case.records)
        if case.finally_.rows is not None:
            columns, keys = (
                columns_of(description.type, description.body),
                keys_of(description.type, description.body),
            )
            self._rows(case.finally_.rows, None, parsed.rows, columns, keys)
        self._violations(case.finally_.violations, parsed.violations, None)
        reasons = tuple(parsed.malformed.values())
        wanted = case.malformed if case.malformed is not None else 0
        if isinstance(wanted, int):
            if len(reasons) != wanted:
                self._differs("malformed", None, str(wanted), _listed(reasons))
        elif len(reasons) != len(wanted) or any(
            part not in reason for part, reason in zip(wanted, reasons, strict=False)
        ):
            self._differs("malformed", None, _listed(wanted), _listed(reasons))

    def error(self, found: Sequence[Diagnostic]) -> None:
        """Check the error with which the query has failed."""
        codes = list(dict.fromkeys(diagnostic.code for diagnostic in found))
        if self.case.error not in codes:
            text = "; ".join(f"{d.code}: {d.summary}. {d.detail}" for d in found)
            self._differs("error", None, self.case.error, text)

    def _expectations(
        self,
        expected: ExpectedStep,
        step: int | None,
        trial: Trial,
        outcome: StepOutcome,
    ) -> None:
        late, watermark = outcome.late_rows, outcome.watermark
        if expected.rows is not None:
            last = len(self.case.steps or ({},))
            rows = trial.rows_after((step or last) - 1)
            self._rows(expected.rows, step, rows, trial.columns, trial.keys)
        if expected.late_rows is not None and expected.late_rows != late:
            self._differs("late_rows", step, str(expected.late_rows), str(late))
        self._violations(expected.violations, outcome.violations, step)
        if expected.watermark is not None and expected.watermark != watermark:
            found = instant_text(watermark) if watermark is not None else "no watermark"
            self._differs("watermark", step, instant_text(expected.watermark), found)

    def _violations(self, expected: Mapping[str, int], found: Mapping[str, int], step: int | None) -> None:
        for name, number in expected.items():
            if number != found.get(name, 0):
                self._differs("violations", step, f"{number} of {name}", f"{found.get(name, 0)}")

    def _rows(
        self,
        written: WrittenRows,
        step: int | None,
        found: pa.Table,
        columns: Sequence[Column],
        keys: Sequence[str],
    ) -> None:
        findings = Findings()
        expected = expected_rows(written, columns, findings, str(self.case.address))
        if findings:
            raise MzplanError(diagnose(findings))
        named = {name.lower() for name in written.columns}
        compared = [column for column in columns if not named or column.name.lower() in named]
        names = [column.name for column in compared]
        wanted: list[dict[str, Any]] = expected
        table = table_of(arrow_schema(compared), wanted)
        difference = compare_rows(rows_of(table, names), rows_of(found, names), names, keys)
        if not difference.is_empty:
            self.mismatches.append(Mismatch(subject="rows", step=step, rows=difference))

    def _differs(self, subject: _Subject, step: int | None, expected: str, found: str) -> None:
        self.mismatches.append(Mismatch(subject=subject, step=step, expected=expected, found=found))


def _listed(reasons: Sequence[str]) -> str:
    return "; ".join(reasons) if reasons else "none"
