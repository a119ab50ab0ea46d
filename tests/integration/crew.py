"""A project whose runner is in this process, on the session of all tests of mzplan.spark: so a test can do to
its queries what somebody would who has the Spark application."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from mzplan.controller.executor import ExecutorContext
from mzplan.controller.jobs import Jobs
from mzplan.model.address import Address
from mzplan.model.observed import Observation
from mzplan.runner.gates import gates_of
from mzplan.runner.loop import Runner
from mzplan.secrets.references import Secrets
from mzplan.spark.delta_storage import SparkController
from mzplan.spark.executor import SparkExecutor
from mzplan.store.backends.local import LocalBackend
from mzplan.store.store import Store
from tests.integration.spark_lab import Lab
from tests.support import eventually
from tests.unit.cli_runs import mzplan

SETTINGS = "version: 1\nproject: %s\nwarehouse: ./warehouse\nretain_dropped: 1s\nstate: {path: %s}\n"


class Crew:
    """A project with a runner in this process, and a checkout elsewhere from which drift is looked for."""

    def __init__(self, folder: Path, project: str, lab: Lab):
        self.folder, self.elsewhere = folder / "here", folder / "elsewhere"
        self.state = folder / "state"
        for checkout in (self.folder, self.elsewhere):
            checkout.mkdir(parents=True)
            (checkout / "mzplan.yaml").write_text(SETTINGS % (project, self.state))
        self.spark = lab.executor._session()
        warehouse = str(self.folder / "warehouse")
        context = ExecutorContext(project=project, directory=str(self.folder), warehouse=warehouse)
        self.executor = SparkExecutor(context)
        self.executor.open()  # joins the session that is there
        store = Store(LocalBackend(self.state), project)
        self.jobs = Jobs()
        secrets = Secrets(str(self.folder))
        gates = gates_of(store, "local", time.monotonic)
        self.controller = SparkController(
            context, store, secrets, self.jobs, executor=self.executor, gates=gates
        )
        self.controller.lead("local", "test")
        self.runner = Runner(self.controller, gates)
        self.runner.watches.upstreams.every = 1.0
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.runner.serve, args=(self.stopping,))
        self.thread.start()

    def close(self) -> None:
        self.stopping.set()
        self.controller.wake_event.set()
        self.thread.join(60)
        self.executor._spark = None  # the session is the lab's
        self.executor.close()
        self.jobs.shutdown()
        self.controller.release()

    def declare(self, name: str, text: str) -> None:
        for checkout in (self.folder, self.elsewhere):
            (checkout / f"{name}.yaml").write_text(text)

    def drift(self) -> set[tuple[str, str]]:
        """What a job finds: address and kind. Its three outputs agree."""
        report = self.elsewhere / "drift.md"
        ran = mzplan(self.elsewhere, "drift", "--json", "--detailed-exitcode", "--markdown", str(report))
        found = {
            (address, item["kind"])
            for item in ran.json()["drift"]
            for address in item.get("addresses", [item["address"]])
        }
        assert ran.code == (3 if found else 0), ran
        text = report.read_text()
        assert all(f"`{kind}`" in text and address in text for address, kind in found), text
        return found

    def detail(self, address: str) -> str:
        found = mzplan(self.elsewhere, "drift", "--json").json()["drift"]
        return " ".join(
            item["detail"] for item in found if address in item.get("addresses", [item["address"]])
        )

    def finds(self, address: str, kind: str, *details: str) -> None:
        eventually(f"{kind} of {address}: {self.drift()}", lambda: (address, kind) in self.drift())
        assert all(text in self.detail(address) for text in details), self.detail(address)

    def is_clean(self) -> None:
        eventually(f"no drift: {self.drift()}", lambda: not self.drift())

    def observation(self, address: str) -> Observation:
        """The query as its runner has last written it, even where commands refuse the state."""
        status = self.runner.store.read_status("local")
        assert status is not None
        return status.observations[Address.parse(address)]

    def stop_by_hand(self, address: str) -> None:
        """As somebody would who has the Spark application."""
        (query,) = (q for q in self.spark.streams.active if f":{address}:" in (q.name or ""))
        query.stop()

    def storage(self, what: str, address: str) -> Path:
        record = mzplan(self.folder, "state", "show", address).json()
        return self.folder / "warehouse" / what / record["id"]
