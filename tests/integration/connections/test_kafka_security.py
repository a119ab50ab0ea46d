"""TLS, mutual TLS, SASL PLAIN and SCRAM with brokers that require them. No secret is written anywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import admin

from examples.servers import KafkaBroker, create_topic, produce_json
from mzplan.connectors.checks import check_description
from mzplan.schema.description import Description
from tests.certificates import make_certificate
from tests.installed import add_package
from tests.integration.spark_lab import Lab
from tests.machines import command_line
from tests.support import Project, eventually

USER = "app"
WRONG = "Zq7-wrong"
PLAIN_PASSWORD = "Zq7 pl'ain;word%"
SCRAM_PASSWORD = 'Zq7"scr\\am word'
PROTOCOLS = ("ssl", "mutual-tls", "sasl-plain", "scram")


def make_certificates(folder: Path) -> None:
    """Make the certificate of an authority, of a client, and of a broker, which has its key in its file."""
    folder.mkdir()
    make_certificate(folder, "ca")
    make_certificate(folder, "client", signed_by="ca")
    broker, key = make_certificate(folder, "broker", signed_by="ca")
    broker.write_text(key.read_text() + broker.read_text())


@dataclass(frozen=True)
class Secured:
    """Two brokers: with TLS, plain and mutual; with SASL, PLAIN and SCRAM over TLS."""

    certificates: Path
    tls: KafkaBroker
    sasl: KafkaBroker

    def broker(self, protocol: str) -> KafkaBroker:
        return self.sasl if protocol in ("sasl-plain", "scram") else self.tls

    def connection(self, protocol: str) -> dict[str, Any]:
        """The body of a connection; its secrets are in `secrets`."""
        broker, ca = self.broker(protocol), {"ca": str(self.certificates / "ca.pem")}
        certificate = str(self.certificates / "client.pem")
        first = protocol in ("ssl", "sasl-plain")
        security: dict[str, Any] = {
            "ssl": {"protocol": "SSL", "ssl": ca},
            "mutual-tls": {
                "protocol": "SSL",
                "ssl": {**ca, "certificate": certificate, "key": "${env:CLIENT_KEY}"},
            },
            "sasl-plain": {
                "protocol": "SASL_PLAINTEXT",
                "sasl": {"mechanism": "PLAIN", "username": USER, "password": "${env:PLAIN_PASSWORD}"},
            },
            "scram": {
                "protocol": "SASL_SSL",
                "sasl": {"mechanism": "SCRAM-SHA-512", "username": USER, "password": "${env:SCRAM_PASSWORD}"},
                "ssl": ca,
            },
        }[protocol]
        brokers = [broker.bootstrap if first else broker.bootstrap2]
        return {"type": "kafka", "brokers": brokers, "security": security, "options": {"client.id": "shop"}}

    @property
    def secrets(self) -> dict[str, str]:
        """The environment that the connections refer to."""
        return {
            "CLIENT_KEY": (self.certificates / "client.key").read_text(),
            "PLAIN_PASSWORD": PLAIN_PASSWORD,
            "SCRAM_PASSWORD": SCRAM_PASSWORD,
        }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    certificates = folder / "certificates"
    make_certificates(certificates)
    tls = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates / "ca.pem"),
    }
    modules = "org.apache.kafka.common.security"
    sasl = {
        "listener.name.first.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.first.plain.sasl.jaas.config": (
            f'{modules}.plain.PlainLoginModule required user_{USER}="{PLAIN_PASSWORD}";'
        ),
        "listener.name.second.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.second.scram-sha-512.sasl.jaas.config": f"{modules}.scram.ScramLoginModule required;",
    }
    mutual = {**tls, "listener.name.second.ssl.client.auth": "required"}
    brokers = Secured(
        certificates,
        KafkaBroker(folder / "tls", protocols=("SSL", "SSL"), properties=mutual),
        KafkaBroker(folder / "sasl", protocols=("SASL_PLAINTEXT", "SASL_SSL"), properties={**tls, **sasl}),
    )
    try:
        brokers.tls.start()
        brokers.sasl.start()
        set_scram_password(brokers.sasl.internal, SCRAM_PASSWORD)
        yield brokers
    finally:
        brokers.tls.remove_data()
        brokers.sasl.remove_data()


def set_scram_password(bootstrap: str, password: str) -> None:
    """What `USER` logs in with from now on."""
    names: Any = admin  # its types leave these classes out
    info = names.ScramCredentialInfo(names.ScramMechanism.SCRAM_SHA_512, 4096)
    change = names.UserScramCredentialUpsertion(USER, info, password.encode())
    client = admin.AdminClient({"bootstrap.servers": bootstrap})
    for future in client.alter_user_scram_credentials([change]).values():
        future.result(20)


def source_over(lab: Lab, connection: dict[str, Any], topic: str) -> Description:
    format_ = {"type": "json", "schema": "id BIGINT"}
    return lab.source("kafka", connection, topic=topic, format=format_)


@pytest.mark.nightly
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rows_arrive_over_each_protocol_and_go_back(lab: Lab, secured: Secured, protocol: str) -> None:
    lab.secrets.environment.update(secured.secrets)
    own = secured.broker(protocol).internal
    for name in (protocol, f"{protocol}-out"):
        create_topic(own, name, 1)
    connection = secured.connection(protocol)
    source = source_over(lab, connection, protocol)
    sink = lab.sink(source, "kafka", connection, topic=f"{protocol}-out", key=["id"])
    assert lab.check(source).diagnostics == ()
    assert lab.check(sink).diagnostics == ()
    produce_json(own, protocol, [{"id": i} for i in range(5)])
    back = source_over(lab, connection, f"{protocol}-out")
    lab.start(source, sink, back)
    eventually("the rows came back", lambda: lab.count(back) == 5)


def refused_connection(secured: Secured, protocol: str) -> dict[str, Any]:
    """Return the connection with a login or a certificate that the broker refuses."""
    connection = secured.connection(protocol)
    security = connection["security"]
    match protocol:
        case "ssl":
            del security["ssl"]  # so nobody trusts the authority
        case "mutual-tls":
            security["ssl"] = {"ca": security["ssl"]["ca"]}
        case _:
            security["sasl"]["password"] = "${env:WRONG}"
    return connection


@pytest.mark.nightly
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_refused_login_is_an_error_without_a_secret(lab: Lab, secured: Secured, protocol: str) -> None:
    lab.secrets.environment.update({**secured.secrets, "WRONG": WRONG})
    source = source_over(lab, refused_connection(secured, protocol), "any")
    assert WRONG not in str(lab.finds(source, "MZ051", "connection.upstream"))
    (without_spark,) = check_description(source, lab.secrets).diagnostics
    assert without_spark.code == "MZ051"


def install_keeper(folder: Path) -> dict[str, str]:
    """Install a package with a remote provider of secrets, which has a file for each secret.

    Return the environment in which it is installed, and asked every second.
    """
    (folder / "some_keeper.py").write_text(
        "from pathlib import Path\n\n\nclass Keeper:\n    def read(self, path):\n"
        "        file = Path(__file__).with_name(path)\n"
        "        return file.read_text() if file.is_file() else None\n\n\nprovider = Keeper()\n"
    )
    environment = add_package(folder, "some-keeper", "mzplan.secrets", "keeper = some_keeper:provider")
    return {**environment, "MZPLAN_SECRETS_REFRESH": "1"}


@pytest.mark.nightly
def test_no_secret_is_written_anywhere_and_a_rotated_one_restarts_its_dependents(
    secured: Secured, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "scram").write_text(SCRAM_PASSWORD)
    events = tmp_path / "project" / "events"
    events.mkdir(parents=True)
    log = {"enabled": "true", "dir": events.as_uri(), "compress": "false"}
    arguments = " ".join(f"--conf spark.eventLog.{name}={value}" for name, value in log.items())
    spark = {"PYSPARK_SUBMIT_ARGS": f"{arguments} pyspark-shell"}
    project = Project(tmp_path / "project", "secured", {**secured.secrets, **spark, **install_keeper(kept)})
    (project.folder / "secret.txt").write_text(PLAIN_PASSWORD)
    connections = {f"c{i}": secured.connection(protocol) for i, protocol in enumerate(PROTOCOLS)}
    connections["c2"]["security"]["sasl"]["password"] = "${file:secret.txt}"
    connections["c3"]["security"]["sasl"]["password"] = "${keeper:scram}"
    sources = {}
    for i, protocol in enumerate(PROTOCOLS):
        own, topic = secured.broker(protocol).internal, f"project-{protocol}"
        create_topic(own, topic, 1)
        produce_json(own, topic, [{"id": i} for i in range(5)])
        format_ = {"type": "json", "schema": "id BIGINT"}
        sources[f"s{i}"] = {"connection": f"c{i}", "topic": topic, "format": format_}
    # Spark prints the options of such a write.
    create_topic(secured.broker("mutual-tls").internal, "project-back", 1)
    sink = {"from": "s1", "connection": "c1", "topic": "project-back", "mode": "upsert", "key": ["id"]}
    sink["delivery"] = "at-least-once"
    # JSON is YAML.
    project.write("all", json.dumps({"connections": connections, "sources": sources, "sinks": {"k": sink}}))
    try:
        planned = project.run("plan")
        applied = project.run("apply", "--auto-approve")
        assert applied.returncode == 0, applied.stdout + applied.stderr + project.log()
        eventually("all have read", lambda: all(q["step"] is not None for q in project.queries().values()))
        key = secured.secrets["CLIENT_KEY"].splitlines()[5]
        words = [PLAIN_PASSWORD, SCRAM_PASSWORD, json.dumps(SCRAM_PASSWORD)[1:-1], key]
        for said in (planned, applied, project.run("status", "--json"), project.run("show", "connection.c2")):
            assert not [word for word in words if word in said.stdout + said.stderr]
        assert not list(files_with(project.folder, words))
        assert list(files_with(events, ["kafka.ssl.keystore.key"]))  # the events show the options
        for folder in Path("/proc").glob("[0-9]*"):
            assert not [word for word in words if word in command_line(int(folder.name))], folder
        _rotated(project, secured, kept)
        assert not list(files_with(project.folder, [*words, "Zq7 rotated"]))
    finally:
        project.down()
        set_scram_password(secured.sasl.internal, SCRAM_PASSWORD)


def _rotated(project: Project, secured: Secured, kept: Path) -> None:
    """The broker and the keeper get a new password. The runner notices, and only the source that uses it
    restarts."""
    assert project.json("plan")["changes"] == []
    set_scram_password(secured.sasl.internal, "Zq7 rotated")
    (kept / "scram").write_text("Zq7 rotated")
    eventually("the runner has seen it", lambda: project.json("plan")["changes"] != [])
    planned = project.json("plan")
    assert [(c["address"], c["action"]) for c in planned["changes"]] == [("source.s3", "restart")]
    before = project.queries()
    project.apply()
    after = project.queries()
    assert {a for a in after if after[a]["run_id"] != before[a]["run_id"]} == {"source.s3"}
    produce_json(secured.broker("scram").internal, "project-scram", [{"id": 9}])
    step = before["source.s3"]["step"]
    eventually(
        "it continues from its checkpoint", lambda: (project.queries()["source.s3"]["step"] or 0) > step
    )
    eventually("the new value is the one in use", lambda: project.json("plan")["changes"] == [])


def files_with(folder: Path, words: list[str]) -> Iterator[Path]:
    """Yield the files in a folder that contain one of the words, except for the secret's own file."""
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "secret.txt":
            text = path.read_bytes()
            if any(word.encode() in text for word in words):
                yield path
