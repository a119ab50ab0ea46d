"""The standalone cluster of docs/deploy.md, word for word: a laptop, a driver, a master and two workers that
have nothing of each other's. Then an executor is killed while rows flow."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncssh
import psycopg
import pytest
from deltalake import DeltaTable

from examples.servers import create_topic, delete_topic, produce_json
from examples.servers.ports import free_port
from examples.servers.process import send
from tests.installed import ROOT, install_wheel
from tests.java_options import DRIVER, EVERY_JVM
from tests.machines import DOCS, Machine, command_line, commands, environment_of
from tests.reaper import VARIABLE
from tests.support import eventually, rows_of

if TYPE_CHECKING:
    from examples.servers import KafkaBroker, PostgresServer, SshServer

HOST, PASSWORD = "127.0.0.1", "shop-app-s-own"
ROWS, AT_ONCE = 3000, 30
TOPICS = ("orders", "customers", "clicks")
EXECUTOR, TASKS = "CoarseGrainedExecutorBackend", "pyspark.daemon"
HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJJeD2CCNe3j7MDdajOWigJ+7H6r+e/usFpRIGat6Pij"
# Of the machines, and no part of the page: the address that each has, how little its JVMs may take, and whose
# run they end with.
SMALL = {
    "SPARK_LOCAL_IP": HOST,
    "SPARK_DAEMON_MEMORY": "256m",
    "SPARK_MASTER_WEBUI_PORT": "0",
    "SPARK_WORKER_WEBUI_PORT": "0",
    "JDK_JAVA_OPTIONS": EVERY_JVM,
    **{name: os.environ[name] for name in ("JAVA_HOME", VARIABLE) if name in os.environ},
}


class Cluster:
    """The machines of the page, on this one, and its servers."""

    def __init__(
        self,
        folder: Path,
        kafka: KafkaBroker,
        postgres: PostgresServer,
        gate: SshServer,
        shop: str,
        ops: str,
    ) -> None:
        self.folder, self.kafka, self.dsn = folder, kafka, postgres.dsn(shop)
        self.stands_for = {
            "/opt/mzplan": f"{folder}/opt/mzplan",
            "/srv/warehouse": f"{folder}/srv/warehouse",
            **dict.fromkeys(("master.internal", "worker.internal", "driver.internal"), HOST),
            "7077": str(free_port()),
            "kafka.internal:9092": kafka.bootstrap,
            "gate.internal:22": f"{HOST}:{gate.port}",
            "host: gate.internal, port: 22, user: tunnel": (
                f"host: {HOST}, port: {gate.port}, user: {gate.user}"
            ),
            HOST_KEY: gate.host_key,
            "pg.internal:5432": f"{HOST}:{postgres.port}",
            "host: pg.internal, port: 5432, database: shop, user: shop_app": (
                f"host: {HOST}, port: {postgres.port}, database: {shop}, user: {shop}_app"
            ),
            "host: db.internal, port: 5432, database: ops": (
                f"host: {HOST}, port: {postgres.port}, database: {ops}"
            ),
        }
        self.key = asyncssh.generate_private_key("ssh-ed25519")
        gate.authorize(self.key.export_public_key().decode())
        apart = [folder / "laptop", folder / "driver", ROOT / "mzplan"]
        for place in (*apart[:2], folder / "srv" / "warehouse"):
            place.mkdir(parents=True)
        state = {"STATE_PASSWORD": postgres.password}
        secrets = {"SHOP_PG_PASSWORD": PASSWORD, "MZPLAN_SECRETS_KEY": "the key of digests, in tests only"}
        self.laptop = Machine("laptop", folder / "laptop", state)
        self.driver = Machine(
            "driver", folder / "driver", {**SMALL, **state, **secrets, "SPARK_SUBMIT_OPTS": DRIVER}
        )
        keys = self.driver.folder / "keys"
        keys.mkdir(mode=0o700)
        (keys / "gate").write_bytes(self.key.export_private_key())
        (keys / "gate").chmod(0o600)
        self.master = Machine("master", folder / "master", SMALL, apart)
        self.workers = [Machine(f"worker{n}", folder / f"worker{n}", SMALL, apart) for n in (1, 2)]

    def close(self) -> None:
        for machine in (self.driver, *self.workers, self.master, self.laptop):
            machine.close()

    def follow_the_page(self) -> None:
        """Do what the page says."""
        named = {"laptop": [self.laptop], "driver": [self.driver], "master": [self.master]}
        for command in commands(DOCS / "deploy.md", self.stands_for):
            for name in command.machines:
                for machine in (named | {"worker": self.workers})[name]:
                    machine.run(command)

    def logs(self) -> str:
        """The ends of all logs, for who reads why it failed."""
        found = [*self.folder.glob("*/*.log"), *self.folder.glob("worker*/work/app-*/*/stderr")]
        return "\n".join(f"── {log}\n{log.read_text(errors='replace')[-3000:]}" for log in sorted(found))

    def run_ids(self) -> dict[str, str]:
        code, printed = self.laptop.call("mzplan status --json")
        assert code == 0, printed
        return {query["address"]: query["run_id"] for query in json.loads(printed)["queries"]}

    def executors(self) -> list[int]:
        return [pid for worker in self.workers for pid in worker.processes(EXECUTOR)]

    def produce(self, first: int, last: int) -> None:
        """Orders and clicks with numbers from `first` to `last`."""
        when = "2026-01-05T08:00:00Z"
        orders = [{"id": i, "customer": "ada", "amount": "1.50", "ts": when} for i in range(first, last)]
        clicks = [{"page": f"/{i}", "ts": when} for i in range(first, last)]
        produce_json(self.kafka.bootstrap, "orders", orders, key="id")
        produce_json(self.kafka.bootstrap, "clicks", clicks, key="page")

    def targets(self) -> dict[str, Counter[int]]:
        """How often each number is in each table of the shop."""
        return {
            "orders": Counter(id_ for (id_,) in rows_of(self.dsn, "SELECT id FROM orders")),
            "clicks": Counter(int(page[1:]) for (page,) in rows_of(self.dsn, "SELECT page FROM clicks")),
        }

    def collections(self) -> dict[str, Counter[int]]:
        """The same of the collections."""
        found = {}
        for log in (self.folder / "srv" / "warehouse").rglob("_delta_log"):
            table = DeltaTable(str(log.parent))
            for column, name in (("page", "clicks"), ("id", "orders")):
                if column in {field.name for field in table.schema().fields}:
                    values = table.to_pyarrow_table(columns=[column])[column].to_pylist()
                    found[name] = Counter(int(str(value).lstrip("/")) for value in values)
        return found


@pytest.fixture
def cluster(
    tmp_path: Path,
    kafka: KafkaBroker,
    postgres: PostgresServer,
    sshd_servers: Callable[[str], SshServer],
    database: Callable[..., str],
) -> Iterator[Cluster]:
    """The machines, with what the page says is there before anything runs on them."""
    shop = database("shop")
    install_wheel(tmp_path, tmp_path / "opt" / "mzplan", "runner")
    with psycopg.connect(postgres.dsn(shop), autocommit=True) as connection:
        connection.execute((ROOT / "examples" / "shop" / "tables.sql").read_text().encode())
        connection.execute(f"CREATE ROLE {shop}_app LOGIN PASSWORD '{PASSWORD}'".encode())
        connection.execute(f"GRANT CREATE ON DATABASE {shop} TO {shop}_app".encode())
        connection.execute(
            f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO {shop}_app".encode()
        )
        connection.execute(f"GRANT DELETE ON public.spending TO {shop}_app".encode())
    kafka.start()
    for topic in TOPICS:
        create_topic(kafka.bootstrap, topic)
    found = Cluster(tmp_path, kafka, postgres, sshd_servers("gate"), shop, database("ops"))
    try:
        yield found
    finally:
        found.close()
        for topic in TOPICS:
            delete_topic(kafka.bootstrap, topic)


@pytest.mark.programs
@pytest.mark.timeout(900)
def test_an_executor_is_killed_on_the_cluster_of_the_page(cluster: Cluster) -> None:
    try:
        cluster.follow_the_page()
        _kill_one(cluster)
    except BaseException:
        print(cluster.logs())
        raise


def _kill_one(shop: Cluster) -> None:
    expected = Counter(range(ROWS))
    shop.produce(0, AT_ONCE)
    eventually("the first rows", lambda: all(len(ids) == AT_ONCE for ids in shop.targets().values()), 120)
    before, executors = shop.run_ids(), shop.executors()
    assert len(executors) == len(shop.workers)
    _nothing_is_shown(shop)

    def load() -> None:
        for first in range(AT_ONCE, ROWS, AT_ONCE):
            shop.produce(first, first + AT_ONCE)

    loading = threading.Thread(target=load)
    loading.start()
    eventually("rows flow", lambda: all(len(ids) > 5 * AT_ONCE for ids in shop.targets().values()))
    send(executors[0], signal.SIGKILL)
    assert loading.is_alive()
    loading.join()
    eventually("all rows", lambda: all(len(ids) == ROWS for ids in shop.targets().values()), 120)
    assert shop.targets() == {"orders": expected, "clicks": expected}
    assert shop.collections() == {"orders": expected, "clicks": expected}
    assert shop.run_ids() == before  # a task was tried again, and no query restarted
    eventually("its worker has started another one", lambda: len(shop.executors()) == len(shop.workers))
    assert executors[0] not in shop.executors()
    for address in ("source.orders", "source.clicks", "sink.clicks_pg"):
        code, printed = shop.driver.call(f"mzplan verify {address} --json")
        found: dict[str, Any] = json.loads(printed[printed.index("{") :])  # stderr comes first
        assert code == 0 and found["verified"] > 0 and found["difference"] is None, printed


def _nothing_is_shown(shop: Cluster) -> None:
    """Executors run Python where the page says, and have no secret where others could read it."""
    python = f"{shop.folder}/opt/mzplan/bin/python"
    tasks = [pid for worker in shop.workers for pid in worker.processes(TASKS)]
    assert tasks and all(command_line(pid).startswith(python) for pid in tasks)
    for pid in (*shop.executors(), *tasks):
        shown = command_line(pid) + environment_of(pid)
        assert PASSWORD not in shown and "SHOP_PG" not in shown and str(shop.driver.folder) not in shown
    secret = shop.key.export_private_key().decode().splitlines()[1]
    for log in (*shop.folder.glob("*/*.log"), *shop.folder.glob("worker*/work/app-*/*/std*")):
        text = log.read_text(errors="replace")
        assert PASSWORD not in text and secret not in text, log
