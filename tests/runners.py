"""Runners with a controller in memory, without Spark or servers."""

from __future__ import annotations

import time
from collections.abc import Callable

from mzplan.controller.jobs import Jobs
from mzplan.controller.memory import InMemoryController, InMemoryExecutor, InMemoryStorage
from mzplan.model.observed import Lease
from mzplan.runner.gates import gates_of
from mzplan.runner.loop import Runner
from mzplan.runner.secret_values import ReceivedSecretValues
from mzplan.secrets.references import Secrets
from mzplan.store.store import Store


def runner_in_memory(
    store: Store,
    executor: InMemoryExecutor,
    lease: Lease,
    jobs: Jobs,
    clock: Callable[[], float] = time.monotonic,
    storage: InMemoryStorage | None = None,
    secrets: Secrets | None = None,
    secret_values: ReceivedSecretValues | None = None,
) -> Runner:
    """Return a runner that leads under this lease, which isn't renewed."""
    gates = gates_of(store, lease.instance, clock)
    secrets = secrets or Secrets(".")
    controller = InMemoryController(store, secrets, jobs, executor, storage, clock=clock, gates=gates)
    controller.attach(lease)
    return Runner(controller, gates, secret_values=secret_values)
