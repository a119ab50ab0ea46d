"""A field of RunFacts is declared once. It is stored and, if it is a measure, shown everywhere."""

from __future__ import annotations

from dataclasses import fields

from mzplan.controller.executor import QueryName, QueryReport
from mzplan.controller.observations import QueryState, observe
from mzplan.controller.reconcile import Decision, Memory
from mzplan.features.ui.resource_page import measures
from mzplan.model.cause import Cause
from mzplan.model.observed import (
    MEASURES,
    RunFacts,
    Status,
    Versions,
    facts_of,
)
from mzplan.model.state import ProjectStatus, QueryStatus
from mzplan.model.tasks import TaskOutcome
from mzplan.render.status import status_to_json
from mzplan.runner.metrics import _HELP
from mzplan.store.formats import decode_status, encode_status
from tests.unit.runner.test_runner import ORDERS, make_state

FACTS = RunFacts(
    step=7,
    input_rows_per_second=1.5,
    processed_rows_per_second=2.5,
    left_out=3,
    resumed={"step": 5, "position": {}},
    run_rows=12,
    written_with=Versions(mzplan="1", spark="2", delta="3", kafka="4"),
    tasks_done=(TaskOutcome(serial=6, text="101 rows", facts={"rows": 101}),),
    started_because=Cause(cause="secret", serial=4, detail="another value", at="2026-11-01T08:00:00Z"),
    batch_seconds=0.25,
    latency_seconds=1.23456,
    state_rows=1234,
    state_bytes=5_500_000,
    watermark_timestamp_seconds=1_767_225_840.5,
    late_rows=1,
)


def test_each_run_fact_reaches_the_status_and_each_measure_every_view() -> None:
    facts = {one.name: getattr(FACTS, one.name) for one in fields(RunFacts)}
    assert all(facts[one.name] != one.default for one in fields(RunFacts)), "each fact needs a test value"
    name = QueryName("shop", ORDERS, 1, "1:aa")
    report = QueryReport(name=name, query_id="q", run_id="r", active=True, triggered=True, **facts)
    decision = Decision(command=None, memory=Memory(), condition="running", run=report)
    seen = observe(ORDERS, QueryState(decision=decision))
    assert facts_of(seen) == facts_of(FACTS)
    status = Status(instance="local", epoch=1, heartbeat=0.0, serial=1, observations={ORDERS: seen})
    assert decode_status(encode_status(status), "it").observations[ORDERS] == seen
    query = QueryStatus(resource=make_state(1).resources[ORDERS], observation=seen)
    (shown,) = status_to_json(ProjectStatus(serial=1, instances=(), queries=(query,)))["queries"]
    titles = dict(measures(seen))
    for field, measure in MEASURES.items():
        key, number = measure.to_json(field, getattr(seen, field))
        assert shown[key] == number
        assert measure.title in titles and _HELP[field] == measure.help
