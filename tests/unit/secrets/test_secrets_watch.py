"""A runner detects without a restart that a secret has a new value: in Vault, in a mounted file, or at
another package's provider. Plans read this from the status."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from mzplan.connectors.admission import GuardedSecrets
from mzplan.controller import secrets_in_use
from mzplan.controller.memory import InMemoryExecutor
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError
from mzplan.secrets.policy import read_policy
from mzplan.secrets.providers import REFRESH_VARIABLE, RemoteSecrets, refresh_s
from mzplan.secrets.references import Secrets
from tests.support import eventually, refusal
from tests.unit.cli_runner import following
from tests.unit.cli_runs import mzplan
from tests.unit.secrets.test_rotation import changes, drift, install_provider, plan, queries
from tests.unit.security.test_security_runner import password_of, query, shop
from tests.unit.vault_stand_in import VaultStandIn

ROOT = Path(__file__).parents[3]
PROJECT = "version: 1\nproject: shop\ninstances: {local: {type: cluster}}\nretries: {first: 60s}\n"
ORDERS = Address("source", "orders")
PIPELINE = """\
connections:
  k:
    type: kafka
    brokers: ["a:9092"]
    security: {protocol: SASL_SSL, sasl: {mechanism: PLAIN, username: u, password: "%s"}}
  open: {type: kafka, brokers: ["b:9092"]}
sources:
  orders: {connection: k, topic: orders, format: {type: json, schema: "id BIGINT"}}
  other: {connection: open, topic: other, format: {type: json, schema: "id BIGINT"}}
sinks:
  shown: {type: console, from: orders}
"""


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets_in_use, "READ_INTERVAL", 0.05)
    monkeypatch.setattr("mzplan.secrets.providers.RETRY_AFTER", 0.05)


def written(folder: Path, reference: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "mzplan.yaml").write_text(PROJECT)
    (folder / "pipeline.yaml").write_text(PIPELINE % reference)
    return folder


def orders(folder: Path) -> Any:
    """Return the status of source.orders, which uses the secret."""
    return queries(folder)["source.orders"]


def runs(executor: InMemoryExecutor) -> dict[str, str]:
    return {str(address): report.run_id for address, report in executor.running().items()}


def test_a_secret_rotated_in_vault_restarts_only_its_user_and_a_seal_stops_no_query(
    tmp_path: Path, there: VaultStandIn
) -> None:
    reference = "${vault:secret/kafka#password}"
    folder = written(tmp_path, reference)
    there.kept["secret/kafka"] = {"password": "the first", "user": "u"}

    def warning() -> str:
        return orders(folder)["warning"] or ""

    with following(folder, secrets=Secrets(".", {}, RemoteSecrets(0.1))) as executor:
        assert mzplan(folder, "apply", "--auto-approve").code == 0
        first = runs(executor)
        before = plan(folder)
        assert before["changes"] == before["drift"] == []
        (notice,) = [d["detail"] for d in before["diagnostics"] if d["code"] == "MZ078"]
        assert reference in notice  # the plan itself doesn't ask Vault
        there.kept["secret/kafka"] = {"password": "the second"}
        eventually("the plan shows it", lambda: plan(folder)["changes"], 30)
        now = plan(folder)
        assert changes(now) == {"source.orders": ("restart", f"the value of {reference} changed")}
        assert drift(now) == [("source.orders", "secret-rotated")]
        assert runs(executor) == first  # the running queries continue
        assert mzplan(folder, "apply", "--auto-approve").code == 0
        second = runs(executor)
        assert {a for a in second if second[a] != first[a]} == {"source.orders"}
        eventually("the new value is the one in use", lambda: plan(folder)["changes"] == [], 30)

        there.sealed = True
        eventually("the status shows it", lambda: bool(warning()), 30)
        assert reference in warning() and "vault operator unseal" in warning()
        assert plan(folder)["changes"] == []
        # A restart uses the former value.
        assert mzplan(folder, "restart", "source.orders").code == 0
        third = runs(executor)
        assert third.keys() == second.keys() and third["source.other"] == second["source.other"]
        there.sealed = False
        eventually("the warning ends", lambda: not warning(), 30)
    for file in (folder / "state").rglob("*"):
        assert not file.is_file() or not re.search(rb"the (first|second)", file.read_bytes())


def test_a_failed_query_is_retried_with_the_new_value_of_a_mounted_file(tmp_path: Path) -> None:
    """Kubernetes replaces a secret's files by changing the link `..data`. The server has another password
    before the file has it, and the next attempt would take a minute."""
    folder, mounted = written(tmp_path / "project", "${file:mounted/password}"), tmp_path / "pod" / "mounted"
    mounted.mkdir(parents=True)
    password = mounted / "password"
    password.symlink_to("..data/password")

    def mount(version: str, value: str) -> None:
        (mounted / version).mkdir()
        (mounted / version / "password").write_text(value)
        (mounted / "..data_tmp").symlink_to(version)
        (mounted / "..data_tmp").replace(mounted / "..data")

    mount("..2026_1", "first")
    with following(folder, secrets=Secrets(str(mounted.parent))) as executor:
        assert mzplan(folder, "apply", "--auto-approve").code == 0
        executor.fail_start = lambda one: (
            "refused" if one.address == ORDERS and password.read_text() == "first" else None
        )
        executor.fail_query(executor.running()[ORDERS].name, "refused")
        eventually("it fails", lambda: orders(folder)["condition"] == "failed", 30)
        mount("..2026_2", "second")
        eventually("it runs again", lambda: orders(folder)["condition"] == "running", 30)
        because = orders(folder)["started_because"]
        assert (because["cause"], because["detail"]) == ("secret", "new value of ${file:mounted/password}")


# --- what a reference may name


def test_secrets_that_the_policy_refuses_are_not_requested(tmp_path: Path, there: VaultStandIn) -> None:
    there.kept = {f"secret/{one}/pg": {"password": "p"} for one in ("shop", "other")}
    path = tmp_path / "policy.toml"
    path.write_text('[[allow]]\nreferences = ["${vault:secret/shop/*}"]\nhosts = ["*"]\n')
    secrets = GuardedSecrets(".", read_policy(str(path)), {}, RemoteSecrets(60.0))

    def asked(reference: str) -> Any:
        return password_of(query(shop(password=reference)), secrets)

    for other in ("secret/other/pg", "secret/shop/x/pg"):
        with pytest.raises(MzplanError, match="MZ106"):
            asked(f"${{vault:{other}#password}}")
    assert there.asked == []
    assert asked("${vault:secret/shop/pg#password}") == "p"


@pytest.mark.parametrize(
    ("reference", "detail"),
    [
        ("${vault:secret/pg}", "has no key"),
        ("${vault:secret/../sys/x#k}", "MOUNT/PATH"),
        ("${aws-sm:a b}", "neither an ARN nor a secret's name"),
        ("${aws-sm:a#}", "The key after # is missing"),
        ("${vaul:secret/pg#k}", "no secret provider"),
    ],
)
def test_a_malformed_reference_is_found_by_validate(reference: str, detail: str, tmp_path: Path) -> None:
    found = mzplan(written(tmp_path, reference), "validate", "--json").error()
    assert (found["code"], detail in found["detail"]) == ("MZ017", True) and "vault" in found["hint"]


def test_the_operator_sets_the_refresh_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, seconds in (("", 60.0), ("5", 5.0), ("0", 60.0), ("soon", 60.0), ("nan", 60.0)):
        monkeypatch.setenv(REFRESH_VARIABLE, given)
        assert refresh_s() == seconds


# --- the door for other packages


def example() -> str:
    """Return the code of the provider in the documentation."""
    page = (ROOT / "docs" / "how-to" / "secrets-from-vault.md").read_text()
    return next(block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def read" in block)


def test_the_provider_of_the_documentation_is_found_and_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mzplan_keeper.py").write_text(example())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("KEEPER_FOLDER", str(tmp_path / "kept"))
    install_provider(monkeypatch, "mzplan_keeper:provider")
    secrets, reference = Secrets(".", {}, RemoteSecrets(0.0)), "${keeper:kafka#password}"
    with pytest.raises(MzplanError, match=r"MZ260.*\$\{keeper:kafka#password\}"):
        secrets.resolve(reference)
    (tmp_path / "kept").mkdir()
    for value in ("the first", "the second"):
        (tmp_path / "kept" / "kafka.json").write_text(json.dumps({"password": value}))
        time.sleep(0.06)
        assert secrets.resolve(reference) == value
    assert secrets.is_watched(reference)
    with pytest.raises(MzplanError, match="MZ056"):
        secrets.resolve("${keeper:none#password}")


class Broken:
    def read(self, path: str) -> str:
        raise RuntimeError("its text may contain a secret")


broken = Broken()


def test_the_error_of_a_broken_provider_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    install_provider(monkeypatch, "tests.unit.secrets.test_secrets_watch:broken")
    found = refusal(lambda: Secrets(".", {}, RemoteSecrets(60.0)).resolve("${keeper:x}"))
    assert found.code == "MZ261" and "may contain" not in str(found) and "RuntimeError" in str(found)
