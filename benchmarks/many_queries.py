"""200 queries on one embedded runner: the cost to run them idle, and to show their status.

100 Kafka sources read one topic, and each has a Delta sink. When all of them have done their first
micro-batch and are idle, the benchmark measures:

- round: one round of the runner (follow the store, compare, report), from /metrics; aim: at most 1 s.
- status: `mzplan status --json`, from the start of the process to its end; aim: at most 1 s.
- memory: resident size of the runner's processes (Python, JVM), above the size of a runner with two queries.
"""

from __future__ import annotations

import json
import re
import statistics
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import Table, say, verdict
from benchmarks.stage import Project, Stage, wait_until
from examples.servers import create_topic, produce_json
from examples.servers.ports import HOST, free_port

TOPIC = "many_queries"


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the benchmark."""

    pairs: int
    """Pairs of a source and its sink."""
    trigger: str
    looks: int
    """Measurements of each figure."""
    rest_s: float
    """Seconds without work before the measurements."""


FULL = Size(pairs=100, trigger="10s", looks=20, rest_s=15.0)
SMALL = Size(pairs=2, trigger="500ms", looks=2, rest_s=1.0)


def measure(stage: Stage) -> Table:
    size = SMALL if stage.small else FULL
    brokers = stage.kafka.bootstrap
    port = free_port()
    project = Project(stage.folder / "many_queries", {})
    settings = project.folder / "mzplan.yaml"
    settings.write_text(
        settings.read_text() + f"instances: {{local: {{type: embedded, metrics: {{port: {port}}}}}}}\n"
    )
    create_topic(brokers, TOPIC)
    produce_json(brokers, TOPIC, [{"id": n} for n in range(100)], key="id")
    try:
        return Table(("what", "figure", "aim"), _measure(project, brokers, port, size))
    finally:
        project.down()


def _measure(project: Project, brokers: str, port: int, size: Size) -> list[tuple[str, ...]]:
    _declare(project, brokers, 1, size.trigger)
    project.apply()
    settled(project, 2)
    few = resident(project)
    _declare(project, brokers, size.pairs, size.trigger)
    began = time.monotonic()
    project.run("apply", "--auto-approve", "--wait", "600s")
    settled(project, 2 * size.pairs)
    grown = time.monotonic() - began
    say(f"    all {2 * size.pairs} queries run after {grown:.0f} s")
    time.sleep(size.rest_s)
    rounds, statuses = [], []
    for _ in range(size.looks):
        time.sleep(0.5)
        rounds.append(_round_seconds(port))
        began = time.monotonic()
        project.run("status")
        statuses.append(time.monotonic() - began)
    many = resident(project)
    each = {name: (many[name] - few[name]) / (2 * size.pairs - 2) for name in few}
    return [
        _timed("a look at all queries that finds nothing to do", rounds),
        _timed("`mzplan status --json`, from starting the process to its end", statuses),
        *((f"memory for each query, {name}", f"{mib:.1f} MiB", "") for name, mib in each.items()),
        *((f"memory in all, {name}", f"{many[name]:,.0f} MiB", "") for name in many),
        (f"from 2 to {2 * size.pairs} queries, each past its first micro-batch", f"{grown:.0f} s", ""),
    ]


def _timed(what: str, taken: list[float]) -> tuple[str, ...]:
    middle = statistics.median(taken)
    return (what, f"{middle:.3f} s (at most {max(taken):.3f})", verdict("1 s", middle <= 1.0))


def _declare(project: Project, brokers: str, pairs: int, interval: str) -> None:
    trigger = {"interval": interval}
    source = {
        "connection": "k",
        "topic": TOPIC,
        "format": {"type": "json", "schema": "id BIGINT"},
        "trigger": trigger,
    }
    sink = {"connection": "lake", "trigger": trigger}
    content: dict[str, Mapping[str, Any]] = {
        "connections": {
            "k": {"type": "kafka", "brokers": [brokers]},
            "lake": {"type": "files", "path": "./lake"},
        },
        "sources": {f"s{n}": source for n in range(pairs)},
        "sinks": {f"d{n}": {**sink, "from": f"s{n}", "type": "delta", "path": f"d{n}"} for n in range(pairs)},
    }
    project.write("queries", content)


def settled(project: Project, queries: int) -> None:
    """Wait until exactly this number of queries runs, each past its first micro-batch."""

    def all_run() -> bool:
        seen = project.queries().values()
        return len(seen) == queries and all(q["condition"] == "running" and q["step"] >= 0 for q in seen)

    wait_until(f"{queries} queries run", all_run, seconds=900.0, look=min(2.0, queries * 0.1))


def _round_seconds(port: int) -> float:
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=10) as answer:
        found = re.search(r"^mzplan_instance_round_seconds\{[^}]*\} (\S+)", answer.read().decode(), re.M)
    assert found is not None
    return float(found[1])


def resident(project: Project) -> dict[str, float]:
    """Return the resident MiB of the runner's Python process, and of the JVM that it has started."""
    lease = json.loads((project.folder / "state" / "leases" / "local.json").read_text())
    pid = int(lease["pid"])
    return {"Python": _rss(pid), "JVM": sum(map(_rss, java_of(pid)))}


def java_of(pid: int) -> list[int]:
    """Return the process ids of the JVMs that a process has started."""
    children: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():  # any thread may have started it
        with suppress(FileNotFoundError):  # the thread has ended
            children += map(int, (thread / "children").read_text().split())
    return [one for one in children if "java" in Path(f"/proc/{one}/comm").read_text()]


def _rss(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0
