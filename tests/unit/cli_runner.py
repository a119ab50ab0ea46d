"""A runner on the in-memory executor, in this process, that follows a project's store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mzplan.controller.executor import CheckResult
from mzplan.controller.jobs import Jobs
from mzplan.controller.lease_keeper import LeaseKeeper
from mzplan.controller.memory import InMemoryExecutor
from mzplan.model.diagnostics import Diagnostic, ExitCode
from mzplan.runner.loop import Runner
from mzplan.runner.secret_values import ReceivedSecretValues
from mzplan.schema.description import Description
from mzplan.secrets.references import Secrets
from mzplan.store.backends.local import LocalBackend
from mzplan.store.store import Store
from tests.runners import runner_in_memory


@contextmanager
def leading(
    folder: Path,
    executor: InMemoryExecutor,
    instance: str = "local",
    secrets: Secrets | None = None,
    secret_values: ReceivedSecretValues | None = None,
) -> Iterator[Runner]:
    """Let a runner lead the instance in this process."""
    store = Store(LocalBackend(folder / "state"), "shop")
    lease = store.leases.acquire(instance, "test")
    assert lease is not None
    keeper = LeaseKeeper(store, lease, lambda _: None)
    keeper.start()
    stopping = threading.Event()
    jobs = Jobs()
    runner = runner_in_memory(store, executor, lease, jobs, secrets=secrets, secret_values=secret_values)
    thread = threading.Thread(target=runner.serve, args=(stopping,))
    thread.start()
    try:
        yield runner
    finally:
        stopping.set()
        runner.controller.wake_event.set()
        thread.join(20)
        jobs.shutdown()
        keeper.release()


@contextmanager
def following(
    folder: Path, instance: str = "local", secrets: Secrets | None = None
) -> Iterator[InMemoryExecutor]:
    """Let a runner lead the instance, and give its executor, which tests tell what goes wrong."""
    executor = InMemoryExecutor("shop")
    with leading(folder, executor, instance, secrets):
        yield executor


def rejecting(*addresses: str, code: str = "MZ050", exit_code: ExitCode = ExitCode.ERROR) -> Any:
    """A runner's check that rejects these queries, and records every query that it is asked about."""
    asked: list[str] = []

    def check(description: Description) -> CheckResult:
        asked.append(str(description.address))
        if str(description.address) not in addresses:
            return CheckResult()
        found = Diagnostic(code=code, summary="no", address=description.address, exit_code=exit_code)
        return CheckResult(diagnostics=(found,))

    return check, asked
