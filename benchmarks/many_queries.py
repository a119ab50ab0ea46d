"""200 queries on one embedded runner: what it costs to keep them, and to ask for them.

100 Kafka sources of one topic, and a Delta sink of each. When all of them have done their first micro-batch
and nothing is left to do:

- round: the runner's look at everything (follow the store, compare, report), from /metrics; aim: at most 1 s.
- status: `mzplan status --json`, from starting the process to its end; aim: at most 1 s.
- memory: resident size of the runner's processes (Python, JVM) beyond that of a runner with two queries.
"""

from __future__ import annotations

import json
import re
import statistics
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.stage import Project, kafka_at, say, scratch, verdict, wait_until
from examples.servers import KafkaBroker, create_topic, produce_json
from examples.servers.ports import HOST, free_port

PAIRS = 100
ROUNDS = 20


def main() -> None:
    say(f"many_queries: {2 * PAIRS} queries")
    with scratch() as folder, kafka_at(folder) as kafka:
        port = free_port()
        project = Project(folder / "project", {})
        settings = project.folder / "mzplan.yaml"
        settings.write_text(
            settings.read_text() + f"instances: {{local: {{type: embedded, metrics: {{port: {port}}}}}}}\n"
        )
        try:
            _measure(project, kafka, port)
        finally:
            project.down()


def _measure(project: Project, kafka: KafkaBroker, port: int) -> None:
    create_topic(kafka.bootstrap, "t")
    produce_json(kafka.bootstrap, "t", [{"id": n} for n in range(100)], key="id")
    _declare(project, kafka, 1)
    project.apply()
    _settled(project, 2)
    few = _resident(project)
    _declare(project, kafka, PAIRS)
    began = time.monotonic()
    project.run("apply", "--auto-approve", "--wait", "600s")
    _settled(project, 2 * PAIRS)
    say(f"  from 2 to {2 * PAIRS} queries, each past a first micro-batch: {time.monotonic() - began:.0f} s")
    time.sleep(15.0)
    rounds, statuses = [], []
    for _ in range(ROUNDS):
        time.sleep(0.5)
        rounds.append(_round_seconds(port))
        began = time.monotonic()
        project.run("status")
        statuses.append(time.monotonic() - began)
    for name, taken in (("round", rounds), ("status", statuses)):
        middle = statistics.median(taken)
        say(f"  {name:<8} {middle:6.3f} s (at most {max(taken):.3f}); {verdict(middle <= 1.0)}: 1 s")
    many = _resident(project)
    for name in few:
        each = (many[name] - few[name]) / (2 * PAIRS - 2)
        say(f"  {name:<8} {many[name]:6.0f} MiB, {each:.1f} MiB for each query")


def _declare(project: Project, kafka: KafkaBroker, pairs: int) -> None:
    source = {
        "connection": "k",
        "topic": "t",
        "format": {"type": "json", "schema": "id BIGINT"},
        "trigger": {"interval": "10s"},
    }
    sink = {"connection": "lake", "trigger": {"interval": "10s"}}
    content: dict[str, Mapping[str, Any]] = {
        "connections": {
            "k": {"type": "kafka", "brokers": [kafka.bootstrap]},
            "lake": {"type": "files", "path": "./lake"},
        },
        "sources": {f"s{n}": source for n in range(pairs)},
        "sinks": {f"d{n}": {**sink, "from": f"s{n}", "type": "delta", "path": f"d{n}"} for n in range(pairs)},
    }
    project.write("queries", content)


def _settled(project: Project, queries: int) -> None:
    def settled() -> bool:
        seen = project.queries().values()
        return len(seen) == queries and all(q["condition"] == "running" and q["step"] >= 0 for q in seen)

    wait_until(f"{queries} queries run", settled, seconds=900.0, look=2.0)


def _round_seconds(port: int) -> float:
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=10) as answer:
        found = re.search(r"^mzplan_instance_round_seconds\{[^}]*\} (\S+)", answer.read().decode(), re.M)
    assert found is not None
    return float(found[1])


def _resident(project: Project) -> dict[str, float]:
    """MiB of the runner's Python process, and of the JVM that it has started."""
    lease = json.loads((project.folder / "state" / "leases" / "local.json").read_text())
    pid = int(lease["pid"])
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    java = [c for c in children if "java" in Path(f"/proc/{c}/comm").read_text()]
    return {"python": _rss(pid), "jvm": sum(_rss(int(one)) for one in java)}


def _rss(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0
