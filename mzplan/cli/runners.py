"""The runners of this machine. This module connects operations to the runner's code."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mzplan.host.checkout import runtime_file
from mzplan.host.extras import RUNNER, require_extra
from mzplan.model.diagnostics import MzplanError
from mzplan.model.resources import Instance, ProjectSettings
from mzplan.runner.embedded import exit_error, reported_failure, start, stop
from mzplan.runner.wake import send_wake
from mzplan.store.store import Store

if TYPE_CHECKING:
    from mzplan.operations.project import Reporter
    from mzplan.secrets.policy import SecretValues


_NOTHING: Mapping[str, tuple[str, ...]] = {}


class LocalRunners:
    """Starts embedded runners, wakes them, and runs dry instances once."""

    def __init__(
        self, settings: ProjectSettings, store: Store, reporter: Reporter, policy: str | None = None
    ):
        self.settings = settings
        self.store = store
        self.reporter = reporter
        self.policy = policy
        self._seen_dead: dict[str, float] = {}
        self._started: set[str] = set()  # instances that may be started once more

    def require(self, instance: Instance) -> None:
        if self._is_to_start(instance):
            require_extra(RUNNER)

    def ensure(
        self,
        instance: Instance,
        packages: Mapping[str, tuple[str, ...]] = _NOTHING,
        wait: float = math.inf,
        trial: int | None = None,
    ) -> bool:
        if not self._is_to_start(instance):
            return False
        require_extra(RUNNER)
        from mzplan.spark.process.java import require_java

        with self.reporter.working("looking for Java"):
            require_java()
        log = runtime_file(self.settings, instance.name, "log").name
        self.reporter.stage(f"Starting the runner of instance {instance.name} (log: .mzplan/{log})")
        with self.reporter.working("waiting for the runner to start"):
            lease = start(self.settings, self.store, instance.name, packages, self.policy, wait, trial)
        if lease is not None:
            process = f"it is process {lease.pid}, epoch {lease.epoch}"
            self.reporter.detail(f"{process}; Spark needs some more seconds")
        self._started.add(instance.name)
        return True

    def start_again(self, instance: Instance, wait: float) -> bool:
        if instance.name not in self._started or reported_failure(self.settings, instance.name) is not None:
            return False
        self.ensure(instance, wait=wait)
        self._started.discard(instance.name)
        return True

    def stop(self, instance: Instance) -> None:
        self.reporter.stage(f"Stopping the runner of instance {instance.name}, which was started for this")
        with self.reporter.working("waiting for the runner to stop"):
            stop(self.settings, self.store, instance.name)

    def wake(self, instance: Instance, secret_values: SecretValues) -> int | None:
        if instance.type != "embedded":
            return None

        number = send_wake(self.settings, instance.name, secret_values)
        with_values = f", with values of {', '.join(secret_values.values)}" if secret_values.values else ""
        self.reporter.detail(
            f"woke the runner of instance {instance.name}{with_values}"
            if number is not None
            else f"the runner of instance {instance.name} can't be woken, so it polls the store"
        )
        return number

    def read_commit(self, instance: Instance, wait: float) -> None:
        if instance.type == "dry":
            from mzplan.runner.main import run_dry

            with self.reporter.working(f"dry instance {instance.name} reads the commit"):
                taken_in = run_dry(self.settings, instance.name, wait)
            if not taken_in:
                self.reporter.detail(f"another process may lead it: nothing was read within {wait:.0f} s")

    def ended(self, instance: Instance) -> MzplanError | None:
        if instance.type != "embedded" or self.store.leases.leader(instance.name) is not None:
            self._seen_dead.pop(instance.name, None)
            return None
        # A successor may be taking over the lease right now.
        since = self._seen_dead.setdefault(instance.name, time.monotonic())
        if time.monotonic() - since < 1.0:
            return None

        return exit_error(self.settings, instance.name)

    def _is_to_start(self, instance: Instance) -> bool:
        return instance.type == "embedded" and self.store.leases.leader(instance.name) is None
