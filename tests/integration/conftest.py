"""One project with one embedded runner for all integration tests; each test declares its own resources."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from string import Template

import pytest

from examples.servers import KafkaBroker, PostgresServer
from examples.servers.ports import free_port
from tests.event_collector import Collector, collecting
from tests.integration.orders_shop import OrdersShop
from tests.integration.spark_lab import Lab
from tests.support import Make, Project


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """The queries that a test has left running on the lab end before its topics and databases go."""
    try:
        if "lab" in getattr(item, "funcargs", ()):
            item.funcargs["lab"].stop_all()  # type: ignore[attr-defined]
    finally:
        yield


@pytest.fixture(scope="session")
def run_events() -> Iterator[Collector]:
    """What the runner of the shared project tells an OpenLineage server."""
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="session")
def shared_project(
    tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer, run_events: Collector
) -> Iterator[Project]:
    """The session's project. Its runner starts with the first apply, and ends with the session."""
    project = Project(tmp_path_factory.mktemp("project"), "shared", {"TEST_PG_PASSWORD": postgres.password})
    project.serve_metrics(free_port())
    project.report_runs(run_events.url)
    yield project
    project.down()


@pytest.fixture
def project(shared_project: Project) -> Iterator[Project]:
    """The shared project; what a test declared is destroyed after it."""
    kept = set(shared_project.folder.glob("*.yaml"))
    yield shared_project
    for path in set(shared_project.folder.glob("*.yaml")) - kept:
        path.unlink()
    done = shared_project.run("apply", "--auto-approve")
    assert done.returncode == 0, done.stdout + done.stderr + shared_project.log()


@pytest.fixture
def shop(
    project: Project, kafka: KafkaBroker, postgres: PostgresServer, topic: Make, database: Make
) -> OrdersShop:
    """The shared project, with a database of the test's own."""
    return OrdersShop(project, kafka, postgres, topic, database())


@pytest.fixture
def fill(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Put the paths of two files into hostile text: one that it would make, and one with a secret."""
    made, secret = tmp_path / "made", tmp_path / "secret.txt"
    secret.write_text("s3cr3t\n")
    yield lambda text: Template(text).safe_substitute(X=made, F=secret)
    assert not made.exists()


@pytest.fixture(scope="session")
def lab(
    tmp_path_factory: pytest.TempPathFactory, kafka: KafkaBroker, postgres: PostgresServer
) -> Iterator[Lab]:
    """A SparkExecutor in this process, shared by all tests of mzplan.spark."""
    lab = Lab(tmp_path_factory.mktemp("lab"), kafka, postgres)
    lab.executor.open()
    yield lab
    lab.executor.close()
