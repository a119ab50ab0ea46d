"""What the benchmarks on real servers share: a folder with servers, a project, and fair comparisons."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from examples.servers import KafkaBroker, PostgresServer

Side = Callable[[], float]
"""One way of doing a thing, done once; returns its seconds."""


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder, removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="mzplan-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def kafka_at(folder: Path) -> Iterator[KafkaBroker]:
    """A broker of our own, gone with its data afterwards."""
    broker = KafkaBroker(folder / "kafka")
    try:
        broker.start()
        yield broker
    finally:
        broker.remove_data()


@contextlib.contextmanager
def postgres_at(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[PostgresServer]:
    """A PostgreSQL server of our own, gone with its data afterwards."""
    server = PostgresServer(folder / "postgres", settings=settings)
    try:
        server.start()
        yield server
    finally:
        server.remove_data()


def alternate(sides: Mapping[str, Side], rounds: int) -> dict[str, list[float]]:
    """Run the sides in turns (A B A B …): what disturbs the machine meanwhile disturbs all of them."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            taken[name].append(side())
            say(f"    {name:<24} {taken[name][-1]:8.2f} s")
    return taken


def ratio(a: list[float], b: list[float]) -> float:
    """The median of the ratios of neighbours: a slow moment that hits both sides leaves it as it is."""
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def verdict(met: bool) -> str:
    """Before the aim's figure."""
    return f"aim {'met' if met else 'MISSED'}"


def say(text: str) -> None:
    """A line of the report, at once."""
    print(text, flush=True)


def wait_until(what: str, holds: Callable[[], bool], seconds: float = 120.0, look: float = 0.02) -> None:
    """Wait until something holds; ends the benchmark when it does not in time."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            sys.exit(f"not within {seconds:.0f} s: {what}")
        time.sleep(look)


class Project:
    """A folder with a mzplan.yaml, driven by the command line as a person would."""

    def __init__(self, folder: Path, environment: Mapping[str, str]):
        self.folder = folder
        self.environment = {**os.environ, **environment}
        folder.mkdir(parents=True)
        (folder / "mzplan.yaml").write_text("version: 1\nproject: bench\nwarehouse: ./warehouse\n")

    def write(self, name: str, content: Mapping[str, Any]) -> Path:
        """Declare resources in a file of their own (JSON is YAML, too)."""
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(content, indent=1))
        return path

    def run(self, *arguments: str) -> Any:
        """A command's JSON document; anything but success ends the benchmark."""
        command = [sys.executable, "-m", "mzplan", "-C", str(self.folder), *arguments, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment)
        if done.returncode != 0:
            log = self.folder / ".mzplan" / "local.log"
            tail = log.read_text(errors="replace")[-4000:] if log.exists() else ""
            sys.exit(f"mzplan {' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}\n{tail}")
        return json.loads(done.stdout)

    def apply(self) -> Any:
        return self.run("apply", "--auto-approve")

    def queries(self) -> dict[str, dict[str, Any]]:
        """What status says of each query."""
        return {query["address"]: query for query in self.run("status")["queries"]}

    def down(self) -> None:
        """Stop the runner."""
        command = [sys.executable, "-m", "mzplan", "-C", str(self.folder), "down"]
        subprocess.run(command, check=True, capture_output=True, env=self.environment)
