"""A secret rotated behind an unchanged reference restarts exactly the queries that use it (rule 12)."""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from mzplan.model.diagnostics import MzplanError
from mzplan.secrets.digests import digest_secret, is_comparable, is_same_secret, new_salt
from mzplan.secrets.references import Secrets
from tests.unit.cli_runs import PROJECT, mzplan

PIPELINE = """\
connections:
  k:
    type: kafka
    brokers: ["a:9092"]
    security: {protocol: SASL_SSL, sasl: {mechanism: PLAIN, username: u, password: "${env:ROTATE_KAFKA}"}}
  open: {type: kafka, brokers: ["b:9092"]}
  pg: {type: postgres, host: db, database: shop, user: app, password: "${env:ROTATE_PG}"}
sources:
  orders: {connection: k, topic: orders, format: {type: json, schema: "id BIGINT"}}
  other: {connection: open, topic: other, format: {type: json, schema: "id BIGINT"}}
sinks:
  out: {from: orders, connection: pg, table: t}
  shown: {type: console, from: orders}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROTATE_KAFKA", "first secret")
    monkeypatch.setenv("ROTATE_PG", "another secret")
    (tmp_path / "mzplan.yaml").write_text(PROJECT % "dry")
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    assert mzplan(tmp_path, "apply", "--auto-approve").code == 0
    return tmp_path


def plan(folder: Path, *options: str) -> Any:
    return mzplan(folder, "plan", "--json", *options).json()


def changes(document: Any) -> dict[str, tuple[str, str]]:
    return {c["address"]: (c["action"], c["reason"]) for c in document["changes"]}


def drift(document: Any) -> list[tuple[str, str]]:
    return [(d["address"], d["kind"]) for d in document["drift"]]


def queries(folder: Path) -> dict[str, Any]:
    return {query["address"]: query for query in mzplan(folder, "status", "--json").json()["queries"]}


def install_provider(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """Install this object as the secret provider `keeper` of another package."""

    def entry_points(*, group: str, name: str) -> list[EntryPoint]:
        assert group == "mzplan.secrets"
        return [EntryPoint(name, target, group)] if name == "keeper" else []

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)


def test_a_rotated_secret_restarts_exactly_its_dependents(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = plan(folder)
    assert found["changes"] == found["diagnostics"] == found["drift"] == []
    monkeypatch.setenv("ROTATE_KAFKA", "second secret")
    restart = {"source.orders": ("restart", "the value of ${env:ROTATE_KAFKA} changed")}
    assert changes(plan(folder)) == restart
    found = mzplan(folder, "drift", "--json", "--detailed-exitcode")
    assert (found.code, drift(found.json())) == (3, [("source.orders", "secret-rotated")])

    before = queries(folder)
    applied = mzplan(folder, "apply", "--auto-approve", "--json")
    assert applied.code == 0 and changes(applied.json()) == restart
    after = queries(folder)
    assert {a for a in after if after[a]["run_id"] != before[a]["run_id"]} == {"source.orders"}
    found = plan(folder)
    assert found["changes"] == found["drift"] == []


def test_a_review_job_without_the_secret_or_with_another_key_assumes_no_rotation(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def notice() -> str:
        found = plan(folder)
        (one,) = found["diagnostics"]
        assert (found["changes"], one["code"], one["severity"]) == ([], "MZ078", "notice")
        return str(one["detail"])

    monkeypatch.delenv("ROTATE_KAFKA")
    assert "${env:ROTATE_KAFKA}" in notice() and "ROTATE_PG" not in notice()
    monkeypatch.setenv("MZPLAN_SECRETS_KEY", "short")
    assert mzplan(folder, "plan", "--json").error()["code"] == "MZ112"
    monkeypatch.setenv("MZPLAN_SECRETS_KEY", "k" * 32)
    monkeypatch.setenv("ROTATE_KAFKA", "second secret")
    assert "MZPLAN_SECRETS_KEY" in notice()


def test_a_rotation_and_a_change_cause_one_restart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTATE_KAFKA", "second secret")
    monkeypatch.setenv("ROTATE_PG", "second secret")
    assert set(changes(plan(folder))) == {"source.orders", "sink.out"}
    assert set(changes(plan(folder, "--target", "connection.pg"))) == {"sink.out"}
    file = folder / "pipeline.yaml"
    file.write_text(file.read_text().replace("a:9092", "c:9092"))
    found = plan(folder)
    assert changes(found)["source.orders"][0] == "restart" and len(found["changes"]) == 3
    saved = folder / "saved.plan"
    assert mzplan(folder, "plan", "--out", str(saved)).code == 0
    assert mzplan(folder, "apply", str(saved)).code == 0
    assert plan(folder)["changes"] == []
    # A paused query has nothing to restart.
    assert mzplan(folder, "pause", "source.orders").code == 0
    monkeypatch.setenv("ROTATE_KAFKA", "third secret")
    assert plan(folder)["changes"] == []
    assert mzplan(folder, "resume", "source.orders").code == 0
    assert plan(folder)["changes"] == []


def test_the_store_has_only_digests_of_secrets_which_only_the_owner_can_read(folder: Path) -> None:
    status, state = folder / "state/status/local.json", folder / "state/mzplan.state.json"
    digests = json.loads(status.read_text())["secrets"]
    assert set(digests) == {"${env:ROTATE_KAFKA}", "${env:ROTATE_PG}"}
    for file in (folder / "state").rglob("*"):
        if file.is_file():
            assert b'secret"' not in file.read_bytes() and b"first secret" not in file.read_bytes()
    assert status.stat().st_mode & 0o777 == 0o600
    assert state.stat().st_mode & 0o777 == 0o644  # has no digest, and is for git


def test_equal_values_have_different_digests() -> None:
    salt = new_salt()
    digest = digest_secret("${env:A}", "value", salt)
    assert is_same_secret("${env:A}", "value", digest) and not is_same_secret("${env:A}", "other", digest)
    others = {digest_secret("${env:B}", "value", salt), digest_secret("${env:A}", "value", "00")}
    assert len(others - {digest}) == 2


def test_without_the_key_passwords_cannot_be_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of the store has the salt, the cost and the digest, but not the key."""
    digest = digest_secret("${env:A}", "Summer2026", "00")
    _, cost, _, salt, there = digest.split(":")
    known = {"salt": bytes.fromhex(salt) + b"${env:A}", "n": 2 ** int(cost), "maxmem": 2**27}
    unkeyed = hashlib.scrypt(b"Summer2026", **known, r=8, p=1, dklen=32)
    assert unkeyed.hex() != there and int(cost) >= 15
    monkeypatch.setenv("MZPLAN_SECRETS_KEY", "k" * 32)
    assert digest_secret("${env:A}", "Summer2026", "00").split(":")[4] != there
    # With another key nothing can be seen: it is no change.
    assert not is_comparable(digest) and is_same_secret("${env:A}", "another", digest)


def test_the_key_file_is_private_and_only_runners_create_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MZPLAN_SECRETS_KEY")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert not is_comparable("keyed:15:a:00:11") and is_same_secret("${env:A}", "v", "keyed:15:a:00:11")
    assert not (tmp_path / "config").exists()
    digest = digest_secret("${env:A}", "v", "00")
    path = tmp_path / "config" / "mzplan" / "secrets.key"
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    assert is_comparable(digest) and list(path.parent.iterdir()) == [path]
    path.unlink()
    assert not is_comparable(digest)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/nowhere")  # where nothing can be written: one of the process
    assert digest_secret("${env:A}", "v", "00") == digest_secret("${env:A}", "v", "00")


def test_a_provider_is_found_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    install_provider(monkeypatch, "tests.unit.secrets.test_rotation:keeper")
    secrets = Secrets(".", {})
    assert secrets.resolve("${keeper:pg}") == "from the keeper: pg"
    for broken in ("${keeper:boom}", "${keeper:none}", "${nobody:x}"):
        with pytest.raises(MzplanError, match="MZ056"):
            secrets.resolve(broken)


def keeper(name: str) -> str | None:
    """A provider of another package."""
    if name == "boom":
        raise RuntimeError("what it says may hold a secret")
    return None if name == "none" else f"from the keeper: {name}"
