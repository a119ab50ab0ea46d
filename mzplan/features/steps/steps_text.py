"""Renders the results of `steps` and `verify` as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mzplan.model.codec import encode
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.tasks import ERASURE
from mzplan.model.words import count
from mzplan.render.diagnostics import diagnostics_to_json
from mzplan.render.text import Paint, aligned_lines, cut, safe

if TYPE_CHECKING:
    from mzplan.features.steps.steps import ShownSteps
    from mzplan.features.steps.verification import StepDifference, VerificationResult
    from mzplan.spark.verification.recomputed_view import RecomputationResult
    from mzplan.warehouse.foreign_changes import ForeignChanges
    from mzplan.warehouse.step_record import StepRecord

_RANGE = 60  # characters


def steps_to_json(shown: ShownSteps) -> dict[str, Any]:
    """Return the document of `steps --json`. Times are seconds since the epoch."""
    return {
        "address": str(shown.resource.address),
        "id": shown.resource.id,
        "generation": shown.resource.generation,
        "since": shown.steps.since,
        "upper": shown.steps.upper,
        "steps": [encode(record) for record in shown.steps.records],
    }


def render_steps(shown: ShownSteps, *, color: bool = False, titled: bool = False) -> str:
    """Return the steps as a table, the newest last. `titled`: put the address above it."""
    paint = Paint(color)
    records = shown.steps.records
    if not records:
        return _no_steps(f"{shown.resource.address} has no steps yet.", shown.never)
    is_source = shown.resource.address.writes_collection
    header = ("STEP", "TIME (UTC)", "ROWS", "BYTES" if is_source else "SOURCE STEPS", "COMMITTED", "UPSTREAM")
    first, *rows = aligned_lines([header, *(_row(record, is_source) for record in records)], right={0, 2, 3})
    lines = [str(shown.resource.address)] if titled else []
    lines.append(paint(first, "bold"))
    for record, row in zip(records, rows, strict=True):
        lines.append(row if record.committed else paint(row, "yellow"))
    return "\n".join(lines)


def _no_steps(text: str, never: str) -> str:
    return f"{text.replace(' yet', '')} {never}" if never else text


def _row(record: StepRecord, is_source: bool) -> tuple[str, ...]:
    return (
        str(record.step),
        _time(record.time),
        _number(record.rows),
        _number(record.bytes) if is_source else _span(record.sources),
        "yes" if record.committed else "not yet",
        _upstream(record) + _violations(record),
    )


def _violations(record: StepRecord) -> str:
    """Return `; 3 rows violate positive` for each expectation that rows of the step violate."""
    return "".join(
        f"; {count(number, 'row violates', 'rows violate')} {name}"
        for name, number in sorted((record.violations or {}).items())
    )


def _upstream(record: StepRecord) -> str:
    if record.migrated is not None:
        return f"the rows of generation {record.migrated}, up to {upstream_range(None, record.end)}"
    if record.refreshed:
        return safe(record.refreshed)
    if record.task is None:
        return upstream_range(record.start, record.end)
    if record.task.kind == ERASURE:
        return "its rows were erased from the collection"
    again = f"once more ({record.task.kind})"
    return f"{upstream_range(record.start, record.end)} {again}" if record.reads_upstream else again


def upstream_range(start: Any, end: Any) -> str:
    """Return the range of the upstream that a step has read, as text.

    For Kafka, the text has the offsets of each partition."""
    if end is None:
        return "?"
    if _is_kafka(end):
        return cut(" ".join(_partitions(start, end)), _RANGE)
    if isinstance(end, dict) and set(end) == {"logOffset"}:
        first = start["logOffset"] + 1 if isinstance(start, dict) and "logOffset" in start else 0
        return f"batches of files {first}..{end['logOffset']}"
    if isinstance(end, dict) and set(end) == {"step"}:
        return _endpoint_steps(start, int(end["step"]) - 1)
    if isinstance(end, dict) and "reservoirVersion" in end:
        return f"up to {_delta(end)}" if start is None else f"{_delta(start)}..{_delta(end)}"
    return cut(safe(f"{json.dumps(start)}..{json.dumps(end)}"), _RANGE)


def _endpoint_steps(start: Any, last: int) -> str:
    """Return the steps of a durable endpoint, which numbers its steps itself."""
    if not isinstance(start, dict) or "step" not in start:
        return f"up to step {last}"
    first = int(start["step"])
    return f"step {last}" if first == last else f"steps {_span((first, last))}"


def _is_kafka(end: Any) -> bool:
    return isinstance(end, dict) and bool(end) and all(isinstance(value, dict) for value in end.values())


def _partitions(start: Any, end: dict[str, dict[str, int]]) -> list[str]:
    ranges = []
    for topic, partitions in sorted(end.items()):
        before = start.get(topic, {}) if isinstance(start, dict) else {}
        for partition, last in sorted(partitions.items(), key=lambda item: int(item[0])):
            first = before.get(partition, "?" if start is None else 0)
            if first != last:
                name = f"{topic}/{partition}" if len(end) > 1 else partition
                ranges.append(f"{name}:{first}..{last}")
    return ranges


def _delta(offset: dict[str, Any]) -> str:
    index = int(offset.get("index", -1))
    return f"v{offset['reservoirVersion']}" + (f"+{index + 1} files" if index >= 0 else "")


def _span(steps: tuple[int, int] | None) -> str:
    if steps is None:
        return "?"
    return str(steps[0]) if steps[0] == steps[1] else f"{steps[0]}..{steps[1]}"


def _number(number: int | None) -> str:
    return f"{number:,}" if number is not None else "?"


def _time(seconds: float | None) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S") if seconds else "?"


def verified_to_json(result: VerificationResult) -> dict[str, Any]:
    return {
        "address": str(result.address),
        "verified": len(result.equal_steps),
        "first": result.equal_steps[0] if result.equal_steps else None,
        "last": result.equal_steps[-1] if result.equal_steps else None,
        "without_hash": list(result.by_rows),
        "unknown": list(result.unrecorded),
        "difference": _difference_to_json(result.difference) if result.difference else None,
        **({"recomputed": _recomputed_to_json(result.recomputed)} if result.recomputed else {}),
        **({"foreign": _foreign_to_json(result.foreign)} if result.foreign else {}),
        "diagnostics": diagnostics_to_json(diagnostics_of(result)),
    }


def diagnostics_of(result: VerificationResult) -> tuple[Diagnostic, ...]:
    """Return the problems and warnings, and MZ305 if other writers changed rows."""
    if result.foreign is None:
        return (*result.problems, *result.warnings)
    address = result.address
    where = "the target" if address.writes_target else "the collection"
    again = (
        f"mzplan replay {address} --missing writes missing rows again. --shared accepts rows that others add."
        if address.writes_target
        else f"read everything again: mzplan apply --replace {address} --allow-replace. To accept the "
        f"change, expire the steps before it: mzplan expire {address} --before STEP."
    )
    changed = Diagnostic.of(
        "MZ305.another-writer", address=address, where=where, foreign=result.foreign, again=again
    )
    return (*result.problems, changed, *result.warnings)


def _foreign_to_json(changes: ForeignChanges) -> dict[str, Any]:
    """Return the part of `verify --json` about other writers' changes. `changes` has the newest ones."""
    return {"versions": list(changes.versions), "changes": [asdict(change) for change in changes.newest]}


def _difference_to_json(difference: StepDifference) -> dict[str, Any]:
    return {
        "step": difference.step,
        **({"code": difference.code} if difference.code else {}),
        "recorded": {"rows": difference.recorded_rows, "hash": difference.recorded_hash},
        "found": {"rows": difference.found_rows, "hash": difference.found_hash},
    }


def render_verified(result: VerificationResult, *, color: bool = False) -> str:
    """Return a summary of the verified steps, and the first difference."""
    paint = Paint(color)
    lines = []
    if result.recomputed is not None:
        lines += _recomputed_lines(result.address, result.recomputed, paint)
    elif result.equal_steps:
        span = _span((result.equal_steps[0], result.equal_steps[-1]))
        lines.append(f"{result.address}: {count(len(result.equal_steps), 'step')} as recorded ({span}).")
        if result.address.writes_target and result.foreign is None:
            lines.append(_NOT_CHECKED.format(address=result.address))
    elif not result.difference and not result.problems:
        lines.append(_no_steps(f"{result.address} has no steps to verify.", result.never))
    if result.by_rows:
        lines.append(
            f"For {count(len(result.by_rows), 'step')}, only the rows were counted: no hash is recorded."
        )
    if result.unrecorded and result.equal_steps:
        subject = f"no record of {count(len(result.unrecorded), 'step')}"
        lines.append(f"The target keeps {subject} ({_span((result.unrecorded[0], result.unrecorded[-1]))}).")
    if result.difference:
        lines.append(paint(_difference_line(result.address, result.difference), "red"))
    if result.problems:
        lines.append(paint(f"{_problem_counts(result.problems)}.", "red"))
    return "\n".join(lines)


def _problem_counts(problems: Sequence[Diagnostic]) -> str:
    damaged = sum(problem.kind == "damaged" for problem in problems)
    unreplayable = len(problems) - damaged
    parts = [
        f"{count(damaged, 'step')} {'is' if damaged == 1 else 'are'} damaged" if damaged else "",
        f"{count(unreplayable, 'step')} can't be replayed" if unreplayable else "",
    ]
    return ", ".join(part for part in parts if part)


_NOT_CHECKED = (
    "Not checked: rows that others have added, changed or deleted in the target since then. `mzplan "
    "verify {address} --content` compares them, if the target can be read."
)
_CHANGED = " [{code}] The sink was changed at this step: the target may hold it as it was before, or in part."


def _difference_line(address: object, difference: StepDifference) -> str:
    finding = (
        f"{_number(difference.recorded_rows)} rows were recorded, {difference.found_rows:,} were found"
        if difference.found_rows != difference.recorded_rows
        else f"the content of its {difference.found_rows:,} rows has changed"
    )
    return (
        f"Step {difference.step} of {address} differs: {finding} "
        f"(hash {difference.recorded_hash or 'not recorded'} → {difference.found_hash})."
        + (_CHANGED.format(code=difference.code) if difference.code else "")
    )


def _recomputed_to_json(result: RecomputationResult) -> dict[str, Any]:
    """Return the part of `verify --from-upstream --json` about a relational view: numbers of rows."""
    return {
        "as_of": result.step,
        "equal": result.is_equal,
        "rows": {"query": result.expected_rows, "collection": result.collection_rows},
        "missing": result.missing,
        "more": result.more,
        "late": result.late,
        "excused": result.explanation or None,
        "examples": list(result.examples),
        "not_compared": list(result.not_compared),
    }


def _recomputed_lines(address: object, result: RecomputationResult, paint: Paint) -> list[str]:
    """Return lines about the comparison and the differences."""
    subject = f"{address} as of step {result.step}, recomputed from all rows that it has read"
    if result.is_equal:
        lines = [f"{subject}: {count(result.collection_rows, 'row')} as computed."]
    else:
        numbers = (
            f"{count(result.expected_rows, 'row')} computed, {result.collection_rows:,} in its collection; "
            f"{result.missing:,} missing, {result.more:,} extra"
        )
        lines = [f"{subject}: {numbers}.", *(f"  {safe(example)}" for example in result.examples)]
        if result.is_wrong:
            lines = [paint(line, "red") for line in lines]
            if result.late is None:
                lines.append("The view may have dropped late rows; how many isn't known.")
        else:
            lines.append(f"mzplan can't tell whether this is correct. {result.explanation}")
    if result.not_compared:
        columns = ", ".join(map(safe, result.not_compared))
        lines.append(
            f"Not compared: {columns} (sums of floating-point numbers depend on the order of the rows)."
        )
    return lines
