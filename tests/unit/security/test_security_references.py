"""Where secret references are allowed, which files they may name, and who resolves them."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mzplan.connectors.api.queries import resolve
from mzplan.connectors.checks import check_description
from mzplan.controller.secrets_in_use import SecretsInUse
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.schema.description import Description, InlinedConnection, references_of
from mzplan.schema.dialect import fault_of
from mzplan.schema.properties import takes_secret
from mzplan.secrets.files import MAX_SECRET
from mzplan.secrets.references import Secrets
from tests.unit.config_files import PROJECT, SHOP, all_text, errors, load, resource

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
        "a.yaml": SHOP.replace("host: localhost", "host: '${var.host}'"),
    }
    (found,) = errors(tmp_path, files, variables={"host": "${env:REFERRED}"})
    assert found.code == "MZ102"
    assert errors(tmp_path, files, variables={"host": "db"}) == []  # as the hint has it


def test_user_names_of_passwords_may_be_references(tmp_path: Path) -> None:
    found = load(tmp_path, {"a.yaml": SHOP.replace("user: app", "user: '${env:REFERRED}'")})
    assert resource(found, "connection.shop_pg").body["user"] == "${env:REFERRED}"


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


def described(connection: dict[str, Any], **body: Any) -> Description:
    pg = InlinedConnection(
        address=Address("connection", "pg"),
        type="postgres",
        body={"host": "127.0.0.1", "port": 1, "database": "d", "user": "u", **connection},
    )
    return Description(
        address=Address("source", "s"),
        id="s",
        generation=1,
        digest="1:a",
        type="postgres",
        body={"tables": ["t"], "schema": "id INT", **body},
        connections={"connection": pg},
    )


@pytest.mark.parametrize(
    ("description", "place"),
    [
        (described({"host": "${env:REFERRED}", "password": "${env:REFERRED}"}), "connection.pg: a"),
        (described({"labels": {"x": "${file:/etc/hostname}"}}), "labels.x"),
        (described({}, tables=["${env:REFERRED}"]), "tables[0]"),
    ],
)
def test_a_runner_resolves_no_misplaced_reference(description: Description, place: str) -> None:
    secrets = Recorded()
    with pytest.raises(MzplanError) as caught:
        resolve(description, secrets, ".")
    (found,) = caught.value.diagnostics
    assert found.code == "MZ102" and place in found.summary and VALUE not in all_text([found])
    (checked,) = check_description(description, secrets).diagnostics
    assert checked.code == "MZ102" and checked.address == Address("source", "s")
    allowed = {"${env:REFERRED}"} if "password" in description.connections["connection"].body else set()
    assert references_of(description) == allowed
    with ThreadPoolExecutor(1) as pool:
        in_use = SecretsInUse(secrets, {}, pool, time.monotonic)
    assert set(in_use.read(description).by_reference) == allowed >= secrets.used


# --- what one may name


def unusable(folder: Path, name: str) -> Diagnostic:
    with pytest.raises(MzplanError) as caught:
        Secrets(str(folder), {}).resolve(f"${{file:{name}}}")
    return caught.value.diagnostics[0]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("/dev/zero", "is a device"),
        ("fifo", "is a pipe"),
        ("folder", "is a folder"),
        ("large", "holds more than 1 MiB"),
        ("bytes", "is not text in UTF-8"),
    ],
)
def test_a_secret_is_a_small_regular_file(
    name: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    Path("folder").mkdir()
    Path("large").write_bytes(b"x" * (MAX_SECRET + 1))
    Path("bytes").write_bytes(b"\xff")
    found = unusable(tmp_path, name)
    assert found.code == "MZ103" and what in found.summary and f"${{file:{name}}}" in found.summary


def test_files_with_secrets(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    (tmp_path / "..data" / "pw").write_text("äöü\r\n")  # as Kubernetes mounts them
    (tmp_path / "pw").symlink_to("..data/pw")
    secrets = Secrets(str(tmp_path), {})
    assert secrets.resolve("${file:pw}") == "äöü"
    assert secrets.resolve("${file:/proc/self/status}").startswith("Name:")  # its size is 0


@pytest.mark.parametrize("name", ["missing", "nul\0", "loop"])
def test_files_without_a_value(name: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert unusable(tmp_path, name).code == "MZ056"
