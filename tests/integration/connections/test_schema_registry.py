"""Schema registries in validation: reached, let in, the subject found and compared with the columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from examples.servers import KafkaBroker, SshServer
from examples.servers.registry import SchemaRegistry
from mzplan.connectors.api.queries import Output
from mzplan.connectors.checks import check_connection, check_description
from mzplan.connectors.formats.registry_fit import readable, writable
from mzplan.connectors.network import tunnels
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.schema.columns import parse_columns
from mzplan.schema.description import CollectionRead, Description, InlinedConnection
from mzplan.secrets.references import Secrets
from tests.certificates import make_certificate
from tests.integration.connections.test_ssh_tunnel import PRIVATE, PUBLIC, bastion
from tests.support import Make
from tests.unit.connectors.queries import described, inlined

SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "amount": {"type": ["null", "number"]},
        "at": {"type": "string"},
        "tags": {"type": "array"},
        "who": {"$ref": "#/definitions/who"},
    },
    "required": ["id"],
}


@pytest.mark.parametrize(
    ("columns", "wrong"),
    [
        ("id BIGINT, amount DECIMAL(10,2), at TIMESTAMP, tags ARRAY<STRING>, who STRUCT<a: INT>", []),
        ("at STRING, who INT", []),
        ("id DOUBLE, at DECIMAL(3,1)", []),
        ("id STRING", ["its field id is integer, but the column is STRING"]),
        ("id TIMESTAMP", ["its field id is integer, but the column is TIMESTAMP"]),
        ("tags STRING", ["its field tags is array, but the column is STRING"]),
        ("amount BIGINT", ["its field amount is number, but the column is BIGINT"]),
        ("at BIGINT, tags MAP<STRING,INT>", ["its field at is string, but the column is BIGINT"]),
    ],
)
def test_a_column_that_cannot_hold_its_field_is_refused(columns: str, wrong: list[str]) -> None:
    found, doubtful = readable(SCHEMA, parse_columns(columns))
    assert (found[:1], doubtful) == (wrong, [])


def test_a_column_without_a_field_is_doubtful_and_converted_values_fit_other_types() -> None:
    null = "it has no field {}: the column would be NULL in every row"
    found = readable(SCHEMA, parse_columns("ID BIGINT, other STRING"))
    assert found == ([], [null.format("ID"), null.format("other")])
    assert readable({"type": "array"}, parse_columns("x INT")) == ([], [])
    columns = parse_columns("id TIMESTAMP, amount STRING, at DATE, tags STRING, who INT")
    assert readable(SCHEMA, columns, converted=True) == ([], [])


def test_rows_that_the_schema_forbids_are_refused() -> None:
    def found(schema: Any = SCHEMA, **types: str | None) -> tuple[list[str], list[str]]:
        return writable(schema, [Output(name=name, type=type_) for name, type_ in types.items()])

    unknown = "it has no field other, which the sink writes"
    assert found(id="BIGINT", amount="INT", at="DATE", who=None) == ([], [])
    assert found(amount="STRING", other="INT") == (
        [
            "its field amount is number, but the sink writes string (STRING)",
            "its field id is required, but the sink doesn't write it",
        ],
        [unknown],
    )
    assert found({**SCHEMA, "additionalProperties": False}, id="INT", other="INT") == ([unknown], [])
    assert found(True, x="INT") == ([], [])


def connection(url: str, **body: Any) -> InlinedConnection:
    return inlined("reg", {"type": "schema-registry", "url": url, **body})


def source(
    kafka: KafkaBroker, registry: InlinedConnection, topic: str, columns: str, **body: Any
) -> Description:
    cluster = inlined("k", {"type": "kafka", "brokers": [kafka.bootstrap]})
    given = {"topic": topic, "format": {"type": "json", "schema": columns}, **body}
    connections = {"connection": cluster, "schema_registry": registry}
    return described("source.s", "kafka", given, connections=connections)


def sink(of: Description, topic: str, **body: Any) -> Description:
    upstream = CollectionRead(address=of.address, id="s", generation=1, type="kafka", body=of.body)
    given = {"from": "s", "topic": topic, **body}
    return replace(of, address=Address("sink", "o"), body=given, reads={"s": upstream})


def test_validation_asks_the_registry(
    kafka: KafkaBroker, topic: Make, ssh_servers: Callable[[str], SshServer], tmp_path: Path
) -> None:
    name = topic("registry")
    secrets = Secrets(str(tmp_path), {"PW": "hunter2", "BAD": "hunter3", "KEY": PRIVATE})

    def found(description: Description) -> list[str]:
        diagnostics = check_description(description, secrets).diagnostics
        assert "hunter" not in repr(diagnostics)
        return [f"{d.code} {d.severity}" for d in diagnostics]

    def first(description: Description) -> Diagnostic:
        return check_description(description, secrets).diagnostics[0]

    with SchemaRegistry("app", "hunter2") as server:
        registry = connection(server.url, user="app", password="${env:PW}")
        missing = first(source(kafka, registry, name, "id BIGINT"))
        assert (missing.code, missing.summary) == ("MZ052", f"Subject {name}-value does not exist")
        server.register(f"{name}-value", SCHEMA)
        server.register("a/b", {"type": "record"}, "AVRO")
        assert found(source(kafka, registry, name, "id BIGINT")) == []
        assert found(source(kafka, registry, name, "id BOOLEAN, x INT")) == ["MZ230 error", "MZ230 warning"]
        avro = first(source(kafka, registry, name, "id BIGINT", subject="a/b"))
        assert avro.code == "MZ230" and "of type AVRO, and source.s reads plain JSON" in avro.detail
        assert found(sink(source(kafka, registry, name, "id BIGINT, at DATE"), name)) == []
        assert found(sink(source(kafka, registry, name, "id STRING"), name)) == ["MZ230 error"]
        server.register(f"{name}-value", {**SCHEMA, "properties": {"id": {"type": "string"}}})
        latest = first(source(kafka, registry, name, "id BIGINT"))
        assert "version 2: its field id is string, but the column is BIGINT" in latest.detail

        for wrong in (connection(server.url), connection(server.url, user="app", password="${env:BAD}")):
            assert found(source(kafka, wrong, name, "id STRING")) == ["MZ051 error"]
            assert [d.code for d in check_connection(wrong, secrets, ".")] == ["MZ051"]
        assert check_connection(registry, secrets, ".") == ()

        # Through an SSH server, two hops away from the source.
        door = ssh_servers("door")
        door.authorize(PUBLIC)
        far = replace(registry, connections={"ssh_tunnel": bastion(door)})
        assert found(source(kafka, far, name, "id STRING")) == []
        assert door.sessions() == 1
        server.stop()
        assert first(source(kafka, far, name, "id STRING")).detail.startswith(f"connection.t{door.port}")
        assert found(source(kafka, registry, name, "id STRING")) == ["MZ050 error"]
        door.stop()
        assert found(source(kafka, far, name, "id STRING")) == ["MZ050 error"]
    tunnels.close_forwards()
    other = first(source(kafka, connection(f"http://{kafka.bootstrap}"), name, "id STRING"))
    assert other.code == "MZ050"
    assert first(source(kafka, connection("http://nowhere.invalid"), name, "id STRING")).code == "MZ050"


def test_the_registrys_certificate_is_checked(tmp_path: Path) -> None:
    secrets = Secrets(str(tmp_path), {})

    def problem(inlined: InlinedConnection) -> str:
        found = check_connection(inlined, secrets, str(tmp_path))
        assert {d.code for d in found} <= {"MZ050"}
        return " ".join(d.detail for d in found)

    with SchemaRegistry(tls=make_certificate(tmp_path, "ca")) as server:
        assert problem(connection(server.url, tls={"ca": "ca.pem"})) == ""
        assert "its certificate is not trusted" in problem(connection(server.url))
        named = server.url.replace("127.0.0.1", "localhost")
        assert "its certificate is not trusted" in problem(connection(named, tls={"ca": "ca.pem"}))
        assert problem(connection(server.url, tls={"ca": "nope.pem"})) != ""
        # What people write beside the certificates, in whatever encoding.
        whole = (tmp_path / "ca.pem").read_bytes()
        for comment in ("# Autoridad Raíz: é ü".encode("latin-1"), "# 根证书".encode()):
            (tmp_path / "commented.pem").write_bytes(comment + b"\n" + whole + comment)
            assert problem(connection(server.url, tls={"ca": "commented.pem"})) == ""
        (tmp_path / "commented.pem").write_bytes(comment)
        assert "no certificates in PEM" in problem(connection(server.url, tls={"ca": "commented.pem"}))
    with SchemaRegistry() as server:
        assert "doesn't use TLS" in problem(connection(server.url.replace("http:", "https:")))
