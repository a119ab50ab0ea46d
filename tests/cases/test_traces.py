"""Traces of current views: by which columns, and with which SQL, affected rows are found.

traces.txt has the inputs, and then each query with its key, and its trace below. `--update-golden` writes the
traces again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mzplan.schema.columns import parse_columns
from mzplan.schema.relations.analysis import trace_of
from mzplan.schema.relations.nodes import QueryError
from mzplan.schema.relations.parse import parse_query
from mzplan.schema.relations.tree import Input

FILE = Path(__file__).with_name("traces.txt")


def test_traces_are_as_written(request: pytest.FixtureRequest) -> None:
    head, *cases = FILE.read_text(encoding="utf-8").split("\n\n")
    inputs = dict(_input(line) for line in head.splitlines()[1:])
    written = "\n\n".join([head, *(_case(case, inputs) for case in cases)]) + "\n"
    if request.config.getoption("--update-golden"):
        FILE.write_text(written, encoding="utf-8")
    assert FILE.read_text(encoding="utf-8") == written


def _input(line: str) -> tuple[str, Input]:
    """Return an input, written as `NAME: COLUMNS`, or as `NAME (KEY): COLUMNS`."""
    name, _, columns = line.partition(": ")
    name, _, key = name.removesuffix(")").partition(" (")
    return name, Input(parse_columns(columns), f"source.{name}", stream=False, key=(key,) if key else ())


def _case(text: str, inputs: dict[str, Input]) -> str:
    sql, key, *_ = text.splitlines()
    body = {"output": "current", "key": key.removeprefix("key: ").split(", ")}
    try:
        trace = trace_of(
            sql, {name: inputs[name] for name in parse_query(sql, over_tables=True).places}, body
        )
    except QueryError as refused:
        return "\n".join([sql, key, f"  refused: {refused.problem}", f"  fix: {refused.hint}"])
    found = [f"  by: {', '.join(trace.keys)}"] if trace.keys else [f"  all rows: {trace.why_full}"]
    return "\n".join([sql, key, *found, *(f"  {one.input}: {one.sql}" for one in trace.affected)])
