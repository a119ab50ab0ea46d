"""Where secret references are allowed, which files they may name, and who resolves them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from mzplan.connectors.api.queries import resolve
from mzplan.connectors.checks import check_description
from mzplan.controller.jobs import Jobs
from mzplan.controller.secrets_in_use import SecretsInUse
from mzplan.model.address import Address
from mzplan.schema.description import Description, references_of
from mzplan.schema.dialect import fault_of
from mzplan.schema.properties import takes_secret
from mzplan.secrets.files import MAX_SECRET
from mzplan.secrets.references import Secrets
from tests.support import refusal
from tests.unit.config_files import PROJECT, SHOP, all_text, errors
from tests.unit.connectors.queries import described, inlined

VALUE = "s3cret-Tr0ub4dor"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFERRED", VALUE)


# --- where one may stand: files

ELSEWHERE = {
    "brokers[0]": SHOP.replace("localhost:9092", "${env:REFERRED}:9092"),
    "host": SHOP.replace("host: localhost", "host: 'db.${env:REFERRED}'"),
    "labels.team": SHOP.replace("host: localhost", "host: h\n    labels: {team: '${env:REFERRED}'}"),
    "select[0]": SHOP + "    select: [\"concat('${env:REFERRED}', customer) AS id\"]\n",
    "path": SHOP.replace("./lake", "'s3://${env:REFERRED}/lake'"),
}


@pytest.mark.parametrize("place", ELSEWHERE)
def test_a_misplaced_reference_is_an_error_that_names_the_property(place: str, tmp_path: Path) -> None:
    (found,) = errors(tmp_path, {"a.yaml": ELSEWHERE[place]})
    assert found.code == "MZ102" and found.summary == f'A secret reference can\'t stand in "{place}"'
    assert "${var.NAME}" in found.hint and found.range is not None and VALUE not in all_text([found])


def test_a_variable_cannot_contain_a_misplaced_reference(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "mzplan.yaml": PROJECT + "variables: {host: {}}\n",
        "a.yaml": SHOP.replace("host: localhost", "host: '${var.host}'").replace("app", "'${env:REFERRED}'"),
    }
    (found,) = errors(tmp_path, files, variables={"host": "${env:REFERRED}"})
    assert found.code == "MZ102"
    assert errors(tmp_path, files, variables={"host": "db"}) == []  # as the hint says: `user` may be one


def test_a_connector_of_another_package_declares_where_references_are_allowed() -> None:
    plain: dict[str, Any] = {"type": "string", "description": "d", "x-change": "restart", "x-sql": None}
    properties = {
        "login": {**plain, "x-sensitive": False, "x-reference-allowed": True},
        "pin": {**plain, "x-sensitive": True},
        "host": {**plain, "x-sensitive": False},
    }
    schema = {"type": "object", "properties": properties}
    assert fault_of(schema) == ""
    assert [name for name in properties if takes_secret(schema, (name,))] == ["login", "pin"]
    properties["host"]["x-reference-allowed"] = False
    assert "x-reference-allowed" in fault_of(schema)


# --- where one may stand: where the runner resolves


class Recorded(Secrets):
    """Records the references that it resolves."""

    def __init__(self) -> None:
        super().__init__(".")
        self.used: set[str] = set()

    def resolve(self, reference: str) -> str:
        self.used.add(reference)
        return super().resolve(reference)


def source(connection: dict[str, Any], **body: Any) -> Description:
    server = {"type": "postgres", "host": "127.0.0.1", "port": 1, "database": "d", "user": "u", **connection}
    read = {"tables": ["t"], "schema": "id INT", **body}
    return described("source.s", "postgres", read, inlined("pg", server))


@pytest.mark.parametrize(
    ("description", "place"),
    [
        (source({"host": "${env:REFERRED}", "password": "${env:REFERRED}"}), "connection.pg: a"),
        (source({"labels": {"x": "${file:/etc/hostname}"}}), "labels.x"),
        (source({}, tables=["${env:REFERRED}"]), "tables[0]"),
    ],
)
def test_a_runner_resolves_no_misplaced_reference(description: Description, place: str) -> None:
    secrets = Recorded()
    found = refusal(lambda: resolve(description, secrets, "."))
    assert found.code == "MZ102" and place in found.summary and VALUE not in all_text([found])
    (checked,) = check_description(description, secrets).diagnostics
    assert checked.code == "MZ102" and checked.address == Address("source", "s")
    allowed = {"${env:REFERRED}"} if "password" in description.connections["connection"].body else set()
    assert references_of(description) == allowed
    in_use = SecretsInUse(secrets, {}, Jobs(), time.monotonic)
    assert set(in_use.read(description).by_reference) == allowed >= secrets.used


# --- what one may name


@pytest.mark.parametrize(
    ("name", "code", "what"),
    [
        ("/dev/zero", "MZ103", "is a device"),
        ("fifo", "MZ103", "is a pipe"),
        ("folder", "MZ103", "is a folder"),
        ("large", "MZ103", "holds more than 1 MiB"),
        ("bytes", "MZ103", "is not text in UTF-8"),
        ("missing", "MZ056", ""),
        ("nul\0", "MZ056", ""),
        ("loop", "MZ056", ""),
    ],
)
def test_a_secret_is_a_small_regular_file(name: str, code: str, what: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "large").write_bytes(b"x" * (MAX_SECRET + 1))
    (tmp_path / "bytes").write_bytes(b"\xff")
    (tmp_path / "loop").symlink_to("loop")
    found = refusal(lambda: Secrets(str(tmp_path), {}).resolve(f"${{file:{name}}}"))
    assert found.code == code and what in found.summary and (not what or f"${{file:{name}}}" in found.summary)


def test_files_with_secrets(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "pw").write_text("äöü\r\n")  # as Kubernetes mounts them
    (tmp_path / "pw").symlink_to("..data/pw")
    secrets = Secrets(str(tmp_path), {})
    assert secrets.resolve("${file:pw}") == "äöü"
    assert secrets.resolve("${file:/proc/self/status}").startswith("Name:")  # its size is 0
