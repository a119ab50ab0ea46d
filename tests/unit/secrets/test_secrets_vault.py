"""Secrets in HashiCorp Vault: `${vault:PATH#KEY}`, read with hvac from a stand-in (vault_stand_in)."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import requests

from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.secrets import vault
from mzplan.secrets.providers import RETRY_AFTER, NotReachableError, RemoteSecrets
from mzplan.secrets.references import Secrets
from mzplan.secrets.resolved import scrub
from mzplan.secrets.vault import guard
from tests.support import refusal
from tests.unit.secrets.conftest import JWT_FILE, VALUE, Clock
from tests.unit.vault_stand_in import VaultStandIn

PG = "${vault:secret/shop/pg#password}"


def problem(secrets: Secrets, reference: str = PG) -> Diagnostic:
    found = refusal(partial(secrets.resolve, reference))
    assert reference in found.summary and VALUE not in str(found) and "root" not in str(found)
    return found


def test_both_versions_of_kv_are_read_as_vault_kv_get_does(
    there: VaultStandIn, secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.kept["team/kv/a/b"], there.namespace = {"k#1": "nested"}, "shop/"
    monkeypatch.setenv("VAULT_NAMESPACE", "shop/")
    assert secrets.resolve(PG) == VALUE
    assert secrets.resolve("${vault:old/pg#password}") == "one"
    assert secrets.resolve("${vault:team/kv/a/b#k#1}") == "nested"
    assert scrub(f"it says {VALUE}") == "it says ***"


def test_a_thousand_references_to_one_secret_are_one_request_a_minute(
    there: VaultStandIn, secrets: Secrets, clock: Clock
) -> None:
    there.kept["secret/many"] = {f"k{i}": f"value {i}" for i in range(1000)}
    references = [f"${{vault:secret/many#k{i}}}" for i in range(1000)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(secrets.resolve, references)) == [f"value {i}" for i in range(1000)]
    assert there.asked == ["sys/internal/ui/mounts/secret/many", "secret/data/many"]
    clock.now = 59.0
    secrets.proposed().resolve(references[0])
    assert len(there.asked) == 2
    clock.now = 61.0
    secrets.resolve(references[0])
    assert len(there.asked) == 4


def test_missing_secrets_are_an_error(there: VaultStandIn, secrets: Secrets) -> None:
    for reference in ("${vault:secret/none#password}", "${vault:secret/shop/pg#other}"):
        found = problem(secrets, reference)
        assert found.code == "MZ056" and "store it in vault at secret/" in found.hint


def test_a_sealed_or_unreachable_vault_leaves_the_former_value(
    there: VaultStandIn, secrets: Secrets, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.sealed = True
    found = problem(secrets)
    assert found.code == "MZ260" and "sealed" in found.detail and "vault operator unseal" in found.hint
    asked = len(there.asked)
    problem(secrets, "${vault:old/pg#password}")  # it isn't asked again at once
    assert len(there.asked) == asked
    clock.now = RETRY_AFTER
    there.sealed = False
    assert secrets.resolve(PG) == VALUE
    monkeypatch.setenv("VAULT_ADDR", "http://127.0.0.1:1")
    clock.now = 100.0
    assert secrets.resolve(PG) == VALUE  # a query may restart
    with pytest.raises(MzplanError, match="MZ260"):
        secrets.resolve(PG, current=True)
    assert "http://127.0.0.1:1" in problem(secrets, "${vault:old/pg#password}").hint


def test_an_endless_answer_is_an_error(
    there: VaultStandIn, secrets: Secrets, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither slowly, with a part within each timeout, nor at once."""
    monkeypatch.setattr(vault, "TIMEOUT", 0.2)
    there.parts, there.slow = (b" ",) * 12, 0.05
    found = problem(secrets)
    assert found.code == "MZ260" and "answer within 0.2 s" in found.detail
    there.parts, there.slow, clock.now = (b" " * (1 << 20),) * 17, 0.0, RETRY_AFTER
    monkeypatch.setattr(vault, "TIMEOUT", 30.0)
    monkeypatch.setattr(vault, "provider", vault.Vault())
    found = problem(secrets)
    assert found.code == "MZ260" and "longer than 16 MiB" in found.detail


@pytest.fixture
def no_finalizers() -> Iterator[None]:
    """Disable garbage collection: a finalizer would fail while a deeply nested answer uses up the stack."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_finalizers")
@pytest.mark.parametrize("body", [b"null", b"[" * 100_000, b"<html>", b'{"data": []}'])
def test_invalid_answers_stop_no_query(
    body: bytes, there: VaultStandIn, secrets: Secrets, clock: Clock
) -> None:
    assert secrets.resolve("${vault:old/pg#password}") == "one"
    there.parts, clock.now = (body,), 60.0
    assert secrets.resolve("${vault:old/pg#password}") == "one"
    assert problem(secrets, "${vault:old/other#password}").code == "MZ260"


def test_a_redirect_to_http_gets_no_token(there: VaultStandIn) -> None:
    """A redirect names such an address."""
    with requests.Session() as session:
        guard(session, "https://vault.example")
        with pytest.raises(NotReachableError, match="sends no token"):
            session.get(there.address, timeout=5, headers={"X-Vault-Token": "root"})
    assert there.asked == []


def test_a_refused_login_or_path_is_an_error(there: VaultStandIn, secrets: Secrets) -> None:
    there.denied = {"secret/shop/pg"}
    found = problem(secrets)
    assert found.code == "MZ261" and "secret/shop/pg" in found.detail and "Vault policy" in found.hint
    there.tokens = set()
    found = problem(secrets, "${vault:old/pg#password}")
    assert found.code == "MZ261" and "expired" in found.detail and vault.ROLE_ID in found.hint


def test_a_token_file_is_read_again(
    there: VaultStandIn, secrets: Secrets, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VAULT_TOKEN")
    assert "no login" in problem(secrets).detail
    file = Path("~/.vault-token").expanduser()
    for now, token in enumerate(("first", "second"), 1):
        file.write_text(f"{token}\n")
        there.tokens, clock.now = {token}, now * 100.0
        assert secrets.resolve("${vault:old/pg#password}", current=True) == "one"


@pytest.mark.parametrize("way", ["approle", "secret-id-file", "kubernetes"])
def test_an_expired_login_is_renewed(
    way: str, there: VaultStandIn, secrets: Secrets, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = Path("~/login").expanduser()
    login.write_text("the pod's" if way == "kubernetes" else "s\n")
    ways = {
        "approle": {vault.ROLE_ID: "r", vault.SECRET_ID: "s"},
        "secret-id-file": {vault.ROLE_ID: "r", vault.SECRET_ID_FILE: str(login)},
        "kubernetes": {vault.KUBERNETES_ROLE: "mzplan", JWT_FILE: str(login)},
    }
    for name, value in ways[way].items():
        monkeypatch.setenv(name, value)
    assert secrets.resolve("${vault:old/pg#password}") == "one"
    there.tokens, clock.now = {"root"}, 100.0
    there.kept["old/pg"] = {"password": "two"}
    assert secrets.resolve("${vault:old/pg#password}") == "two"
    assert len([path for path in there.asked if path.endswith("/login")]) == 2
    monkeypatch.setenv(vault.ROLE_ID, "another")
    there.asked, clock.now = [], 200.0
    if way == "approle":
        found = problem(secrets)
        assert found.code == "MZ261" and "approle login" in found.detail and "another" not in str(found)


def test_a_project_cannot_change_the_server(there: VaultStandIn, tmp_path: Path, clock: Clock) -> None:
    """Values that a command hands to a runner don't change its environment."""
    handed = {"VAULT_ADDR": "http://127.0.0.1:1", "VAULT_TOKEN": "theirs", "VAULT_NAMESPACE": "theirs"}
    secrets = Secrets(str(tmp_path), handed, RemoteSecrets(60.0, clock)).proposed(handed)
    assert secrets.resolve("${vault:old/pg#password}") == "one"


def test_a_variable_or_file_with_the_runners_login_cannot_be_a_secret(
    there: VaultStandIn, secrets: Secrets, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("VAULT_TOKEN", "MZPLAN_VAULT_SECRET_ID"):
        secrets.environment[name] = "root"
        assert problem(secrets, f"${{env:{name}}}").code == "MZ263"
    for name in (".vault-token", "id", "jwt"):
        (tmp_path / name).write_text("a login")
    (tmp_path / "x").mkdir()
    (tmp_path / "link").symlink_to(".vault-token")
    (tmp_path / "again").hardlink_to(tmp_path / "id")
    assert secrets.resolve("${file:id}") == "a login"
    monkeypatch.setenv(vault.SECRET_ID_FILE, str(tmp_path / "id"))
    monkeypatch.setenv(vault.KUBERNETES_ROLE, "mzplan")
    monkeypatch.setenv(JWT_FILE, str(tmp_path / "jwt"))
    for name in (".vault-token", "id", "jwt", "link", "again", "x/../id", "/proc/self/environ"):
        assert problem(secrets, f"${{file:{name}}}").code == "MZ263"


@pytest.mark.parametrize("path", ["secret/../sys/x", "secret", "secret//x", "secret/a?b", "secret/%2e"])
def test_paths_outside_the_engine_are_not_requested(path: str, there: VaultStandIn, secrets: Secrets) -> None:
    assert problem(secrets, f"${{vault:{path}#k}}").code == "MZ261"
    assert there.asked == []


def test_commands_do_not_ask_vault(there: VaultStandIn, tmp_path: Path) -> None:
    found = problem(Secrets(str(tmp_path)))
    assert found.code == "MZ264" and there.asked == []


def test_the_package_may_be_missing(
    there: VaultStandIn, secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "hvac", None)
    found = problem(secrets)
    assert found.code == "MZ261" and "pip install 'mzplan[vault]'" in found.hint


@pytest.mark.parametrize("value", [5432, "\ud800", "x" * (1 << 21)])
def test_values_that_cannot_be_secrets(value: object, there: VaultStandIn, secrets: Secrets) -> None:
    there.kept["old/pg"] = {"password": value}
    assert problem(secrets, "${vault:old/pg#password}").code == "MZ103"
