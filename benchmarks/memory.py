"""Which of the JVM's classes grow while 30 queries run: `python -m benchmarks.memory [MINUTES]`.

Half of the queries are views, seven of them with state, and rows arrive all the time. The program counts the
live objects of the JVM (after a full garbage collection) when all queries run, and again after some minutes.
It prints the classes that grew most, and the process's memory, which also has RocksDB's.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from itertools import count
from typing import Any

from benchmarks.figures import Table, say
from benchmarks.many_queries import java_of, resident, settled
from benchmarks.many_views import SQL
from benchmarks.stage import Project, Stage
from examples.servers import create_topic, produce_json

TOPIC = "memory"
SOURCES, STATEFUL, STATELESS = 15, 7, 8
MINUTES = 20.0
SHOWN = 20  # classes
_LINE = re.compile(r"\s*\d+:\s+\d+\s+(\d+)\s+(\S+)")
_MIB = 1 << 20


def live_objects(pid: int) -> dict[str, int]:
    """Return the bytes of the JVM's live objects by class."""
    shown = subprocess.run(["jmap", "-histo:live", str(pid)], capture_output=True, text=True, check=True)
    matches = filter(None, map(_LINE.match, shown.stdout.splitlines()))
    return {match[2]: int(match[1]) for match in matches}


def measure(stage: Stage, minutes: float) -> Table:
    project, brokers = Project(stage.folder / "memory", {}), stage.kafka.bootstrap
    create_topic(brokers, TOPIC)
    ended = threading.Event()
    load = threading.Thread(target=_produce, args=(brokers, ended))
    load.start()
    try:
        _declare(project, brokers)
        project.run("apply", "--auto-approve", "--wait", "900s")
        settled(project, SOURCES + STATEFUL + STATELESS)
        (java,) = java_of(json.loads((project.folder / "state/leases/local.json").read_text())["pid"])
        before, small = live_objects(java), resident(project)
        say(f"    all queries run; waiting for {minutes:g} minutes")
        time.sleep(60 * minutes)
        after, large = live_objects(java), resident(project)
    finally:
        ended.set()
        load.join()
        project.down()
    memory = [(f"memory, {name}", _mib(small[name]), _mib(large[name])) for name in small]
    heap = ("live objects of the JVM", _mib(sum(before.values()) / _MIB), _mib(sum(after.values()) / _MIB))
    grown = sorted(after, key=lambda name: before.get(name, 0) - after[name])[:SHOWN]
    classes = [(name, _mib(before.get(name, 0) / _MIB), _mib(after[name] / _MIB)) for name in grown]
    return Table(("what", "at first", f"after {minutes:g} minutes"), [*memory, heap, *classes])


def _mib(mib: float) -> str:
    return f"{mib:,.1f} MiB"


def _produce(brokers: str, ended: threading.Event) -> None:
    for second in count():
        if ended.wait(1.0):
            return
        at = f"2026-11-01T{second // 3600 % 24:02}:{second // 60 % 60:02}:{second % 60:02}Z"
        rows = [{"customer": f"c{n}", "amount": n, "ts": at} for n in range(50)]
        produce_json(brokers, TOPIC, rows)


def _declare(project: Project, brokers: str) -> None:
    schema = "customer STRING, amount BIGINT, ts TIMESTAMP"
    every = {"trigger": {"interval": "2s"}}
    source = {"connection": "k", "topic": TOPIC, "format": {"type": "json", "schema": schema}, **every}
    marks = {"orders": {"column": "ts", "delay": "1 minute"}}
    sums = {"query": SQL, "watermarks": marks, **every}
    plain = {"query": "SELECT customer, amount * 2 AS twice FROM orders WHERE amount > 1", **every}
    content: dict[str, Mapping[str, Any]] = {
        "connections": {"k": {"type": "kafka", "brokers": [brokers]}},
        "sources": {"orders": source, **{f"s{n}": source for n in range(1, SOURCES)}},
        "views": {
            **{f"sums{n}": sums for n in range(STATEFUL)},
            **{f"plain{n}": plain for n in range(STATELESS)},
        },
    }
    project.write("queries", content)


if __name__ == "__main__":
    with Stage(small=False) as made:
        print(measure(made, float(sys.argv[1]) if len(sys.argv) > 1 else MINUTES).markdown())
