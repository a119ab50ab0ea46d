"""`packages` of a spark connection: jars that a runner's Spark loads when it starts."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import MagicMock

import pytest

from mzplan.connectors.admission import GuardedSecrets
from mzplan.model.diagnostics import MzplanError
from mzplan.model.state import State
from mzplan.runner.embedded import required_packages
from mzplan.schema.description import PACKAGES, describe, packages_of
from mzplan.secrets.policy import Policy, read_policy
from mzplan.spark.process.session import require_loaded
from mzplan.store.backends.local import LocalBackend
from mzplan.store.store import Store
from tests.support import refusal
from tests.unit.cli_runs import failed, write
from tests.unit.small_projects import at, commit, project, resource

DRIVER, OTHER = "org.postgresql:postgresql:42.7.4", "com.example:reader:1.0"
LINK = at("connection.db")


def jdbc(*packages: str) -> MagicMock:
    """Return a session that was started with these packages."""
    session = MagicMock()
    settings = {"spark.jars.packages": ",".join(packages), "spark.jars": "file:/j/reader-1.0.jar"}
    session.sparkContext.getConf().get = lambda name, default="": settings.get(name, default)
    return session


def state_of(*packages: str) -> State:
    connection = resource("connection.db", "spark", type="spark", format="jdbc", packages=[*packages])
    ticks = resource("source.ticks", "spark", type="spark", connection="db", schema="id BIGINT")
    return commit(project(connection, ticks))


def test_spark_starts_with_the_packages_of_committed_connections() -> None:
    state = state_of(DRIVER, OTHER)
    assert packages_of(state.resources) == {PACKAGES: (OTHER, DRIVER)}


def test_a_query_waits_for_a_runner_with_its_packages() -> None:
    require_loaded(jdbc(DRIVER), LINK, [DRIVER, OTHER])  # the other one was named as a jar
    found = refusal(lambda: require_loaded(jdbc("a:b:1"), LINK, [DRIVER]))
    assert found.code == "MZ129" and DRIVER in found.detail and "mzplan down" in found.hint
    require_loaded(jdbc(), LINK, [])


def test_a_policy_lists_the_packages_that_spark_may_load(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('packages = ["org.postgresql:*"]\n')
    policy = read_policy(str(path))
    assert isinstance(policy, Policy)
    secrets = GuardedSecrets(str(tmp_path), policy)
    for packages, code in ([DRIVER], ""), ([DRIVER, OTHER], "MZ363"):
        state = state_of(*packages)
        store = Store(LocalBackend(tmp_path / (code or "allowed")), "shop")
        store.commit(state, State(project="shop"))
        description = describe(state.resources[at("source.ticks")], state.resources)
        if not code:
            secrets.permit(description)
        else:
            assert refusal(lambda query=description: secrets.permit(query)).code == code
        assert required_packages(store, policy) == {PACKAGES: (DRIVER,)}
        assert set(required_packages(store)[PACKAGES]) == {*packages}
    path.write_text("packages = [1]\n")
    with pytest.raises(MzplanError, match="policy"):
        read_policy(str(path))


def test_packages_are_maven_coordinates(tmp_path: Path) -> None:
    write(tmp_path)
    connection = "connections: {db: {type: spark, format: jdbc, packages: ['org.postgresql:postgresql']}}\n"
    (tmp_path / "db.yaml").write_text(connection)
    found = failed(tmp_path, "validate", code=1)
    assert "packages[0]" in str(found)
