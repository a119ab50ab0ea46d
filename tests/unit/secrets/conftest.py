"""A cache of secrets with a clock that tests set, and a stand-in for Vault."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mzplan.secrets import vault
from mzplan.secrets.providers import RemoteSecrets
from mzplan.secrets.references import Secrets
from tests.unit.vault_stand_in import VaultStandIn, vault_stand_in

VALUE = "pass\nword\0 ü"
JWT_FILE = "MZPLAN_VAULT_KUBERNETES_TOKEN_FILE"
OPERATORS = ("VAULT_ADDR", "VAULT_TOKEN", "VAULT_NAMESPACE", vault.ROLE_ID, vault.SECRET_ID)
OPERATORS += (vault.SECRET_ID_FILE, vault.KUBERNETES_ROLE, JWT_FILE, vault.AUTH_MOUNT)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def secrets(clock: Clock, tmp_path: Path) -> Secrets:
    """Secrets of a runner without variables, which reads a remote secret again after a minute."""
    return Secrets(str(tmp_path), {}, RemoteSecrets(60.0, clock))


@pytest.fixture(scope="module")
def vault_server() -> Iterator[VaultStandIn]:
    with vault_stand_in() as found:
        yield found


@pytest.fixture
def there(vault_server: VaultStandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> VaultStandIn:
    """Reset the stand-in, and set the variables to sign in with a token."""
    server = vault_server
    server.kept = {"secret/shop/pg": {"password": VALUE, "user": "app"}, "old/pg": {"password": "one"}}
    server.tokens, server.denied, server.asked = {"root"}, set(), []
    server.namespace, server.sealed, server.slow, server.parts = "", False, 0.0, ()
    for name in OPERATORS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("VAULT_ADDR", server.address)
    monkeypatch.setenv("VAULT_TOKEN", "root")
    monkeypatch.setattr(vault, "provider", vault.Vault())
    return server
