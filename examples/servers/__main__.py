"""``python -m examples.servers up|status|down --dir D``: runs both servers until you stop them.

``send``, ``sql`` and ``move`` are what the tutorial does with them.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from confluent_kafka import KafkaException

from examples.servers.errors import ServerError
from examples.servers.java import jar_folder
from examples.servers.kafka import KafkaBroker
from examples.servers.ports import HOST
from examples.servers.postgres import PostgresServer
from examples.servers.server import write_private
from examples.servers.topics import TIMEOUT_S, admin, create_topic, produce_json

_NOT_RUNNING = 3  # the exit code of ``systemctl status``
_ROWS_S = 120.0


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit code: 0, 1 for an error, 3 from ``status`` if a server is down."""
    options = _parser().parse_args(arguments)
    folder: Path = options.dir.resolve()
    try:
        if options.command != "up" and not folder.is_dir():
            raise ServerError(f"no servers have been started in {folder}: there is no such folder")
        with _alone(folder):
            match options.command:
                case "up":
                    return _up(folder, options.kafka_ports, options.postgres_port)
                case "down":
                    return _down(folder, delete_data=options.delete_data)
                case "send":
                    return _send(folder, options.topic, options.file)
                case "sql":
                    return _sql(folder, options.statement, options.wait_for)
                case "move":
                    return _move(folder, options.kafka_ports)
                case _:
                    return _status(folder)
    except ServerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _up(folder: Path, kafka_ports: tuple[int, int] | None, postgres_port: int | None) -> int:
    kafka, postgres = KafkaBroker(folder / "kafka"), PostgresServer(folder / "postgres")
    if kafka.pid is None and not jar_folder().is_dir():
        print(f"downloading the Kafka broker (46 MB, once) to {jar_folder()} …", flush=True)
    before = time.monotonic()
    kafka.start(ports=kafka_ports, detached=True)
    _write_addresses(folder, kafka, postgres)
    postgres.start(port=postgres_port, detached=True)
    _write_addresses(folder, kafka, postgres)
    print(f"ready after {time.monotonic() - before:.1f} s")
    _status(folder)
    print(f"addresses and the password are in {folder / 'servers.json'}")
    print(f"to end them: python -m examples.servers down --dir {folder}")
    return 0


def _down(folder: Path, *, delete_data: bool) -> int:
    for server in (KafkaBroker(folder / "kafka"), PostgresServer(folder / "postgres")):
        pid = server.pid
        server.stop()
        print(f"{server.name}: {'was not running' if pid is None else f'process {pid} has ended'}")
        if delete_data:
            server.remove_data()
    (folder / "servers.json").unlink(missing_ok=True)
    print("their data is deleted" if delete_data else f"their data stays in {folder} for the next up")
    return 0


def _status(folder: Path) -> int:
    kafka, postgres = KafkaBroker(folder / "kafka"), PostgresServer(folder / "postgres")
    places = ((kafka, f"{kafka.bootstrap} and {kafka.bootstrap2}"), (postgres, f"{HOST}:{postgres.port}"))
    for server, address in places:
        state = f"process {server.pid} on {address}" if server.pid is not None else "not running"
        print(f"{server.name:<9} {state}, log {server.log}")
    return 0 if all(server.pid is not None for server, _ in places) else _NOT_RUNNING


def _send(folder: Path, topic: str, file: Path) -> int:
    """Send each line of a file, a JSON object, as a record. Create the topic if it doesn't exist."""
    bootstrap = KafkaBroker(folder / "kafka").bootstrap
    try:
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as problem:
        raise ServerError(f"{file} is not a file of JSON objects, one a line: {problem}") from None
    try:
        known = admin(bootstrap).list_topics(timeout=TIMEOUT_S).topics
    except KafkaException as problem:
        raise ServerError(f"Kafka does not answer: {problem.args[0].str()}") from None
    if topic not in known:
        create_topic(bootstrap, topic)
    sent = produce_json(bootstrap, topic, rows)
    print(f"{sent} {'record' if sent == 1 else 'records'} sent to topic {topic}")
    return 0


def _sql(folder: Path, statement: str, wait_for: int) -> int:
    """Run SQL until its last statement returns at least `wait_for` rows, and print these."""
    deadline = time.monotonic() + _ROWS_S
    try:
        with psycopg.connect(PostgresServer(folder / "postgres").dsn(), autocommit=True) as connection:
            while True:
                cursor = connection.execute(statement.encode())
                while cursor.nextset():
                    pass
                rows = cursor.fetchall() if cursor.description else []
                if len(rows) >= wait_for:
                    break
                if time.monotonic() > deadline:
                    raise ServerError(f"{len(rows)} rows after {_ROWS_S:.0f} s, instead of {wait_for}")
                time.sleep(0.2)
    except psycopg.Error as problem:
        raise ServerError(f"PostgreSQL: {str(problem).strip()}") from None
    for row in rows:
        print(*row, sep=" | ")
    return 0


def _move(folder: Path, kafka_ports: tuple[int, int]) -> int:
    """Restart Kafka under another address, with the same data."""
    kafka = KafkaBroker(folder / "kafka")
    kafka.stop()
    kafka.start(ports=kafka_ports, detached=True)
    _write_addresses(folder, kafka, PostgresServer(folder / "postgres"))
    print(f"kafka has moved: {kafka.bootstrap}")
    return 0


def _write_addresses(folder: Path, kafka: KafkaBroker, postgres: PostgresServer) -> None:
    """Write servers.json, with which a program can connect. A server that doesn't run has the pid null."""
    addresses = {
        "kafka": {
            "pid": kafka.pid,
            "bootstrap": kafka.bootstrap,
            "bootstrap2": kafka.bootstrap2,
            "log": str(kafka.log),
        },
        "postgres": {
            "pid": postgres.pid,
            "host": HOST,
            "port": postgres.port,
            "user": postgres.user,
            "password": postgres.password,
            "dsn": postgres.dsn(),
            "log": str(postgres.log),
        },
    }
    write_private(folder / "servers.json", json.dumps(addresses, indent=2) + "\n")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock the folder for one command: two at once would both find the servers down, and start them."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.servers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="start Kafka and PostgreSQL, unless they are running")
    up.add_argument(
        "--kafka-ports", type=_port_pair, metavar="A,B", help="ports of the broker's two listeners"
    )
    up.add_argument("--postgres-port", type=_port, metavar="P")
    down = commands.add_parser("down", help="stop the servers that `up` has started")
    down.add_argument("--delete-data", action="store_true", help="also delete topics and databases")
    commands.add_parser("status", help="show which servers run, and where; exit code 3 if one doesn't")
    send = commands.add_parser("send", help="send each line of a file to a topic")
    send.add_argument("topic", metavar="TOPIC")
    send.add_argument("file", type=Path, metavar="FILE", help="JSON objects, one a line")
    sql = commands.add_parser("sql", help="run SQL in the database postgres, as its superuser")
    sql.add_argument("statement", metavar="SQL")
    sql.add_argument("--wait-for", type=int, default=0, metavar="N", help="wait until there are N rows")
    move = commands.add_parser("move", help="restart Kafka on other ports, with all its data")
    move.add_argument("--kafka-ports", type=_port_pair, metavar="A,B", required=True)
    for command in commands.choices.values():
        command.add_argument(
            "--dir", type=Path, required=True, metavar="D", help="folder for data, logs and addresses"
        )
    return parser


def _port(text: str) -> int:
    port = int(text) if text.isascii() and text.isdigit() else 0
    if not 0 < port < 65_536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (1-65535)")
    return port


def _port_pair(text: str) -> tuple[int, int]:
    ports = [_port(part) for part in text.split(",")]
    if len(ports) != 2 or ports[0] == ports[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is not two different ports, such as 9092,9093")
    return ports[0], ports[1]


if __name__ == "__main__":
    sys.exit(main())
