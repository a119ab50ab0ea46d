"""A changed upstream of a source: in the status while it runs, as drift, and in the plan."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from mzplan.controller.observations import QueryState, observe
from mzplan.controller.reconcile import Decision, Memory
from mzplan.controller.watches import UpstreamWatch
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.schema.description import Description
from tests.unit.cli_runs import run, write

OTHER = Diagnostic(
    code="MZ043", kind="another-upstream", summary="another upstream", detail="topic t was deleted"
)


def source(name: str) -> tuple[Address, Description]:
    address = Address("source", name)
    description = Description(address=address, id=name, generation=1, digest="1:a", type="kafka", body={})
    return address, description


class Watched:
    """A watch of these queries with a manual clock. `found` has the problems of queries."""

    def __init__(self, pool: ThreadPoolExecutor, *queries: tuple[Address, Description]):
        self.queries, self.found = dict(queries), dict[Address, Diagnostic]()
        self.asked: list[tuple[Address, bool]] = []
        self.now, self.pool = 0.0, pool
        self.watch = UpstreamWatch(self.inspect, pool, lambda: self.now, every=60.0)

    def inspect(self, description: Description, with_endpoint: bool) -> tuple[Diagnostic, ...]:
        self.asked.append((description.address, with_endpoint))
        found = self.found.get(description.address) if with_endpoint else None
        return (found,) if found else ()

    def problems_at(self, now: float, rounds: int = 4) -> dict[Address, Diagnostic]:
        self.now = now
        for _ in range(rounds):
            self.watch.poll(self.queries)
            self.pool.submit(lambda: None).result()  # the work that was submitted before is done
        return dict(self.watch.problems)


def test_sources_are_checked_periodically() -> None:
    (a, _), (b, _) = queries = [source("a"), source("b")]
    with ThreadPoolExecutor(1) as pool:
        watched = Watched(pool, *queries)
        assert (watched.problems_at(0.0), watched.problems_at(59.0)) == ({}, {})
        assert watched.asked == []  # the queries' starts have checked them
        watched.found[b] = OTHER
        assert watched.problems_at(61.0) == {b: OTHER}
        assert sorted(watched.asked) == [(a, True), (b, True)]
        watched.found[b] = Diagnostic(code="MZ050", summary="not reached")
        assert watched.problems_at(130.0) == {b: OTHER}  # a dead server proves nothing
        del watched.found[b]
        assert watched.problems_at(200.0) == {}


def test_the_target_of_a_sink_is_checked_less_often() -> None:
    """Each check includes its storage, and every fifth its target. The problem stays in between."""
    (address, description), out = source("a"), Address("sink", "out")
    with ThreadPoolExecutor(1) as pool:
        watched = Watched(pool, (address, description), (out, replace(description, address=out)))
        watched.found[out] = OTHER
        for now in range(0, 400, 10):
            problems = watched.problems_at(now, rounds=1)
    assert watched.asked.count((address, True)) == 6
    assert [whole for asked, whole in watched.asked if asked == out] == [False] * 4 + [True, False]
    assert problems == {out: OTHER}


def test_the_status_of_a_running_query_shows_the_change() -> None:
    decision = Decision(command=None, memory=Memory(), condition="running", run=None)
    seen = observe(Address("source", "a"), QueryState(decision=decision, upstream_problem=OTHER))
    assert (seen.condition, seen.error_code) == ("running", "MZ043")
    assert seen.error == "another upstream. topic t was deleted"


@pytest.mark.parametrize(
    ("policy", "says"),
    [("", None), ("reset-latest", "it continues with records written there from now on")],
)
def test_the_plan_says_what_happens_if_the_upstream_changes(
    tmp_path: Path, policy: str, says: str | None
) -> None:
    folder = write(tmp_path)
    file = folder / "pipeline.yaml"
    if policy:
        file.write_text(file.read_text().replace("topic:", f"on_upstream_change: {policy}, topic:"))
    assert run("-C", str(folder), "apply", "--auto-approve").code == 0
    statement = "ALTER CONNECTION k SET BROKER 'b:9092'"
    document = run("-C", str(folder), "alter", statement, "--dry-run", "--json").json()
    expected = f"source.orders: if the connection now leads to another upstream, {says}"
    assert [d["summary"] for d in document["diagnostics"]] == ([expected] if says else [])
