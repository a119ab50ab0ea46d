"""`make quickstart`: a complete demonstration on real servers.

Starts Kafka, PostgreSQL and a runner on this machine, applies a copy of examples/shop, and produces orders.
While orders keep coming, it moves one connection to the broker's second listener. Then it shows which queries
restarted, which kept running, and the rows in PostgreSQL. At the end, it stops everything that it started.
You can inspect and delete the folders build/shop and state/shop, which stay.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psycopg

from examples.phases import Phases, say
from examples.servers import KafkaBroker, create_topic, produce_json
from examples.stage import KAFKA_PORTS, Stage, options, perform

ORDERS = 200


def main() -> int:
    """Run the demonstration. Return its exit code.

    It is 0 if every order is in PostgreSQL exactly once, and only the expected queries restarted.
    """
    given = options(__doc__ or "")
    phases = Phases(given.since)
    stage = Stage("shop", given.root.resolve(), phases)
    code = perform(stage, show)
    if code == 0:
        say("Time spent")
        print(phases.table())
        say("The servers have stopped. You can still inspect the project:")
        print(f"  {shown(stage.state / 'mzplan.state.json')} is the state (state/README.md)")
        for command in NEXT:
            print(f"  {shown(Path(sys.executable).with_name('mzplan'))} -C {shown(stage.project)} {command}")
    return code


def shown(path: Path) -> str:
    """Return the path as you would type it in the current folder."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


# These commands need neither servers nor a runner.
NEXT = (
    "graph --impact connection.shop_kafka",
    "steps source.orders --last 3",
    "state show sink.orders_pg",
)


def show(stage: Stage) -> int:
    """Show the demonstration step by step. Return the exit code."""
    kafka, phases = stage.kafka, stage.phases
    dsn = stage.postgres.dsn("shop")
    stage.start(lambda: fill(kafka), lambda: make_tables(stage))

    say("mzplan apply")
    with phases.phase("mzplan apply"):
        stage.mzplan("apply", "--auto-approve")
    with phases.phase(f"the first {ORDERS} orders"):
        phases.wait_for(f"{ORDERS} orders in PostgreSQL", lambda: count(dsn) == ORDERS)
    before = run_ids(stage.project)

    say("The brokers of shop_kafka move to another address. In connections.yaml:")
    file = stage.project / "connections.yaml"
    text = file.read_text()
    file.write_text(text.replace(f"localhost:{KAFKA_PORTS[0]}", f"localhost:{KAFKA_PORTS[1]}", 1))
    print(f"-    brokers: [localhost:{KAFKA_PORTS[0]}]\n+    brokers: [localhost:{KAFKA_PORTS[1]}]")

    say("mzplan plan")
    with phases.phase("mzplan plan"):
        stage.mzplan("plan")

    say("mzplan apply   (while orders keep coming)")
    meanwhile = threading.Thread(target=lambda: produce(kafka, ORDERS, 2 * ORDERS, pause=0.02))
    meanwhile.start()
    with phases.phase("mzplan apply, of the change"):
        stage.mzplan("apply", "--auto-approve")
        meanwhile.join()
    with phases.phase(f"{ORDERS} more orders"):
        phases.wait_for(f"{2 * ORDERS} orders in PostgreSQL", lambda: count(dsn) >= 2 * ORDERS)

    say("Queries that restarted or kept running:")
    after = run_ids(stage.project)
    for address in sorted(after):
        print(f"  {address:22} {'restarted' if after[address] != before[address] else 'kept running'}")
    restarted = {a for a in after if after[a] != before[a]}

    say("mzplan status")
    stage.mzplan("status")

    total = count(dsn)
    say(f"PostgreSQL has {total} orders; {2 * ORDERS} were sent.")
    for row in sample(dsn):
        print("  ", *row)
    say("view.spending has the sums by customer:")
    phases.wait_for("sums of all orders", lambda: sum(row[1] for row in spending(dsn)) == total)
    for row in spending(dsn):
        print("  ", *row)
    say("mzplan test view.spending   (without servers)")
    with phases.phase("mzplan test"):
        stage.mzplan("test", "view.spending")
    good = total == 2 * ORDERS and restarted == {"source.orders", "source.customers"}
    print("\nIt works." if good else "\nThis isn't the expected result.", flush=True)
    return 0 if good else 1


def fill(kafka: KafkaBroker) -> None:
    """Create the topics with their first records."""
    for topic in ("orders", "customers", "clicks"):
        create_topic(kafka.bootstrap, topic)
    produce(kafka, 0, ORDERS)
    produce_json(kafka.bootstrap, "customers", [{"name": "ada", "city": "London"}], key="name")
    produce_json(kafka.bootstrap, "clicks", [{"page": "/", "ts": "2026-01-05T08:00:00Z"}])


def make_tables(stage: Stage) -> None:
    """Create the database with its empty tables."""
    with psycopg.connect(stage.postgres.create_database("shop")) as connection:
        connection.execute((stage.project / "tables.sql").read_text().encode())


def run_ids(project: Path) -> dict[str, str]:
    """Return the run id of every query."""
    command = [sys.executable, "-m", "mzplan", "-C", str(project), "status", "--json"]
    status: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return {query["address"]: query["run_id"] for query in status["queries"]}


def produce(kafka: KafkaBroker, first: int, last: int, pause: float = 0.0) -> None:
    """Produce orders with ids from `first` up to `last`, with `pause` seconds after every ten."""
    for start in range(first, last, 10):
        rows = [
            {"id": i, "customer": "ada", "amount": f"{i % 50 + 1}.50", "ts": "2026-01-05T08:00:00Z"}
            for i in range(start, min(start + 10, last))
        ]
        produce_json(kafka.bootstrap, "orders", rows, key="id")
        time.sleep(pause)


def count(dsn: str) -> int:
    """Return the number of orders in PostgreSQL."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT count(*) FROM public.orders").fetchone()
        return int(row[0]) if row else 0


def sample(dsn: str) -> list[tuple[Any, ...]]:
    """Return the last three orders in PostgreSQL."""
    with psycopg.connect(dsn) as connection:
        return connection.execute("SELECT * FROM public.orders ORDER BY id DESC LIMIT 3").fetchall()


def spending(dsn: str) -> list[tuple[Any, ...]]:
    """Return the view's rows: customer, number of orders, sum of their amounts."""
    with psycopg.connect(dsn) as connection:
        return connection.execute("SELECT * FROM public.spending ORDER BY customer").fetchall()


if __name__ == "__main__":
    sys.exit(main())
