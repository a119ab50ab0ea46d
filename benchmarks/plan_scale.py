"""How planning scales: whole processes on projects of 100 to 100,000 resources, on a dry instance.

The shape: 1 % connections, 40 % sources, 59 % sinks, spread over ten files. For each size: the plan that
creates everything, the plan that changes nothing, and the plan in which one connection reaches 100 sources.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

SIZES = (100, 1_000, 10_000, 100_000)
REACHED = 100


@dataclass(frozen=True, slots=True)
class Measured:
    """One process: CPU seconds (user and system), the largest resident size in MiB, bytes on stdout."""

    cpu: float
    memory: float
    output: bytes


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="mzplan-bench-"))
    try:
        print(f"{'resources':>9}  {'plan':<22} {'CPU s':>7} {'MiB':>6} {'JSON KB':>8}")
        _small(folder / "small")
        for size in SIZES:
            _measure(folder / str(size), size)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _small(folder: Path) -> None:
    write_project(folder, 10)
    run(folder, "apply", "--auto-approve")
    _row(10, "no change", run(folder, "plan", "--json"))
    move_connection(folder)
    _row(10, "one connection", run(folder, "plan", "--json"))


def _measure(folder: Path, size: int) -> None:
    write_project(folder, size)
    _row(size, "create", run(folder, "plan", "--json"))
    _row(size, "(apply, dry)", run(folder, "apply", "--auto-approve", "--json"))
    _row(size, "no change", run(folder, "plan", "--json"))
    move_connection(folder)
    changed = run(folder, "plan", "--json")
    _row(size, "one connection", changed)
    summary = json.loads(changed.output)["summary"]
    expected = min(REACHED, size * 40 // 100)
    assert (summary["update"], summary["restart"]) == (1, expected), summary
    shutil.rmtree(folder)


def _row(size: int, what: str, measured: Measured) -> None:
    kilobytes = len(measured.output) / 1000
    print(
        f"{size:>9,}  {what:<22} {measured.cpu:>7.2f} {measured.memory:>6.0f} {kilobytes:>8.1f}", flush=True
    )


def run(folder: Path, *arguments: str) -> Measured:
    """Run mzplan as a process of its own, and measure that process alone."""
    command = [sys.executable, "-m", "mzplan", "-C", str(folder), *arguments]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE)
        assert process.stderr is not None
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit(f"{' '.join(command)} ended with {process.returncode}:\n{errors.decode()}")
        output.seek(0)
        return Measured(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, output.read())


def write_project(folder: Path, size: int) -> None:
    """A dry project of so many resources. The first connection has min(100, all) sources."""
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


def move_connection(folder: Path) -> None:
    """The brokers of the first connection move."""
    file = folder / "connections.yaml"
    file.write_text(file.read_text().replace("broker0:9092", "moved0:9092"))


if __name__ == "__main__":
    main()
