"""The servers, the Spark session and the project of a benchmark. Servers start on first use."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.engine import Engine
from examples.servers import KafkaBroker, PostgresServer
from mzplan.spark.process.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# With the default of 128 MB, every writer waits for the disk, at times that make rounds incomparable.
POSTGRES = {"shared_buffers": "1GB", "max_wal_size": "8GB"}
# The JDBC driver for the comparison, beside mzplan's own jars. A running JVM can't load more jars.
SPARK = {"spark.jars.packages": "org.postgresql:postgresql:42.7.4"}

# Fast compilation with less optimization. A small run mostly starts JVMs, and so takes two thirds of the CPU.
HASTY_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"


class BenchmarkError(Exception):
    """A benchmark can't continue: a wait timed out, or a command failed."""


class Stage:
    """The servers and folders of a benchmark, made on first use, and deleted with their data afterwards.

    `small`: only check that the benchmark still runs. Benchmarks then share a stage, one after the other, so
    topics, databases and folders are named after the benchmark.
    """

    def __init__(self, *, small: bool):
        self.small = small
        if small:
            os.environ.setdefault("JAVA_TOOL_OPTIONS", HASTY_JAVA)
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *problem: object) -> None:
        self._exits.close()

    @cached_property
    def folder(self) -> Path:
        made = Path(tempfile.mkdtemp(prefix="mzplan-bench-"))
        self._exits.callback(shutil.rmtree, made, ignore_errors=True)
        return made

    @cached_property
    def kafka(self) -> KafkaBroker:
        broker = KafkaBroker(self.folder / "kafka")
        self._exits.callback(broker.remove_data)
        broker.start()
        return broker

    @cached_property
    def postgres(self) -> PostgresServer:
        server = PostgresServer(self.folder / "postgres", settings=POSTGRES)
        self._exits.callback(server.remove_data)
        server.start()
        return server

    @cached_property
    def spark(self) -> SparkSession:
        """Return a session in this process, with a runner's settings."""
        session = open_session("bench", SPARK)
        self._exits.callback(session.stop)
        return session

    @cached_property
    def engine(self) -> Engine:
        """Return the engine that runs single mzplan queries in that session."""
        return self._exits.enter_context(Engine(self.folder / "engine", self.spark))


class Project:
    """A folder with a mzplan.yaml, on which the benchmark runs mzplan's commands."""

    def __init__(self, folder: Path, environment: Mapping[str, str]):
        self.folder = folder
        self.environment = {**os.environ, **environment}
        folder.mkdir(parents=True)
        (folder / "mzplan.yaml").write_text("version: 1\nproject: bench\nwarehouse: ./warehouse\n")

    def write(self, name: str, content: Mapping[str, Any]) -> Path:
        """Write resources to a file, and return its path. JSON is also YAML."""
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(content, indent=1))
        return path

    def run(self, *arguments: str) -> Any:
        """Run a command, and return its JSON document. Raises BenchmarkError if it fails."""
        command = [sys.executable, "-m", "mzplan", "-C", str(self.folder), *arguments, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment)
        if done.returncode != 0:
            log = self.folder / ".mzplan" / "local.log"
            tail = log.read_text(errors="replace")[-4000:] if log.exists() else ""
            said = f"{done.stdout}\n{done.stderr}\n{tail}"
            raise BenchmarkError(f"mzplan {' '.join(arguments)}: {done.returncode}\n{said}")
        return json.loads(done.stdout)

    def apply(self) -> Any:
        return self.run("apply", "--auto-approve")

    def queries(self) -> dict[str, dict[str, Any]]:
        """Return each query's entry in `mzplan status`, by address."""
        return {query["address"]: query for query in self.run("status")["queries"]}

    def down(self) -> None:
        """Stop the runner."""
        command = [sys.executable, "-m", "mzplan", "-C", str(self.folder), "down"]
        subprocess.run(command, check=True, capture_output=True, env=self.environment)


def wait_until(what: str, holds: Callable[[], bool], seconds: float = 120.0, look: float = 0.02) -> None:
    """Wait until `holds` returns true. Raises BenchmarkError if that takes too long."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            raise BenchmarkError(f"not within {seconds:.0f} s: {what}")
        time.sleep(look)
