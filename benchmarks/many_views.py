"""40 views in one embedded runner: how long they take to start, their memory, and a restart of ten.

Each view aggregates the rows of one Kafka source by minute, so that each has state. The memory is that of
the runner's processes, above a runner with one view.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.figures import Table, say
from benchmarks.many_queries import resident, settled
from benchmarks.stage import Project, Stage
from examples.servers import create_topic, produce_json

TOPIC = "many_views"
SQL = """
SELECT customer, window(ts, '1 minute').start AS minute, sum(amount) AS total, count(*) AS n
FROM orders GROUP BY customer, window(ts, '1 minute')
"""


@dataclass(frozen=True, slots=True)
class Size:
    """The number of views, of the views that restart, and of rows in the topic."""

    views: int
    restarted: int
    rows: int


FULL = Size(views=40, restarted=10, rows=10_000)
SMALL = Size(views=2, restarted=1, rows=100)


def measure(stage: Stage) -> Table:
    size = SMALL if stage.small else FULL
    project = Project(stage.folder / "many_views", {})
    create_topic(stage.kafka.bootstrap, TOPIC)
    rows = [
        {"customer": f"c{n % 50}", "amount": n, "ts": f"2026-11-01T00:{n // 60 % 60:02}:{n % 60:02}Z"}
        for n in range(size.rows)
    ]
    produce_json(stage.kafka.bootstrap, TOPIC, rows)
    try:
        return Table(("what", "figure"), _measure(project, stage.kafka.bootstrap, size))
    finally:
        project.down()


def _measure(project: Project, brokers: str, size: Size) -> list[tuple[str, ...]]:
    _declare(project, brokers, 1)
    project.apply()
    settled(project, 2)
    one = resident(project)
    _declare(project, brokers, size.views)
    began = time.monotonic()
    project.run("apply", "--auto-approve", "--wait", "900s")
    settled(project, size.views + 1)
    started = time.monotonic() - began
    say(f"    all {size.views} views run after {started:.0f} s")
    all_ = resident(project)
    began = time.monotonic()
    project.run("restart", *(f"view.v{n}" for n in range(size.restarted)), "--auto-approve", "--wait", "300s")
    restarted = time.monotonic() - began
    return [
        (f"from 1 to {size.views} views, each past its first micro-batch", f"{started:.1f} s"),
        *(
            (f"memory for each view, {name}", f"{(all_[name] - one[name]) / (size.views - 1):.1f} MiB")
            for name in one
        ),
        *((f"memory in all, {name}", f"{all_[name]:,.0f} MiB") for name in all_),
        (f"`mzplan restart` of {size.restarted} views, until they run", f"{restarted:.1f} s"),
    ]


def _declare(project: Project, brokers: str, views: int) -> None:
    schema = "customer STRING, amount BIGINT, ts TIMESTAMP"
    source = {"connection": "k", "topic": TOPIC, "format": {"type": "json", "schema": schema}}
    view = {
        "query": SQL,
        "watermarks": {"orders": {"column": "ts", "delay": "1 minute"}},
        "trigger": {"interval": "5s"},
    }
    content: dict[str, Mapping[str, Any]] = {
        "connections": {"k": {"type": "kafka", "brokers": [brokers]}},
        "sources": {"orders": source},
        "views": {f"v{n}": view for n in range(views)},
    }
    project.write("queries", content)
