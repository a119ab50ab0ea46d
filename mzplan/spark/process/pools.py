"""Assigns each query's jobs to one of Spark's scheduler pools, where they wait for a core.

Spark gives a free core to the pool that runs the fewest tasks, and breaks ties by name. With more pools than
cores, pools at the end of the alphabet would never get a core. So there are at most as many pools as cores,
and each serves its jobs in order of arrival. A query with a long job delays only the queries in its pool.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mzplan.model.address import Address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROPERTY = "spark.scheduler.pool"
DEFAULT = "default"  # Spark's own pool, for checks and maintenance
_LOCAL = re.compile(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?")


class SchedulerPools:
    """Spreads queries over `count()` pools. Methods may be called from several threads."""

    def __init__(self, count: Callable[[], int]):
        self._count = count
        self._lock = threading.Lock()
        self._by_query: dict[Address, str] = {}

    def of(self, query: Address) -> str:
        """Return the pool of a query; the first call chooses a pool with the fewest queries."""
        with self._lock:
            if query not in self._by_query:
                names = [f"queries-{number}" for number in range(self._count())]
                members = Counter(self._by_query.values())
                self._by_query[query] = min(names, key=lambda name: members[name])
            return self._by_query[query]

    def leave(self, query: Address) -> None:
        """Forget a stopped query."""
        with self._lock:
            self._by_query.pop(query, None)


def cores_of(spark: SparkSession) -> int:
    """Return how many tasks can run at the same time; on a cluster, on the current executors."""
    local = _LOCAL.fullmatch(spark.sparkContext.master or "")
    if local is None:
        return spark.sparkContext.defaultParallelism
    if local[1] != "*":
        return int(local[1] or 1)
    java: Any = spark._jvm  # Java knows the limit of a container
    return int(java.Runtime.getRuntime().availableProcessors())


def pool_count(spark: SparkSession) -> int:
    """Return how many pools this session can have so that each gets a core."""
    context = spark.sparkContext
    if _LOCAL.fullmatch(context.master or ""):
        return cores_of(spark)
    if context.getConf().contains("spark.default.parallelism"):
        return 1  # this setting hides the number of cores
    return max(1, cores_of(spark) - 1)  # Spark reports 2 for 1 core, and an executor may be lost
