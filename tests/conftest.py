"""Fixtures for all tests. A server starts when the first test asks for it, so tests/unit waits for none.

If a server can't start, the tests that need it are errors; no test is skipped. Under pytest-xdist, each
worker process has its own servers. `reaper` ends every process that a run of tests has started.
"""

from __future__ import annotations

import gc
import itertools
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from examples.servers import ports
from tests import programs, reaper
from tests.java_options import start_quickly
from tests.schedule import QUICK, SessionScheduling

if TYPE_CHECKING:
    from examples.servers import KafkaBroker, PostgresServer, SshServer
    from tests.servers.ssh import AsyncSshServer

Server = TypeVar("Server", "KafkaBroker", "PostgresServer")
Ssh = TypeVar("Ssh", "SshServer", "AsyncSshServer")
_numbers = itertools.count(1)
SHORT = ("test_failpoints.py",)

start_quickly(os.environ)
os.environ.setdefault("MZPLAN_SECRETS_KEY", "the key of digests, in tests only")  # not the user's


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Write the expected files of tests/cases.")
    parser.addoption("--update-images", action="store_true", help="Write the pictures of the documentation.")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # A shell sets this for background jobs.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    worker = getattr(config, "workerinput", None)
    if worker is None:  # A worker of pytest-xdist already has the mark.
        reaper.watch()
    else:
        part = slice(int(worker["workerid"].removeprefix("gw")), None, worker["workercount"])
        ports.candidates = ports.candidates[part]


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of whole folders. The Makefile selects tests by these marks."""
    folder = _folder(item)
    if folder == "faults":
        item.add_marker("nightly")
    if folder in programs.FOLDERS:
        item.add_marker("programs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put quick tests first, and files of many short tests last, so that all workers end together."""
    items.sort(key=lambda item: (item.path.name in SHORT, _folder(item) not in QUICK))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    programs.set_path(item)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude everything that is loaded by now from garbage collection, because it stays to the end."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SessionScheduling:
    return SessionScheduling(config, log)


@pytest.fixture(autouse=True)
def _no_secrets_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the secrets that other tests resolved, so that they aren't masked in this test's output."""
    monkeypatch.setattr("mzplan.secrets.resolved._values", {})


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Return the session's broker. A test may leave it stopped, because ``topic`` starts it again."""
    from examples.servers import KafkaBroker

    yield from _running(KafkaBroker(tmp_path_factory.mktemp("kafka")))


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """Return the session's PostgreSQL server. A test may leave it stopped: ``database`` starts it again."""
    from examples.servers import PostgresServer

    yield from _running(PostgresServer(tmp_path_factory.mktemp("postgres")))


@pytest.fixture(scope="session")
def _other_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    from examples.servers import KafkaBroker

    yield from _running(KafkaBroker(tmp_path_factory.mktemp("other-kafka")))


@pytest.fixture
def own_kafka(_other_kafka: KafkaBroker) -> Iterator[KafkaBroker]:
    """Return a second, empty Kafka cluster with two listeners, which a test may stop, move or kill."""
    from examples.servers import delete_topic
    from examples.servers.ports import answers
    from examples.servers.topics import admin

    if not all(answers(port) for port in _other_kafka.ports):
        _other_kafka.stop()
    _other_kafka.start()
    for name in admin(_other_kafka.bootstrap).list_topics(timeout=30).topics:
        if not name.startswith("__"):
            delete_topic(_other_kafka.bootstrap, name)
    yield _other_kafka


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[PostgresServer]:
    """Return a new PostgreSQL server for one test, with its own system identifier and port."""
    from examples.servers import PostgresServer

    yield from _running(PostgresServer(tmp_path / "own-postgres"))


@pytest.fixture
def sshd_servers(tmp_path: Path) -> Iterator[Callable[[str], SshServer]]:
    """Return a function: ``sshd_servers("inner")`` starts OpenSSH's server, without any authorized key."""
    from examples.servers import SshServer

    yield from _ssh(lambda name: SshServer(tmp_path / f"ssh-{name}"))


@pytest.fixture
def ssh_servers() -> Iterator[Callable[[str], AsyncSshServer]]:
    """Return a function: ``ssh_servers("inner")`` starts asyncssh's server in the test's process."""
    from tests.servers.ssh import AsyncSshServer

    yield from _ssh(lambda _: AsyncSshServer())


@pytest.fixture
def topic(kafka: KafkaBroker, request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """Return a function that creates a topic with a unique name, and returns the name.

    ``topic("orders", partitions=3, config={"cleanup.policy": "compact"})``: the name begins with the first
    argument, which defaults to the test's name. The topics are deleted after the test.
    """
    from examples.servers import create_topic, delete_topic

    made: list[str] = []

    def create(prefix: str | None = None, partitions: int = 2, config: dict[str, str] | None = None) -> str:
        kafka.start()  # An earlier test may have stopped it.
        name = _unique(prefix or request.node.name, separator="-")
        create_topic(kafka.bootstrap, name, partitions, config=config)
        made.append(name)
        return name

    yield create
    kafka.start()
    for name in made:
        delete_topic(kafka.bootstrap, name)


@pytest.fixture
def database(postgres: PostgresServer, request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """Return a function that creates an empty database with a unique name, and returns the name.

    ``database("shop")``: the name begins with the argument, which defaults to the test's name. Connect with
    ``postgres.dsn(name)``. The databases and their replication slots are dropped after the test.
    """
    made: list[str] = []

    def create(prefix: str | None = None, encoding: str = "UTF8") -> str:
        postgres.start()  # An earlier test may have stopped it.
        name = _unique(prefix or request.node.name, separator="_")
        postgres.create_database(name, encoding)
        made.append(name)
        return name

    yield create
    postgres.start()
    for name in made:
        postgres.drop_database(name)


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(Path(__file__).parent).parts[0]


def _running(server: Server) -> Iterator[Server]:
    """Start a server, and stop it and remove its data at the end."""
    try:
        server.start()
        yield server
    finally:
        server.remove_data()


def _ssh(of: Callable[[str], Ssh]) -> Iterator[Callable[[str], Ssh]]:
    made: list[Ssh] = []

    def make(name: str) -> Ssh:
        made.append(of(name))
        made[-1].start()
        return made[-1]

    yield make
    for server in made:
        server.remove_data()


def _unique(prefix: str, *, separator: str) -> str:
    """Return a name that Kafka and PostgreSQL accept without quotes, of at most 63 characters."""
    plain = re.sub(r"[^a-z0-9]+", separator, prefix.lower().removeprefix("test_")).strip(separator)
    return f"{plain[:40]}{separator}{next(_numbers)}"
