"""The order in which pytest-xdist's workers run test files.

Quick files come first, so that a broken build fails early. Then come files that use Spark, each on the worker
that already has the Spark session that the file needs. The tests that kill processes come last. Within a
group, the longest file comes first, so that no worker runs it alone at the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

ROOT = Path(__file__).parents[1]
# A driver's first forty micro-batches take three times the CPU time of the next ones.
IN_PROCESS = re.compile(r"\blab: Lab\b|\bon_spark\b")
SHARED_PROJECT = re.compile(r"\bproject: Project\b|\bshop: OrdersShop\b")
OWN_PROJECT = re.compile(r"\bProject\(")

# The folders of tests that need no server and no Spark.
QUICK = {"unit", "cases"}

# How long the longest files that use Spark take in `make test`, as `--junitxml` records it.
SECONDS = {
    "views/test_views.py": 150,
    "integration/test_pipeline.py": 125,
    "spark/test_spark_sources.py": 110,
    "integration/test_drift_kinds.py": 90,
    "generations/test_row_migration.py": 85,
    "spark/test_spark_relational.py": 80,
    "integration/test_alter.py": 45,
    "integration/test_without_a_runner.py": 40,
    "spark/test_spark_sinks.py": 35,
    "spark/test_spark_keyed.py": 35,
    "spark/test_spark_avro.py": 35,
    "spark/test_spark_recomputed_views.py": 20,
    "spark/test_spark_postgres.py": 20,
    "spark/test_spark_kafka_and_files_sinks.py": 20,
}


class SessionScheduling(LoadFileScheduling):
    """`--dist loadfile` in the order that this module describes.

    A worker with a Spark session takes the files that use this session, and long files that start their own
    Spark. A worker without a session takes a file for the session that the fewest workers have.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(self._next(node), last=False)
        super()._assign_work_unit(node)

    def _next(self, node: WorkerController) -> str:
        mine = sessions_of(self.assigned_work[node])
        others = [sessions_of(files) for worker, files in self.assigned_work.items() if worker is not node]

        def rank(file: str) -> tuple[int, int, int]:
            if QUICK.intersection(Path(file).parts):
                return 0, 0, 0
            needs = sessions_of([file])
            rest = -SECONDS.get("/".join(Path(file).parts[-2:]), 0)
            if needs & mine or (rest and not needs):
                return 1, 0, rest
            if needs:
                return 2, sum(bool(needs & theirs) for theirs in others), rest
            return (3 if "faults" in Path(file).parts else 4), 0, rest

        return min(self.workqueue, key=rank)  # the first of equals


def sessions_of(files: Iterable[str]) -> frozenset[str]:
    """Return the Spark sessions that test files use: "lab" (in the test's process) or "project"."""
    return frozenset().union(*map(_sessions, files))


@cache
def _sessions(file: str) -> frozenset[str]:
    text = (ROOT / file).read_text()
    shared = "/integration/" in file and SHARED_PROJECT.search(text) and not OWN_PROJECT.search(text)
    used = {"lab": IN_PROCESS.search(text), "project": shared}
    return frozenset(name for name, found in used.items() if found)
