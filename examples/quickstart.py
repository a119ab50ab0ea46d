"""`make quickstart`: the whole story on real servers.

Starts Kafka and PostgreSQL here, applies a copy of examples/shop, produces orders, moves one connection to
the broker's second listener while orders keep coming, and shows what restarted, what kept running, and the
rows in PostgreSQL. Everything it starts it ends again; its folder (build/quickstart) can be deleted.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from examples.servers import KafkaBroker, PostgresServer, ServerError, create_topic, produce_json

HERE = Path(__file__).parent
FOLDER = HERE.parent / "build" / "quickstart"
KAFKA_PORTS = (19092, 19093)
POSTGRES_PORT = 15432
ORDERS = 200


def main() -> int:
    """Returns the exit code: 0 when every order is in PostgreSQL exactly once, and only the right queries
    restarted."""
    shutil.rmtree(FOLDER / "shop", ignore_errors=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    kafka, postgres = KafkaBroker(FOLDER / "kafka"), PostgresServer(FOLDER / "postgres")
    kafka.remove_data()
    postgres.remove_data()
    project = Path(shutil.copytree(HERE / "shop", FOLDER / "shop"))
    try:
        say("Starting Kafka (two listeners) and PostgreSQL …")
        kafka.start(ports=KAFKA_PORTS)
        postgres.start(port=POSTGRES_PORT)
        os.environ["SHOP_PG_PASSWORD"] = postgres.password
        return show(project, kafka, postgres)
    except ServerError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    finally:
        mzplan(project, "down", quiet=True)
        kafka.stop()
        postgres.stop()


def show(project: Path, kafka: KafkaBroker, postgres: PostgresServer) -> int:
    """The story itself."""
    dsn = postgres.create_database("shop")
    with psycopg.connect(dsn) as connection:
        connection.execute((project / "tables.sql").read_text().encode())
    for topic in ("orders", "customers", "clicks"):
        create_topic(kafka.bootstrap, topic)
    produce(kafka, 0, ORDERS)
    produce_json(kafka.bootstrap, "customers", [{"name": "ada", "city": "London"}], key="name")
    produce_json(kafka.bootstrap, "clicks", [{"page": "/", "ts": "2026-01-05T08:00:00Z"}])

    say("mzplan apply   (the first one also starts the runner, a Spark application)")
    mzplan(project, "apply", "--auto-approve")
    wait_for(f"{ORDERS} orders in PostgreSQL", lambda: count(dsn) == ORDERS)
    before = run_ids(project)

    say("The brokers of shop_kafka move to another address. In connections.yaml:")
    file = project / "connections.yaml"
    text = file.read_text()
    file.write_text(text.replace(f"localhost:{KAFKA_PORTS[0]}", f"localhost:{KAFKA_PORTS[1]}", 1))
    print(f"-    brokers: [localhost:{KAFKA_PORTS[0]}]\n+    brokers: [localhost:{KAFKA_PORTS[1]}]")

    say("mzplan plan")
    mzplan(project, "plan")

    say("mzplan apply   (while orders keep coming)")
    meanwhile = threading.Thread(target=lambda: produce(kafka, ORDERS, 2 * ORDERS, pause=0.02))
    meanwhile.start()
    mzplan(project, "apply", "--auto-approve")
    meanwhile.join()
    wait_for(f"{2 * ORDERS} orders in PostgreSQL", lambda: count(dsn) >= 2 * ORDERS)

    say("What restarted, and what kept running:")
    after = run_ids(project)
    for address in sorted(after):
        print(f"  {address:22} {'restarted' if after[address] != before[address] else 'kept running'}")
    restarted = {a for a in after if after[a] != before[a]}

    say("mzplan status")
    mzplan(project, "status")

    total = count(dsn)
    say(f"PostgreSQL has {total} orders; {2 * ORDERS} were sent. Each is there exactly once.")
    for row in sample(dsn):
        print("  ", *row)
    good = total == 2 * ORDERS and restarted == {"source.orders", "source.customers"}
    print("\nIt works." if good else "\nThis is not what should have happened.")
    return 0 if good else 1


def say(text: str) -> None:
    """A heading."""
    print(f"\n\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() else f"\n== {text}", flush=True)


def mzplan(project: Path, *arguments: str, quiet: bool = False) -> None:
    """Run a command as a person would, its output shown. Raises ServerError when it fails."""
    command = [sys.executable, "-m", "mzplan", "-C", str(project), *arguments]
    done = subprocess.run(command, check=False, capture_output=quiet)
    if done.returncode != 0 and not quiet:
        log = project / ".mzplan" / "local.log"
        raise ServerError(f"mzplan {' '.join(arguments)} ended with exit code {done.returncode}; see {log}")


def run_ids(project: Path) -> dict[str, str]:
    """The run id of every query."""
    command = [sys.executable, "-m", "mzplan", "-C", str(project), "status", "--json"]
    status: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return {query["address"]: query["run_id"] for query in status["queries"]}


def produce(kafka: KafkaBroker, first: int, last: int, pause: float = 0.0) -> None:
    """Orders with ids from `first` to `last`, `pause` seconds after each ten."""
    for start in range(first, last, 10):
        rows = [
            {"id": i, "customer": "ada", "amount": f"{i % 50 + 1}.50", "ts": "2026-01-05T08:00:00Z"}
            for i in range(start, min(start + 10, last))
        ]
        produce_json(kafka.bootstrap, "orders", rows, key="id")
        time.sleep(pause)


def count(dsn: str) -> int:
    """The orders in PostgreSQL."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(*) FROM public.orders").fetchone()
        return int(row[0]) if row else 0


def sample(dsn: str) -> list[tuple[Any, ...]]:
    """The last three of them."""
    with psycopg.connect(dsn) as connection:
        return connection.execute("SELECT * FROM public.orders ORDER BY id DESC LIMIT 3").fetchall()


def wait_for(what: str, done: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until something holds. Raises ServerError when it does not in time."""
    until = time.monotonic() + seconds
    while not done():
        if time.monotonic() > until:
            raise ServerError(f"there are not {what} after {seconds:.0f} s")
        time.sleep(0.2)
    print(f"  {what}")


if __name__ == "__main__":
    sys.exit(main())
