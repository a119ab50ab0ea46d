"""Reads the files in the folder of tests, and checks them against the project's queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mzplan.config.checks.schema_check import BodyCheck
from mzplan.config.documents import Document
from mzplan.config.findings import Findings, Location, Path
from mzplan.config.locations import diagnose, ranges_of
from mzplan.config.project_files import test_files
from mzplan.config.yaml.parser import load
from mzplan.features.test.cases import Case, ExpectedStep, Step
from mzplan.features.test.given_records import read_records
from mzplan.features.test.written_rows import FILE, WrittenRows, expected_rows, given_rows, read_rows
from mzplan.model.address import Address, Kind
from mzplan.model.diagnostics import MzplanError
from mzplan.model.resources import Resource, inlined_view
from mzplan.model.times import instant
from mzplan.model.words import did_you_mean
from mzplan.plan.commit import declared_records
from mzplan.schema.columns import Column
from mzplan.schema.description import Description, describe
from mzplan.schema.expectations import expectations_of
from mzplan.schema.source_columns import columns_of, keys_of

_SCHEMA = "test"
_KINDS: tuple[Kind, ...] = ("view", "sink", "source")
# Keys that belong only to tests of some kinds, with the reason.
_ONLY: Mapping[tuple[str, ...], tuple[tuple[Kind, ...], str]] = {
    ("given",): (("view", "sink"), "A source has no inputs; write its `records`."),
    ("records",): (("source",), "Only a source reads records; write the rows of its inputs in `given`."),
    ("expect", "malformed"): (("source",), "Only records can be malformed."),
    ("expect", "after"): (("view", "sink"), "All records of a source are parsed at once."),
    ("expect", "late_rows"): (("view",), "Only a view with a watermark drops late rows."),
    ("expect", "violations"): (("view", "source"), "Only sources and views have expectations."),
    ("expect", "watermark"): (("view",), "Only a view has a watermark."),
    ("expect", "state"): (("view",), "Only a view keeps state."),
}


def read_cases(directory: str, resources: Mapping[Address, Resource]) -> tuple[Case, ...]:
    """Return the tests of a project, in the order of their files. `resources`: of its configuration.

    Raises MzplanError with every mistake in any file.
    """
    findings = Findings()
    reader = _Reader(findings, resources)
    for file in test_files(directory, findings):
        document = load(file, findings)
        if document is not None:
            reader.read(document)
    if findings:
        raise MzplanError(diagnose(findings))
    ranges = ranges_of([place for place, _ in reader.cases])
    return tuple(replace(case, range=range) for (_, case), range in zip(reader.cases, ranges, strict=True))


def descriptions(resources: Mapping[Address, Resource]) -> Mapping[Address, Description]:
    """Return the description of each query of a configuration, with made-up ids."""
    records = declared_records(resources)
    return {address: describe(records[address], records) for address in records if not address.is_connection}


class _Reader:
    """Reads one file after the other. `cases`: each test, with the place of its name."""

    def __init__(self, findings: Findings, resources: Mapping[Address, Resource]):
        self._findings, self._resources = findings, resources
        self._descriptions = descriptions(resources)
        self._places: dict[str, Location] = {}
        self.cases: list[tuple[Location, Case]] = []

    def read(self, document: Document) -> None:
        data = document.data
        tests = data.get("tests") if isinstance(data, dict) else None
        if not isinstance(data, dict) or not isinstance(tests, dict) or len(data) > 1:
            where = Location(document.file, ("tests",) if tests is not None else ())
            unknown = next((key for key in data if key != "tests"), None) if isinstance(data, dict) else None
            if unknown is not None:
                where = Location(document.file, (unknown,), at_key=True)
            value = tests if isinstance(data, dict) and list(data) == ["tests"] else data
            self._findings.add("MZ350.no-mapping", where, path=document.file.path, data=value)
            return
        for name, body in tests.items():
            path: Path = ("tests", name)
            here = Location(document.file, path, at_key=True)
            if name in self._places:
                self._findings.add("MZ350.twice", here, related=self._places[name], name=name)
                continue
            self._places[name] = here
            self._read_case(_Entry(document, path, self._findings), name, body)

    def _read_case(self, entry: _Entry, name: str, body: Any) -> None:
        if not isinstance(body, dict):
            how = "write `{view: NAME, given: {…}, expect: {…}}`."
            self._findings.add("MZ350.test", entry.location(()), name=name, value=body, how=how)
            return
        check = BodyCheck(self._findings, entry.location, f"tests.{name}")
        before = self._findings.total
        check.report(_SCHEMA, body)
        if self._findings.total > before:
            return
        description = self._description(entry, name, body)
        if description is None or not self._has_only_own_keys(entry, description.address.kind, body):
            return
        case = _CaseReader(entry, description, self._findings).read(name, body)
        self.cases.append((entry.location((), True), case))

    def _description(self, entry: _Entry, name: str, body: Mapping[str, Any]) -> Description | None:
        """Return the query of a test; None if that isn't possible, after reporting why."""
        given = [kind for kind in _KINDS if kind in body]
        if len(given) != 1:
            self._findings.add("MZ350.which", entry.location((), True), name=name, given=given)
            return None
        address = Address(given[0], body[given[0]])
        if address in self._descriptions:
            return self._descriptions[address]
        place = entry.location((address.kind,), False)
        if (inlined := inlined_view(address, self._resources)) is not None:
            self._findings.add("MZ350.inlined", place, why=inlined[0], address=address)
            return None
        near = did_you_mean(address.name, (a.name for a in self._descriptions if a.kind == address.kind))
        self._findings.add("MZ350.unknown-query", place, kind_=address.kind, name=address.name, near=near)
        return None

    def _has_only_own_keys(self, entry: _Entry, kind: Kind, body: Mapping[str, Any]) -> bool:
        before = self._findings.total
        for path, (kinds, why) in _ONLY.items():
            holder = body if len(path) == 1 else body[path[0]]
            if path[-1] in holder and kind not in kinds:
                place = entry.location(path, True)
                self._findings.add("MZ350.not-here", place, key=".".join(path), kind_=kind, why=why)
        return self._findings.total == before


@dataclass(frozen=True, slots=True)
class _Entry:
    """The place of a test in its file."""

    document: Document
    path: Path
    findings: Findings

    def location(self, path: Path, at_key: bool = False) -> Location:
        return Location(self.document.file, (*self.path, *path), at_key)

    def rows(self, value: Any, path: Path) -> WrittenRows:
        return read_rows(self.document, value, (*self.path, *path), self.findings)


class _CaseReader:
    """Reads one test whose query is known."""

    def __init__(self, entry: _Entry, description: Description, findings: Findings):
        self._entry, self._description, self._findings = entry, description, findings

    def read(self, name: str, body: Mapping[str, Any]) -> Case:
        expect = body["expect"]
        steps = self._steps(body.get("given", {}))
        records = read_records(
            body.get("records", []), lambda path: self._entry.location(("records", *path)), self._findings
        )
        after = self._after(expect.get("after", {}), len(steps))
        finally_ = self._expected(expect, ("expect",))
        malformed = expect.get("malformed")
        return Case(
            name=name,
            description=self._description,
            steps=steps,
            records=records,
            finally_=finally_,
            after=after,
            malformed=tuple(malformed) if isinstance(malformed, list) else malformed,
            error=expect.get("error", ""),
            state=expect.get("state"),
        )

    def _steps(self, given: Mapping[str, Any]) -> tuple[Step, ...]:
        """Return the rows of each step."""
        inputs = self._description.inputs
        lists: dict[str, list[tuple[Any, Path]]] = {}
        for name, value in given.items():
            if name in inputs:
                lists[name] = list(_step_values(value, ("given", name)))
                continue
            self._findings.add(
                "MZ350.unknown-input",
                self._entry.location(("given", name), True),
                address=self._description.address,
                name=name,
                inputs=list(inputs),
                near=did_you_mean(name, inputs),
            )
        return tuple(
            {name: self._given(name, *values[index]) for name, values in lists.items() if index < len(values)}
            for index in range(max(map(len, lists.values()), default=0))
        )

    def _given(self, name: str, value: Any, path: Path) -> tuple[Any, ...]:
        read = self._description.inputs[name]
        columns, keys = columns_of(read.type, read.body), keys_of(read.type, read.body)
        return given_rows(self._entry.rows(value, path), columns, keys, self._findings, name)

    def _after(self, written: Mapping[str, Any], steps: int) -> dict[int, ExpectedStep]:
        after: dict[int, ExpectedStep] = {}
        for key, value in written.items():
            path = ("expect", "after", key)
            if not key.isdecimal() or not 1 <= int(key) <= steps:
                self._findings.add("MZ350.no-step", self._entry.location(path, True), step=key, steps=steps)
                continue
            is_whole = isinstance(value, dict) and list(value) != [FILE]
            after[int(key)] = (
                self._expected(value, path) if is_whole else ExpectedStep(rows=self._rows(value, path))
            )
        return after

    def _expected(self, written: Mapping[str, Any], path: Path) -> ExpectedStep:
        rows = self._rows(written["rows"], (*path, "rows")) if "rows" in written else None
        watermark = written.get("watermark")
        mark = _time(watermark) if watermark is not None else None
        if watermark is not None and mark is None:
            self._findings.add(
                "MZ350.row",
                self._entry.location((*path, "watermark")),
                column="watermark",
                problem=f"is {watermark!r}, not a time such as '2026-01-31 12:00:00'",
                where="",
            )
        violations = written.get("violations", {})
        self._check_violations(violations, (*path, "violations"))
        return ExpectedStep(
            rows=rows, late_rows=written.get("late_rows"), watermark=mark, violations=violations
        )

    def _check_violations(self, violations: Mapping[str, int], path: Path) -> None:
        """Report names that aren't those of the query's expectations."""
        names = [expectation.name for expectation in expectations_of(self._description.body)]
        for name in violations:
            if name not in names:
                self._findings.add(
                    "MZ350.unknown-expectation",
                    self._entry.location((*path, name), True),
                    address=self._description.address,
                    name=name,
                    names=names,
                    near=did_you_mean(name, names),
                )

    def _rows(self, value: Any, path: Path) -> WrittenRows:
        """Return expected rows, checked against the columns if Spark isn't needed to know them."""
        rows = self._entry.rows(value, path)
        columns = self._columns()
        if columns:
            expected_rows(rows, columns, self._findings, str(self._description.address))
        return rows

    def _columns(self) -> tuple[Column, ...]:
        """Return the columns of the query's rows; () for a sink."""
        if not self._description.address.writes_collection:
            return ()
        return columns_of(self._description.type, self._description.body)


def _step_values(value: Any, path: Path) -> Iterable[tuple[Any, Path]]:
    """Yield the rows of each step of an input, with their path."""
    is_one_step = isinstance(value, dict) or (
        any(isinstance(item, dict) and list(item) != [FILE] for item in value)
    )
    if is_one_step:
        yield value, path
    else:
        yield from ((item, (*path, index)) for index, item in enumerate(value))


def _time(text: str) -> int | None:
    """Return a time in milliseconds since the epoch, without a zone in UTC; None for another text."""
    with_zone = instant(text)
    return with_zone if with_zone is not None else instant(f"{text}Z")
