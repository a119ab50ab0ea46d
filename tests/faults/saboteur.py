"""`mzplan run`, with something in its process that breaks its Spark once a file is there: see SABOTAGE."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mzplan.cli.main import main
from mzplan.spark.process import liveness


def _use_up_memory(context: Any) -> None:
    kept = []
    while True:
        kept.append(context._jvm.java.nio.ByteBuffer.allocate(1 << 29))


def _freeze(context: Any) -> None:
    liveness.SILENT = 3  # a minute is long for a test
    context._gateway.proc.send_signal(19)  # SIGSTOP


def _remove_executor(context: Any) -> None:
    """Do what Spark does if the heartbeats of an executor time out."""
    jvm = context._jvm
    lost = jvm.org.apache.spark.scheduler.ExecutorProcessLost("timed out", jvm.scala.Option.empty(), False)
    context._jsc.sc().taskScheduler().executorLost("driver", lost)


SABOTAGE: Mapping[str, Callable[[Any], None]] = {
    "killed": lambda context: context._gateway.proc.kill(),
    "out of memory": _use_up_memory,
    "context stopped": lambda context: context._jsc.sc().stop(),
    "gateway ended": lambda context: context._gateway.shutdown(),
    "frozen": _freeze,
    "executor removed": _remove_executor,
}


def _break(how: str, signal: Path) -> None:
    from pyspark import SparkContext

    while not signal.exists():
        time.sleep(0.05)
    SABOTAGE[how](SparkContext._active_spark_context)


if __name__ == "__main__":
    how, folder = sys.argv[1:]
    threading.Thread(target=_break, args=(how, Path(folder) / "break"), daemon=True).start()
    sys.argv = ["mzplan", "-C", folder, "run", "--instance", "local"]
    main()
