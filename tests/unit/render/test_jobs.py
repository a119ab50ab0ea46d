"""`status --jobs` lists what runners do in the background."""

from __future__ import annotations

from mzplan.model.observed import JobReport
from mzplan.model.state import InstanceStatus, ProjectStatus
from mzplan.render.resumption import render_jobs
from mzplan.render.status_json import status_to_json


def test_jobs_are_listed_by_instance_with_their_age() -> None:
    jobs = (
        JobReport(kind="start", key="sink.orders_pg", since=988.0, is_running=True),
        JobReport(kind="release", key="s1 g2", since=400.0, is_running=False),
    )
    common = {"epoch": 1, "heartbeat": 1000.0, "serial": 3}
    status = ProjectStatus(
        serial=3,
        instances=(
            InstanceStatus(name="a", alive=True, jobs=jobs, **common),  # type: ignore[arg-type]
            InstanceStatus(name="b", alive=True, **common),  # type: ignore[arg-type]
            InstanceStatus(name="c", alive=False, **common),  # type: ignore[arg-type]
        ),
        queries=(),
    )
    assert render_jobs(status, now=1000.0) == (
        "Instance a: 1 running, 1 waiting\n"
        "  JOB                           OF              SINCE\n"
        "  start or stop                 sink.orders_pg  12 s\n"
        "  remove objects on the server  s1 g2           waiting for 10 min\n"
        "Instance b: no job takes longer than a moment\n"
        "Instance c: no runner is alive\n"
    )
    shown = [instance.get("jobs") for instance in status_to_json(status)["instances"]]
    assert shown[1:] == [None, None]
    assert [(job["kind"], job["key"], job["is_running"]) for job in shown[0]] == [
        ("start", "sink.orders_pg", True),
        ("release", "s1 g2", False),
    ]
