"""A standalone Spark cluster on 127.0.0.1: a master and workers, from the PySpark that is installed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType

from examples.servers.errors import ServerError
from examples.servers.ports import HOST, answers, free_port

_START_S = 60.0
_STOP_S = 10.0


class SparkCluster:
    """``workers`` with one core each. ``environment`` is that of the workers' processes, and so of what they
    run. Ends only the processes that it has started."""

    def __init__(
        self,
        workdir: Path,
        workers: int = 2,
        memory: str = "1g",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.workdir = workdir
        self.workers = workers
        self.memory = memory
        self.environment = dict(environment or {})
        self.port = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def master(self) -> str:
        """For ``spark-submit --master``."""
        return f"spark://{HOST}:{self.port}"

    def start(self) -> None:
        """Start the master, then the workers. Raises ServerError when they don't come up."""
        self.workdir.mkdir(parents=True, exist_ok=True)
        self._launch("master", "master.Master", "--port", str(self.port), "--webui-port", str(free_port()))
        self._wait(lambda: answers(self.port), "master")
        for number in range(self.workers):
            name = f"worker{number}"
            options = ["--cores", "1", "--memory", self.memory, "--webui-port", str(free_port())]
            work = self.workdir / name
            self._launch(name, "worker.Worker", *options, "--work-dir", str(work), self.master)
        for number in range(self.workers):
            log = self.workdir / f"worker{number}.log"
            self._wait(partial(_has_registered, log), log.stem)

    def stop(self) -> None:
        """End all of it, workers first."""
        for process in reversed(self._processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def __enter__(self) -> SparkCluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _launch(self, name: str, main: str, *arguments: str) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}", "--host", HOST]
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
            **self.environment,
        }
        with (self.workdir / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [*command, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    cwd=self.workdir,
                )
            )

    def _wait(self, holds: Callable[[], bool], name: str) -> None:
        until = time.monotonic() + _START_S
        while not holds():
            ended = [one for one in self._processes if one.poll() is not None]
            if ended or time.monotonic() > until:
                log = (self.workdir / f"{name}.log").read_text(errors="replace")[-1500:]
                raise ServerError(f"the Spark {name} did not start", log)
            time.sleep(0.1)


def _has_registered(log: Path) -> bool:
    return b"Successfully registered" in log.read_bytes()
