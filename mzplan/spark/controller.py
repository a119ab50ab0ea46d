"""The controller that every runner is built on: queries on Spark, collections in Delta tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor as Pool

from mzplan.controller.core import Controller
from mzplan.controller.executor import ExecutorContext
from mzplan.controller.terms import Gate, StorageParameters
from mzplan.secrets.references import Secrets
from mzplan.spark.delta_storage import DeltaStorage
from mzplan.spark.executor import SparkExecutor
from mzplan.store.store import Store
from mzplan.warehouse.paths import absolute


class SparkStorageController(Controller):
    """Implements StorageController on one PySpark driver. `clock` gives seconds, monotonic."""

    def __init__(
        self,
        context: ExecutorContext,
        store: Store,
        secrets: Secrets,
        pool: Pool,
        clock: Callable[[], float] = time.monotonic,
        parameters: StorageParameters | None = None,
        executor: SparkExecutor | None = None,
        gates: Sequence[Gate] = (),
    ):
        spark = executor or SparkExecutor(context)
        warehouse = absolute(context.directory, context.warehouse)
        storage = DeltaStorage(warehouse, spark, alone=store.lock_for_append)
        super().__init__(store, spark, storage, secrets, pool, clock, parameters, gates)
