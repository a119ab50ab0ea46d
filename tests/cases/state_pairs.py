"""Pairs of queries in tests/cases/state: a view's query before and after, and what becomes of its state.

A file begins with comments: the verdict, its reason, and the output mode unless it is `update`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mzplan.model.address import Address
from mzplan.model.query_changes import QueryChange
from mzplan.model.state import ResourceState
from mzplan.plan.effects.query_change import query_change
from mzplan.schema.relations.analysis import NAMES, analyse
from mzplan.schema.relations.parse import parse_query
from mzplan.schema.relations.state import describe_state
from mzplan.schema.relations.tree import Input
from mzplan.schema.source_columns import columns_of

FOLDER = Path(__file__).with_name("state")
SCHEMAS = {
    "orders": "id BIGINT, customer STRING, region STRING, amount DECIMAL(10,2), tax DECIMAL(10,2), n INT, "
    "m INT, tags ARRAY<STRING>, ts TIMESTAMP",
    "payments": "order_id BIGINT, customer STRING, paid DECIMAL(10,2), fee DECIMAL(10,2), ts TIMESTAMP",
}
MARK = {"column": "ts", "delay": "0 seconds"}
_SOURCES = {
    Address("source", name): ResourceState(
        address=Address("source", name), id=name, type="local", body={"type": "local", "schema": schema}
    )
    for name, schema in SCHEMAS.items()
}


@dataclass(frozen=True)
class Pair:
    """A query before and after a change, and the verdict on its state."""

    name: str
    state: str
    because: str
    output: str
    before: str
    after: str


def read_pairs() -> list[Pair]:
    """Return the pairs, sorted by name."""
    return [_read(path) for path in sorted(FOLDER.glob("*.sql"))]


def _read(path: Path) -> Pair:
    head, before, _, after = (part.strip() for part in path.read_text(encoding="utf-8").split("\n\n"))
    state, because, *output = (line.removeprefix("-- ") for line in head.splitlines())
    return Pair(path.stem, state, because, output[0].split()[-1] if output else "update", before, after)


def judged(before: str, after: str) -> QueryChange | None:
    """Return what the plan says about a view whose query changes."""
    return query_change(_view(before), _view(after), (_SOURCES, _SOURCES))


def _view(query: str) -> ResourceState:
    parsed = parse_query(query)
    inputs = {n: Input(columns_of("local", {"schema": SCHEMAS[n]}), n, True, "ts") for n in parsed.places}
    body = {"query": query, "reads": list(parsed.places), "watermarks": dict.fromkeys(parsed.places, MARK)}
    if state := analyse(parsed, inputs, body, (*NAMES, describe_state)).state:
        body["state"] = state
    references = {f"reads[{i}]": Address("source", name) for i, name in enumerate(parsed.places)}
    return ResourceState(address=Address("view", "v"), id="v", type="sql", body=body, references=references)
