"""A runner detects without a restart that a secret has a new value: in Vault, in a mounted file, or at
another package's provider. Plans read this from the status."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from mzplan.connectors.admission import GuardedSecrets
from mzplan.controller import secrets_in_use
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError
from mzplan.secrets import vault
from mzplan.secrets.policy import read_policy
from mzplan.secrets.references import Secrets
from mzplan.secrets.remote import REFRESH_VARIABLE, RemoteSecrets, refresh_s
from tests.unit.cli_runner import following
from tests.unit.cli_runs import run
from tests.unit.security.test_security_runner import password_of, query, shop
from tests.unit.vault_stand_in import VaultStandIn, vault_stand_in

ROOT = Path(__file__).parents[3]
PROJECT = "version: 1\nproject: shop\ninstances:\n  local: {type: cluster}\n"
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
    monkeypatch.setattr("mzplan.secrets.remote.RETRY_AFTER", 0.05)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[VaultStandIn]:
    with vault_stand_in() as found:
        monkeypatch.setenv("VAULT_ADDR", found.address)
        monkeypatch.setenv("VAULT_TOKEN", "root")
        monkeypatch.setattr(vault, "provider", vault.Vault())
        yield found


def written(folder: Path, reference: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "mzplan.yaml").write_text(PROJECT)
    (folder / "pipeline.yaml").write_text(PIPELINE % reference)
    return folder


def plan(folder: Path) -> Any:
    return run("-C", str(folder), "plan", "--json").json()


def eventually(holds: Callable[[], object], what: str) -> None:
    until = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def rotated_under_a_runner(
    folder: Path, reference: str, secrets: Secrets, change: Callable[[], object]
) -> list[str]:
    """Apply, change the value, and check that only its user restarts. Returns the first plan."""
    with following(folder, secrets=secrets) as executor:
        assert run("-C", str(folder), "apply", "--auto-approve").code == 0
        first = {str(a): r.run_id for a, r in executor.running().items()}
        before = plan(folder)
        assert before["changes"] == [] and before["drift"] == []
        change()
        eventually(lambda: plan(folder)["changes"], "the plan shows it")
        now = plan(folder)
        assert [(c["address"], c["action"], c["reason"]) for c in now["changes"]] == [
            ("source.orders", "restart", f"the value of {reference} changed")
        ]
        assert [(d["address"], d["kind"]) for d in now["drift"]] == [("source.orders", "secret-rotated")]
        assert {str(a): r.run_id for a, r in executor.running().items()} == first  # found, and left running
        assert run("-C", str(folder), "apply", "--auto-approve").code == 0
        second = {str(a): r.run_id for a, r in executor.running().items()}
        assert {a for a in second if second[a] != first[a]} == {"source.orders"}
        eventually(lambda: plan(folder)["changes"] == [], "the new value is the one in use")
    return [d["detail"] for d in before["diagnostics"] if d["code"] == "MZ078"]


def test_a_secret_rotated_in_vault(tmp_path: Path, server: VaultStandIn) -> None:
    reference = "${vault:secret/kafka#password}"
    folder = written(tmp_path, reference)
    server.kept["secret/kafka"] = {"password": "the first", "user": "u"}
    said = rotated_under_a_runner(
        folder,
        reference,
        Secrets(".", {}, RemoteSecrets(0.1)),
        lambda: server.kept.update({"secret/kafka": {"password": "the second"}}),
    )
    assert reference in said[0]  # a plan that asks nobody says so
    for file in (folder / "state").rglob("*"):
        assert not file.is_file() or not re.search(rb"the (first|second)", file.read_bytes())


def test_a_sealed_vault_stops_no_query(tmp_path: Path, server: VaultStandIn) -> None:
    folder = written(tmp_path, "${vault:secret/kafka#password}")
    server.kept["secret/kafka"] = {"password": "the first"}

    def warning() -> str:
        queries = run("-C", str(folder), "status", "--json").json()["queries"]
        return next(q["warning"] for q in queries if q["address"] == "source.orders") or ""

    with following(folder, secrets=Secrets(".", {}, RemoteSecrets(0.1))) as executor:
        assert run("-C", str(folder), "apply", "--auto-approve").code == 0
        first = {str(a): r.run_id for a, r in executor.running().items()}
        server.sealed = True
        eventually(warning, "the status says so")
        assert "${vault:secret/kafka#password}" in warning() and "vault operator unseal" in warning()
        assert plan(folder)["changes"] == []
        # What has to restart meanwhile does, with the value that it had.
        assert run("-C", str(folder), "restart", "source.orders").code == 0
        second = {str(a): r.run_id for a, r in executor.running().items()}
        assert second.keys() == first.keys() and second["source.other"] == first["source.other"]
        server.sealed = False
        eventually(lambda: not warning(), "it is over")


def test_a_secret_rotated_in_a_mounted_file(tmp_path: Path) -> None:
    """Kubernetes replaces a secret's files by changing the link `..data`."""
    pod, folder = tmp_path / "pod", written(tmp_path / "project", "${file:mounted/password}")
    mounted = pod / "mounted"
    mounted.mkdir(parents=True)

    def mount(version: str, value: str) -> None:
        (mounted / version).mkdir()
        (mounted / version / "password").write_text(value)
        (mounted / "..data_tmp").symlink_to(version)
        (mounted / "..data_tmp").replace(mounted / "..data")

    mount("..2026_1", "the first")
    (mounted / "password").symlink_to("..data/password")
    # The file is the pod's alone: where the plan is made it has no value.
    said = rotated_under_a_runner(
        folder, "${file:mounted/password}", Secrets(str(pod)), lambda: mount("..2026_2", "the second")
    )
    assert "${file:mounted/password}" in said[0]


def test_failed_queries_are_retried_with_the_new_value(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("wrong")
    watch = secrets_in_use.SecretsWatch(Secrets(str(tmp_path)), _Inline(), time.monotonic)  # type: ignore[arg-type]
    in_use = {"${file:password}": {b"what it was started with"}}
    assert watch.poll({**in_use, "${env:HOME}": set()}) == set()
    assert set(watch.reads) == {"${file:password}"}
    (tmp_path / "password").write_text("right")
    time.sleep(0.06)
    assert watch.poll(in_use) == {"${file:password}"}
    (tmp_path / "password").unlink()
    time.sleep(0.06)
    assert watch.poll(in_use) == set()
    assert "MZ056" in str(watch.problems) and "can't be read" not in str(watch.problem(["${env:HOME}"]))


def test_a_rotation_that_an_apply_handled_is_not_reported(tmp_path: Path) -> None:
    """The runner reads the new value up to five seconds after the apply."""
    (tmp_path / "password").write_text("first")
    in_use = secrets_in_use.SecretsInUse(Secrets(str(tmp_path)), {}, _Inline(), time.monotonic)  # type: ignore[arg-type]
    sink, source = Address("sink", "s"), Address("source", "s")

    def start(address: Address, value: str) -> None:
        values = {"${file:password}": value}
        in_use.record_start(address, secrets_in_use.ReadValues(at=time.monotonic(), by_reference=values))

    start(sink, "first")
    start(source, "first")
    assert in_use.changed_references() == set()
    (tmp_path / "password").write_text("second")
    start(sink, "second")
    time.sleep(0.06)
    assert in_use.changed_references() == {"${file:password}"}  # the source has the first one
    (tmp_path / "password").write_text("third")
    start(sink, "third")
    start(source, "third")
    time.sleep(0.06)
    assert in_use.changed_references() == set()


class _Inline:
    """Runs tasks at once."""

    def submit(self, call: Callable[..., None], *arguments: Any) -> Any:
        call(*arguments)
        return _Ended()


class _Ended:
    def done(self) -> bool:
        return True


# --- what may be asked for


def test_secrets_that_the_policy_refuses_are_not_requested(tmp_path: Path, server: VaultStandIn) -> None:
    server.kept = {f"secret/{one}/pg": {"password": "p"} for one in ("shop", "other")}
    path = tmp_path / "policy.toml"
    path.write_text('[[allow]]\nreferences = ["${vault:secret/shop/*}"]\nhosts = ["*"]\n')
    secrets = GuardedSecrets(".", read_policy(str(path)), {}, RemoteSecrets(60.0))

    def asked(reference: str) -> Any:
        return password_of(query(shop(password=reference)), secrets)

    for other in ("secret/other/pg", "secret/shop/x/pg"):
        with pytest.raises(MzplanError, match="MZ106"):
            asked(f"${{vault:{other}#password}}")
    assert server.asked == []
    assert asked("${vault:secret/shop/pg#password}") == "p"


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("${vault:secret/pg}", "has no key"),
        ("${vault:secret/../sys/x#k}", "MOUNT/PATH"),
        ("${vault:secret#k}", "MOUNT/PATH"),
        ("${aws-sm:a b}", "neither an ARN nor a secret's name"),
        ("${aws-sm:a#}", "The key after # is missing"),
        ("${vaul:secret/pg#k}", "no secret provider"),
    ],
)
def test_a_malformed_reference_is_found_by_validate(reference: str, said: str, tmp_path: Path) -> None:
    found = run("-C", str(written(tmp_path, reference)), "validate", "--json").error()
    assert (found["code"], said in found["detail"]) == ("MZ017", True) and "vault" in found["hint"]


def test_the_operator_sets_the_refresh_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, seconds in (("", 60.0), ("5", 5.0), ("0", 60.0), ("soon", 60.0), ("nan", 60.0)):
        monkeypatch.setenv(REFRESH_VARIABLE, given)
        assert refresh_s() == seconds


# --- the door for other packages


def example() -> str:
    """Return the code of the provider in the documentation."""
    page = (ROOT / "docs" / "how-to" / "secrets-from-vault.md").read_text()
    return next(block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def read" in block)


def test_the_example_of_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mzplan_keeper.py").write_text(example())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("KEEPER_FOLDER", str(tmp_path / "kept"))

    def found(*, group: str, name: str) -> list[EntryPoint]:
        assert group == "mzplan.secrets"
        return [EntryPoint(name, "mzplan_keeper:provider", group)] if name == "keeper" else []

    monkeypatch.setattr("importlib.metadata.entry_points", found)
    secrets = Secrets(".", {}, RemoteSecrets(0.0))
    with pytest.raises(MzplanError, match=r"MZ260.*\$\{keeper:kafka#password\}"):
        secrets.resolve("${keeper:kafka#password}")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "kafka.json").write_text('{"password": "the first"}')
    time.sleep(0.06)
    reference = "${keeper:kafka#password}"
    assert secrets.resolve(reference) == "the first" and secrets.is_watched(reference)
    with pytest.raises(MzplanError, match="MZ056"):
        secrets.resolve("${keeper:none#password}")
    folder = written(tmp_path / "project", reference)
    rotated_under_a_runner(
        folder,
        reference,
        Secrets(".", {}, RemoteSecrets(0.1)),
        lambda: (tmp_path / "kept" / "kafka.json").write_text('{"password": "the second"}'),
    )


class Broken:
    def read(self, path: str) -> str:
        raise RuntimeError("what it says may hold a secret")


def test_the_error_of_a_broken_provider_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mzplan.secrets.references._provider", lambda _: Broken())
    with pytest.raises(MzplanError, match="MZ261") as caught:
        Secrets(".", {}, RemoteSecrets(60.0)).resolve("${keeper:x}")
    said = str(caught.value.diagnostics[0])
    assert "may contain" not in said and "RuntimeError" in said
