"""The results of tests as text, JSON and JUnit's XML."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from mzplan.features.test.comparison import Row, RowDifference
from mzplan.model.words import count
from mzplan.render.diagnostics import diagnostics_to_json
from mzplan.render.text import Paint, aligned_lines, cut, safe

if TYPE_CHECKING:
    from mzplan.features.test.runs import Mismatch, Result

_CELL = 60  # characters
_ROWS = 20  # rows of each kind
_NOUNS = {
    "late_rows": "late rows",
    "violations": "violations",
    "watermark": "watermark",
    "malformed": "malformed records",
    "error": "error",
    "state": "state",
}


def result_line(result: Result, paint: Paint) -> str:
    """Return the line of a test: whether it passed, its name, place and seconds."""
    word = paint("PASS", "green") if result.passed else paint("FAIL", "red")
    where = f"  {_place(result)}" if not result.passed else ""
    return f"{word}  {safe(result.case.name)} ({result.case.address}, {result.seconds:.1f} s){where}"


def failure_lines(result: Result, paint: Paint) -> Iterator[str]:
    """Yield the lines about what a test expected and found."""
    for mismatch in result.mismatches:
        if mismatch.rows is not None:
            yield f"  {_rows_sentence(result, mismatch, mismatch.rows)}"
            yield from (f"    {line}" for line in _table(mismatch.rows, paint))
        else:
            yield f"  {_sentence(mismatch)}"
    for problem in result.problems:
        yield f"  error[{problem.code}]: {safe(problem.summary)}"
        yield from (f"    {safe(text)}" for text in (problem.detail, problem.hint) if text)


def summary_line(results: Sequence[Result], seconds: float) -> str:
    """Return `2 of 3 tests passed in 4.1 s.`"""
    passed = sum(result.passed for result in results)
    which = f"{passed} of {count(len(results), 'test')}" if passed < len(results) else count(passed, "test")
    return f"{which} passed in {seconds:.1f} s."


def results_to_json(results: Sequence[Result]) -> dict[str, Any]:
    """Return the results as the command's document."""
    failed = sum(not result.passed for result in results)
    return {
        "format_version": "1.0",
        "summary": {"passed": len(results) - failed, "failed": failed},
        "tests": [_to_json(result) for result in results],
    }


def junit_xml(results: Sequence[Result]) -> str:
    """Return the results as JUnit's XML, which CI systems show."""
    failed = sum(not result.passed for result in results)
    suite = ElementTree.Element(
        "testsuite", name="mzplan test", tests=str(len(results)), failures=str(failed), errors="0"
    )
    suite.set("time", f"{sum(result.seconds for result in results):.3f}")
    for result in results:
        place = result.case.range
        case = ElementTree.SubElement(
            suite, "testcase", name=safe(result.case.name), classname=str(result.case.address)
        )
        case.set("time", f"{result.seconds:.3f}")
        if place is not None:
            case.set("file", place.path)
            case.set("line", str(place.line))
        if not result.passed:
            lines = [line.strip("\n") for line in failure_lines(result, Paint(False))]
            failure = ElementTree.SubElement(case, "failure", message=lines[0].strip() if lines else "")
            failure.text = "\n".join(lines)
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(suites, encoding="unicode")}\n'


def _place(result: Result) -> str:
    return str(result.case.range) if result.case.range is not None else ""


def _to_json(result: Result) -> dict[str, Any]:
    place = result.case.range
    return {
        "name": result.case.name,
        "address": str(result.case.address),
        "file": place.path if place is not None else None,
        "line": place.line if place is not None else None,
        "passed": result.passed,
        "seconds": round(result.seconds, 3),
        "failures": [_mismatch_to_json(mismatch) for mismatch in result.mismatches],
        "diagnostics": diagnostics_to_json(result.problems),
    }


def _mismatch_to_json(mismatch: Mismatch) -> dict[str, Any]:
    head = {"expectation": mismatch.subject, "step": mismatch.step}
    if mismatch.rows is None:
        return {**head, "expected": mismatch.expected, "found": mismatch.found}
    return {
        **head,
        "columns": list(mismatch.rows.columns),
        "missing": list(mismatch.rows.missing),
        "unexpected": list(mismatch.rows.unexpected),
        "changed": [
            {"expected": row.expected, "found": row.found, "columns": list(row.columns)}
            for row in mismatch.rows.changed
        ],
    }


def _after(mismatch: Mismatch) -> str:
    return f" after step {mismatch.step}" if mismatch.step is not None else ""


def _sentence(mismatch: Mismatch) -> str:
    noun = _NOUNS[mismatch.subject]
    return f"{noun}{_after(mismatch)}: expected {safe(mismatch.expected)}, found {safe(mismatch.found)}"


def _rows_sentence(result: Result, mismatch: Mismatch, rows: RowDifference) -> str:
    numbers = [
        f"{number} {word}"
        for number, word in (
            (len(rows.missing), "missing (-)"),
            (len(rows.unexpected), "unexpected (+)"),
            (len(rows.changed), "different (~ expected → found)"),
        )
        if number
    ]
    return f"rows of {result.case.address}{_after(mismatch)}: {', '.join(numbers)}"


def _table(rows: RowDifference, paint: Paint) -> list[str]:
    """Return a table with a sign before each row."""
    lines: list[tuple[str, list[str]]] = [("", ["", *map(safe, rows.columns)])]
    for changed in rows.changed[:_ROWS]:
        cells = [
            f"{_cell(changed.expected[name])} → {_cell(changed.found[name])}"
            if name in changed.columns
            else _cell(changed.expected[name])
            for name in rows.columns
        ]
        lines.append(("yellow", ["~", *cells]))
    for sign, colour, listed in (("-", "red", rows.missing), ("+", "green", rows.unexpected)):
        lines += [(colour, [sign, *_cells(row, rows.columns)]) for row in listed[:_ROWS]]
    shown = aligned_lines([cells for _, cells in lines])
    painted = [paint(line, colour or "bold").rstrip() for line, (colour, _) in zip(shown, lines, strict=True)]
    more = sum(max(0, len(listed) - _ROWS) for listed in (rows.changed, rows.missing, rows.unexpected))
    return [*painted, *([f"… {count(more, 'more row')}"] if more else [])]


def _cells(row: Row, columns: Sequence[str]) -> list[str]:
    return [_cell(row[name]) for name in columns]


def _cell(value: Any) -> str:
    if value is None:
        return "NULL"
    return cut(safe(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)), _CELL)
