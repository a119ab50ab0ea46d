"""How planning scales: whole processes on projects of 100 to 100,000 resources, on a dry instance.

A project has 1 % connections, 40 % sources and 59 % sinks, in ten files. For each size, the benchmark
measures the plan that creates everything, the plan that changes nothing, and the plan in which a changed
connection restarts 100 sources.

A further project has 30 % SQL views. Its plan changes nothing. The benchmark measures it with the analyses
that the state has recorded, and without them, so that mzplan parses all SQL.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.figures import Table, say
from benchmarks.stage import BenchmarkError, Stage
from mzplan.store.formats import decode_state, encode_state

SIZES = (100, 1_000, 10_000, 100_000)
WITH_VIEWS = 10_000
REACHED = 100


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one process."""

    cpu: float
    """CPU seconds, user and system."""
    memory: float
    """The largest resident size in MiB."""
    output: bytes
    """The process's stdout."""


def measure(stage: Stage) -> Table:
    folder = stage.folder / "plan_scale"
    rows = _ten(folder / "10")
    for size in SIZES[:1] if stage.small else SIZES:
        rows += _all(folder / str(size), size)
    rows += _views(folder / "views", SIZES[0] if stage.small else WITH_VIEWS)
    return Table(("resources", "plan", "CPU s", "MiB", "JSON KB"), rows)


def _ten(folder: Path) -> list[tuple[str, ...]]:
    write_project(folder, 10)
    run(folder, "apply", "--auto-approve")
    before = _row(10, "no change", run(folder, "plan", "--json"))
    move_connection(folder)
    return [before, _row(10, "one connection", run(folder, "plan", "--json"))]


def _all(folder: Path, size: int) -> list[tuple[str, ...]]:
    write_project(folder, size)
    rows = [
        _row(size, "create", run(folder, "plan", "--json")),
        _row(size, "create, and apply (dry)", run(folder, "apply", "--auto-approve", "--json")),
        _row(size, "no change", run(folder, "plan", "--json")),
    ]
    move_connection(folder)
    changed = run(folder, "plan", "--json")
    summary = json.loads(changed.output)["summary"]
    expected = min(REACHED, size * 40 // 100)
    assert (summary["update"], summary["restart"]) == (1, expected), summary
    shutil.rmtree(folder)
    return [*rows, _row(size, f"one connection, {expected} sources restart", changed)]


def _views(folder: Path, size: int) -> list[tuple[str, ...]]:
    views = size * 30 // 100
    write_project(folder, size - views)
    write_views(folder, views, (size - views) * 40 // 100)
    run(folder, "apply", "--auto-approve", "--json")
    state = folder / "state" / "mzplan.state.json"
    recorded = state.read_bytes()
    rows = [_row(size, f"no change, {views:,} are views", run(folder, "plan", "--json"))]
    state.write_bytes(_without_analyses(recorded))
    rows.append(_row(size, f"no change, {views:,} views are parsed", run(folder, "plan", "--json")))
    shutil.rmtree(folder)
    return rows


def _without_analyses(state: bytes) -> bytes:
    committed = decode_state(state, "the state")
    resources = {address: replace(record, analysis="") for address, record in committed.resources.items()}
    return encode_state(replace(committed, resources=resources))


def _row(size: int, what: str, measured: Measured) -> tuple[str, ...]:
    say(f"    {size:>7,} {what:<40} {measured.cpu:8.2f} s of CPU")
    kilobytes = len(measured.output) / 1000
    return (f"{size:,}", what, f"{measured.cpu:.2f}", f"{measured.memory:.0f}", f"{kilobytes:,.1f}")


# Runs a command and writes its CPU time and its memory to a file. It runs in a small process of its own: the
# largest resident size of a child starts at the size of its parent, and ours has imported all benchmarks.
_WATCH = """
import json, os, sys
report, *command = sys.argv[1:]
_, status, usage = os.wait4(os.posix_spawn(command[0], command, os.environ), 0)
with open(report, "w") as file:
    json.dump([usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024], file)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def run(folder: Path, *arguments: str) -> Measured:
    """Run mzplan in its own process, and measure only that process."""
    command = [sys.executable, "-m", "mzplan", "-C", str(folder), *arguments]
    with tempfile.NamedTemporaryFile() as report:
        watched = [sys.executable, "-ISc", _WATCH, report.name, *command]
        done = subprocess.run(watched, capture_output=True)
        if done.returncode != 0:
            raise BenchmarkError(f"{' '.join(command)}: {done.returncode}\n{done.stderr.decode()}")
        cpu, memory = json.load(report)
    return Measured(cpu, memory, done.stdout)


def write_project(folder: Path, size: int) -> None:
    """Write a dry project of `size` resources. The first connection has at most 100 sources."""
    folder.mkdir(parents=True)
    (folder / "mzplan.yaml").write_text("version: 1\nproject: bench\ninstances: {local: {type: dry}}\n")
    schema = "id BIGINT, name STRING, amount DECIMAL(10,2), ts TIMESTAMP"
    connections = max(1, size // 100)
    sources = size * 40 // 100
    sinks = size - connections - sources
    lines = ["connections:"]
    lines += [f'  k{i}: {{type: kafka, brokers: ["broker{i}:9092"]}}' for i in range(connections)]
    (folder / "connections.yaml").write_text("\n".join(lines) + "\n")
    parts = 10 if size >= 1000 else 1
    for part in range(parts):
        lines = ["sources:"]
        for i in range(part, sources, parts):
            user = 0 if i < REACHED else 1 + i % max(1, connections - 1)
            lines += [
                f"  s{i}:",
                f"    connection: k{user % connections}",
                f"    topic: topic_{i}",
                f'    format: {{type: json, schema: "{schema}"}}',
                "    trigger: {interval: 5s}",
            ]
        lines.append("sinks:")
        for i in range(part, sinks, parts):
            lines += [
                f"  t{i}:",
                "    type: console",
                f"    from: s{i % sources}",
                f"    description: sink {i}",
            ]
        (folder / f"part{part}.yaml").write_text("\n".join(lines) + "\n")


def write_views(folder: Path, views: int, sources: int) -> None:
    """Add views to a project: views of single rows, with an aggregation, and with a join, in turns."""
    mark = "{column: ts, delay: 10 minutes}"
    lines = ["views:"]
    for i in range(views):
        one, other = f"s{i % sources}", f"s{(i + 1) % sources}"
        rows = f"SELECT id, upper(name) AS name, amount * {i} AS more FROM {one} WHERE amount > 1"
        sums = (
            f"SELECT name, window(ts, '1 hour').start AS hour, sum(amount) AS total FROM {one} "
            "GROUP BY name, window(ts, '1 hour')"
        )
        join = f"SELECT o.id, o.name, p.amount FROM {one} o JOIN {other} p ON o.id = p.id AND o.ts = p.ts"
        queries = (
            (rows, ""),
            (sums, f"{one}: {mark}"),
            (join, f"{one}: {mark}, {other}: {mark}"),
        )
        query, marks = queries[i % len(queries)]
        lines += [f"  v{i}:", f'    query: "{query}"', *([f"    watermarks: {{{marks}}}"] if marks else [])]
    (folder / "views.yaml").write_text("\n".join(lines) + "\n")


def move_connection(folder: Path) -> None:
    """Change the brokers of the first connection."""
    file = folder / "connections.yaml"
    file.write_text(file.read_text().replace("broker0:9092", "moved0:9092"))
