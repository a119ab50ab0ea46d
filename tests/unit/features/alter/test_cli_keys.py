"""`ROTATE KEYS` changes key files, the YAML file and the state together, or nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest import mock

import asyncssh

from mzplan.features.alter.key_pairs import NewKeys
from mzplan.model.resources import PropertyEdit
from tests.support import refusal
from tests.unit.cli_runs import PROJECT, apply, mzplan
from tests.unit.features.alter.alter_runs import alter

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJJeD2CCNe3j7MDdajOWigJ+7H6r+e/usFpRIGat6Pij"
PIPELINE = """\
connections:
  k: {{type: kafka, brokers: ['a:9092']}}
  {inner}:
    type: ssh-tunnel
    host: inner
    user: t
    host_keys: [{key}]
    ssh_tunnel: {outer}   # the way in
  {outer}: {{type: ssh-tunnel, host: outer, user: t, host_keys: [{key}]}}
  {pg}: {{type: postgres, host: db, database: s, user: u, ssh_tunnel: {inner}}}
  other: {{type: postgres, host: db, database: s, user: u}}
  registry: {{type: schema-registry, url: 'http://r:8081', ssh_tunnel: {outer}}}
sources:
  orders:
    connection: k
    topic: orders
    format: {{type: json, schema: "id BIGINT"}}
    schema_registry: registry
sinks:
  far: {{from: orders, connection: {pg}, table: o}}
  near: {{from: orders, connection: other, table: o}}
"""


def project(folder: Path, inner: str = "inner", outer: str = "outer", pg: str = "pg") -> Path:
    (folder / "mzplan.yaml").write_text(PROJECT % "dry")
    text = PIPELINE.format(inner=inner, outer=outer, pg=pg, key=HOST_KEY)
    (folder / "pipeline.yaml").write_text(text)
    apply(folder)
    return folder


def reasons(document: dict[str, Any]) -> dict[str, str]:
    return {c["address"]: c["reason"] for c in document["changes"] if c["action"] == "restart"}


def key_files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "keys").glob("*") if path.name != ".gitignore")


def test_key_pairs_are_created_promoted_and_kept_private(tmp_path: Path) -> None:
    folder = project(tmp_path)
    first = alter(folder, "ALTER CONNECTION outer ROTATE KEYS", "--auto-approve", "--json").json()
    assert key_files(folder) == ["outer-1", "outer-1.pub", "outer-2", "outer-2.pub"]
    assert (folder / "keys" / ".gitignore").exists()
    for name in ("outer-1", "outer-2"):
        path = folder / "keys" / name
        assert path.stat().st_mode & 0o777 == 0o600
        public = asyncssh.read_private_key(path).export_public_key().decode().strip()
        assert (folder / "keys" / f"{name}.pub").read_text().strip() == public
        assert public in first["public_keys"].values()
    assert (folder / "keys").stat().st_mode & 0o777 == 0o700
    assert reasons(first) == {
        "sink.far": "connection.outer changed, through connection.pg and connection.inner",
        "source.orders": "connection.outer changed, through connection.registry",
    }
    assert first["changes"][-1]["through"] == {"connection.outer": ["connection.pg", "connection.inner"]}

    shown = alter(folder, "ALTER CONNECTION outer ROTATE KEYS", "--auto-approve")
    assert shown.code == 0 and f"  private_key  {first['public_keys']['secondary_key']}" in shown.out
    text = (folder / "pipeline.yaml").read_text()
    assert 'private_key: "${file:keys/outer-2}", secondary_key: "${file:keys/outer-3}"' in text
    assert "   # the way in\n" in text
    for path in [folder / "pipeline.yaml", *(folder / "state").rglob("*"), *(folder / ".mzplan").rglob("*")]:
        assert not path.is_file() or b"PRIVATE KEY" not in path.read_bytes()
    assert mzplan(folder, "plan", "--json").json()["changes"] == []


def test_a_rotation_that_does_not_happen_leaves_nothing(tmp_path: Path) -> None:
    folder, statement = project(tmp_path), "ALTER CONNECTION inner ROTATE KEYS"
    files = (folder / "pipeline.yaml", folder / "state/mzplan.state.json")
    before = [file.read_bytes() for file in files]

    def unchanged() -> bool:
        return [file.read_bytes() for file in files] == before and key_files(folder) == []

    dry = alter(folder, statement, "--dry-run", "--json").json()
    assert reasons(dry) == {"sink.far": "connection.inner changed, through connection.pg"} and unchanged()
    assert alter(folder, statement).code == 64 and unchanged(), "there is no terminal on which to approve it"
    with mock.patch("mzplan.operations.apply.packages_of", side_effect=KeyboardInterrupt):
        assert alter(folder, statement, "--auto-approve").code == 130
    assert unchanged()
    with mock.patch.object(os, "fsync", side_effect=OSError(28, os.strerror(28))):
        failed = alter(folder, statement, "--no-apply", "--json")
    assert failed.error()["code"] == "MZ035" and unchanged()


def test_an_existing_public_key_is_neither_overwritten_nor_removed(tmp_path: Path) -> None:
    folder = project(tmp_path)
    there = folder / "keys" / "inner-1.pub"
    there.parent.mkdir(exist_ok=True)
    there.write_text("somebody's")
    edit = PropertyEdit(path=("private_key",), value="${file:keys/inner-1}")
    assert refusal(lambda: NewKeys(str(folder)).make((edit,))).code == "MZ035"
    assert there.read_text() == "somebody's" and not there.with_suffix("").exists()
