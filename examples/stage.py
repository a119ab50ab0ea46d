"""The stage of a demonstration: a copy of an example, its state, a broker and a PostgreSQL server.

The copy is at the same depth as the original (build/shop, examples/shop), so both use state/shop.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from examples.phases import Phases, say
from examples.servers import KafkaBroker, PostgresServer, ServerError, broker_is_here
from examples.servers.ports import require_free

HERE = Path(__file__).parent
KAFKA_PORTS = (19092, 19093)
POSTGRES_PORT = 15432
_SPARK_WAIT_S = 600.0
# Spark and Kafka run for only a minute or two. Faster compilation halves the CPU time.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"


class Stage:
    """The folders and servers of one demonstration. ``root``: the folder with build/ and state/."""

    def __init__(self, example: str, root: Path, phases: Phases) -> None:
        self.example = example
        self.root = root
        self.phases = phases
        self.project = root / "build" / example
        self.state = root / "state" / example
        servers = root / "build" / f"{example}-servers"
        self.kafka = KafkaBroker(servers / "kafka", KAFKA_PORTS)
        self.postgres = PostgresServer(servers / "postgres", POSTGRES_PORT)

    def clear(self) -> None:
        """Stop the processes that a killed earlier run has left, and delete its data."""
        if self.state.exists():
            if not self.project.exists():
                self._copy()
            self.mzplan("down", quiet=True)
        self.kafka.remove_data()
        self.postgres.remove_data()
        for folder in (self.project, self.state):
            shutil.rmtree(folder, ignore_errors=True)
        self._copy()

    def require_ports(self) -> None:
        """Raise ServerError if ports are in use. It names each port and the process that uses it."""
        wanted = [*((port, "Kafka") for port in self.kafka.ports), (self.postgres.port, "PostgreSQL")]
        taken = []
        for port, use in wanted:
            try:
                require_free(port, use)
            except ServerError as problem:
                taken.append(str(problem))
        if taken:
            where = f"the ports are in examples/{self.example} and examples/stage.py"
            raise ServerError("; ".join([*taken, where]))

    def start(self, topics: Callable[[], object], tables: Callable[[], object]) -> None:
        """Start Kafka, PostgreSQL and the runner at once. Raises ServerError.

        Calls `topics` once Kafka is ready, and `tables` once PostgreSQL is ready.
        """
        os.environ["SHOP_PG_PASSWORD"] = self.postgres.password
        given = os.environ.get("JDK_JAVA_OPTIONS", "")
        os.environ["JDK_JAVA_OPTIONS"] = f"{_JAVA_OPTIONS} {given}".strip()

        def kafka() -> None:
            self.kafka.start()
            topics()

        def postgres() -> None:
            self.postgres.start()
            tables()

        broker = "Kafka" if broker_is_here() else "Kafka (46 MB to download, once)"
        say("Starting at once: PostgreSQL, Kafka, and the runner (a Spark application; 72 MB of jars, once)")
        self.phases.together(
            "servers and runner", {"PostgreSQL": postgres, broker: kafka, "the runner": self._start_runner}
        )

    def stop(self) -> None:
        """Stop the runner and both servers."""
        self.mzplan("down", quiet=True)
        self.kafka.stop()
        self.postgres.stop()

    def mzplan(self, *arguments: str, quiet: bool = False) -> None:
        """Run an mzplan command and show its output, unless ``quiet``. Raises ServerError if it fails."""
        command = [sys.executable, "-m", "mzplan", "-C", str(self.project), *arguments]
        done = subprocess.run(command, check=False, capture_output=quiet)
        if done.returncode != 0 and not quiet:
            raise ServerError(
                f"mzplan {' '.join(arguments)} ended with exit code {done.returncode}; see {self._log}"
            )

    @property
    def _log(self) -> Path:
        return self.project / ".mzplan" / "local.log"

    def _copy(self) -> None:
        left = shutil.ignore_patterns("warehouse", "lake", "state", ".*")
        shutil.copytree(HERE / self.example, self.project, ignore=left)

    def _start_runner(self) -> None:
        """Run `mzplan up`, and wait for Spark: before that, apply only reports that queries are starting."""
        command = [sys.executable, "-m", "mzplan", "-C", str(self.project), "up"]
        done = subprocess.run(command, capture_output=True, text=True)
        problem = self.project / ".mzplan" / "local.error.json"
        for _ in range(int(_SPARK_WAIT_S / 0.2)):
            if done.returncode or problem.exists():
                break
            if self.phases.given_up.wait(0.2) or "ready after" in self._log.read_text(errors="replace"):
                return
        self.mzplan("up")  # prints the reason
        raise ServerError(f"the runner did not start; see {self._log}")


def options(about: str) -> argparse.Namespace:
    """Return the command line's `--root` and `--since`."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--root", type=Path, default=HERE.parent, help="where build/ and state/ are")
    parser.add_argument("--since", type=float, metavar="T", help="when the installation began (Unix time)")
    return parser.parse_args()


def perform(stage: Stage, show: Callable[[Stage], int]) -> int:
    """Run a demonstration, and always stop the processes that it has started. Return its exit code.

    The code is 1 if a server or a command fails, with the error on stderr, and 130 after Ctrl-C.
    """

    def terminated(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, terminated)
    try:
        stage.clear()
        stage.require_ports()
        return show(stage)
    except ServerError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopping all servers …", file=sys.stderr)
        return 130
    finally:
        stage.stop()
