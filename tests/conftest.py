"""Fixtures for all tests. Servers start when the first test asks for one, so tests/unit never waits for any.

No test is skipped for want of a server: if one can't start, the tests that need it are errors. Under
pytest-xdist each worker process has servers of its own. What they have started ends with them (`reaper`).
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
os.environ.setdefault("MZPLAN_SECRETS_KEY", "the key of digests, in tests only")  # none in the home


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="Write the expected files of tests/cases.")
    parser.addoption("--update-images", action="store_true", help="Write the pictures of the documentation.")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell; children inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):  # else pytest-xdist has started this process: it is marked already
        reaper.watch()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of whole folders. The Makefile says which marks a target runs."""
    folder = _folder(item)
    if folder == "faults":
        item.add_marker("nightly")
    if folder in programs.FOLDERS:
        item.add_marker("programs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Quick tests come first. Many short ones come last, so that no worker is left alone with a long one."""
    items.sort(key=lambda item: (item.path.name in SHORT, _folder(item) not in QUICK))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    programs.set_path(item)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was imported and collected stays to the end: no collection of garbage looks at it again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SessionScheduling:
    return SessionScheduling(config, log)


@pytest.fixture(autouse=True)
def _no_secrets_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test has resolved is not blotted out of the output of the next."""
    monkeypatch.setattr("mzplan.secrets.resolved._values", {})


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """The session's broker, shared by all tests. A test that stops it may leave it so (see ``topic``)."""
    from examples.servers import KafkaBroker

    yield from _running(KafkaBroker(tmp_path_factory.mktemp("kafka")))


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """The session's PostgreSQL server, shared by all tests. A test that stops it may leave it so."""
    from examples.servers import PostgresServer

    yield from _running(PostgresServer(tmp_path_factory.mktemp("postgres")))


@pytest.fixture(scope="session")
def _other_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    from examples.servers import KafkaBroker

    yield from _running(KafkaBroker(tmp_path_factory.mktemp("other-kafka")))


@pytest.fixture
def own_kafka(_other_kafka: KafkaBroker) -> Iterator[KafkaBroker]:
    """Another cluster than ``kafka``, empty and on both listeners, that a test may stop, move or kill."""
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
    """A new PostgreSQL server for one test, with a system identifier and a port of its own."""
    from examples.servers import PostgresServer

    yield from _running(PostgresServer(tmp_path / "own-postgres"))


@pytest.fixture
def sshd_servers(tmp_path: Path) -> Iterator[Callable[[str], SshServer]]:
    """``sshd_servers("inner")``: a new server for one test, OpenSSH's, running, that lets nobody in yet."""
    from examples.servers import SshServer

    yield from _ssh(lambda name: SshServer(tmp_path / f"ssh-{name}"))


@pytest.fixture
def ssh_servers() -> Iterator[Callable[[str], AsyncSshServer]]:
    """The same with asyncssh's, in the test's process."""
    from tests.servers.ssh import AsyncSshServer

    yield from _ssh(lambda _: AsyncSshServer())


@pytest.fixture
def topic(kafka: KafkaBroker, request: pytest.FixtureRequest) -> Iterator[Callable[..., str]]:
    """``topic()`` creates a topic and returns its name, which no other test has.

    ``topic("orders", partitions=3, config={"cleanup.policy": "compact"})``: the name begins with the first
    argument, by default the test's name. The topics are deleted after the test.
    """
    from examples.servers import create_topic, delete_topic

    made: list[str] = []

    def create(prefix: str | None = None, partitions: int = 2, config: dict[str, str] | None = None) -> str:
        kafka.start()  # if the test before this one has left it down
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
    """``database()`` creates an empty database and returns its name, which no other test has.

    ``database("shop")``: the name begins with the argument, by default the test's name; its address is
    ``postgres.dsn(name)``. The databases are dropped after the test, with their replication slots.
    """
    made: list[str] = []

    def create(prefix: str | None = None, encoding: str = "UTF8") -> str:
        postgres.start()  # if the test before this one has left it down
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
    """Start a server; at the end, stop it and remove its data."""
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
    """A name for Kafka and PostgreSQL alike: short enough (63) and of characters that need no quotes."""
    plain = re.sub(r"[^a-z0-9]+", separator, prefix.lower().removeprefix("test_")).strip(separator)
    return f"{plain[:40]}{separator}{next(_numbers)}"
