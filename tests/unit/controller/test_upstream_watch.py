"""A changed upstream of a source: in the status while it runs, as drift, and in the plan."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from mzplan.controller.executor import CheckResult
from mzplan.controller.memory import InMemoryExecutor
from mzplan.controller.observations import QueryState, observe
from mzplan.controller.reconcile import Decision, Memory
from mzplan.controller.watches import UpstreamWatch
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.schema.description import Description
from mzplan.secrets.references import Secrets
from tests.unit.cli_runs import run, write

OTHER = Diagnostic(
    code="MZ043", kind="another-upstream", summary="another upstream", detail="topic t was deleted"
)


def source(name: str) -> tuple[Address, Description]:
    address = Address("source", name)
    description = Description(address=address, id=name, generation=1, digest="1:a", type="kafka", body={})
    return address, description


def test_sources_are_checked_periodically_one_at_a_time() -> None:
    asked: list[str] = []
    found: dict[str, Diagnostic] = {}

    def check(description: Description) -> CheckResult:
        asked.append(description.address.name)
        bad = found.get(description.address.name)
        return CheckResult(diagnostics=(bad,) if bad else ())

    def inspect(description: Description, with_endpoint: bool) -> tuple[Diagnostic, ...]:
        return executor.check(description, Secrets(".")).diagnostics

    executor, now = InMemoryExecutor("shop"), [0.0]
    executor.check_result = check
    running = dict([source("a"), source("b")])
    with ThreadPoolExecutor(1) as pool:
        watch = UpstreamWatch(inspect, pool, lambda: now[0], every=60.0)

        def round_() -> None:
            watch.poll(running)
            pool.submit(lambda: None).result()  # the work that was submitted before is done

        round_()
        now[0] = 59.0
        round_()
        assert asked == []  # their starts have checked
        now[0], found["b"] = 61.0, OTHER
        for _ in range(4):
            round_()
        assert sorted(asked) == ["a", "b"]
        assert watch.problems == {Address("source", "b"): OTHER}
        found["b"] = Diagnostic(code="MZ050", summary="not reached")
        now[0] = 130.0
        for _ in range(4):
            round_()
        assert watch.problems == {Address("source", "b"): OTHER}  # a dead server proves nothing
        del found["b"]
        now[0] = 200.0
        for _ in range(4):
            round_()
        assert watch.problems == {}


def test_the_target_of_a_sink_is_checked_less_often() -> None:
    asked: list[tuple[str, bool]] = []

    def inspect(description: Description, with_endpoint: bool) -> tuple[Diagnostic, ...]:
        asked.append((str(description.address), with_endpoint))
        return (OTHER,) if with_endpoint and description.address.kind == "sink" else ()

    now = [0.0]
    address, description = source("a")
    out = Address("sink", "out")
    running = {address: description, out: replace(description, address=out)}
    with ThreadPoolExecutor(1) as pool:
        watch = UpstreamWatch(inspect, pool, lambda: now[0], every=60.0)
        for now[0] in range(0, 400, 10):
            watch.poll(running)
            pool.submit(lambda: None).result()
    assert asked.count(("source.a", True)) == 6
    # Each check includes its storage, and every fifth its target. The problem stays in between.
    assert [whole for name, whole in asked if name == "sink.out"] == [False] * 4 + [True, False]
    assert watch.problems == {out: OTHER}


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
    told = [d["summary"] for d in document["diagnostics"]]
    if says is None:
        assert told == []
    else:
        assert told == [f"source.orders: if the connection now leads to another upstream, {says}"]
