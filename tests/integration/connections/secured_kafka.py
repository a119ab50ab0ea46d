"""Brokers that want encryption and credentials, with certificates made for the occasion."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import admin

from examples.servers import KafkaBroker
from tests.certificates import make_certificate

USER = "app"
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


@contextmanager
def secured_brokers(folder: Path) -> Iterator[Secured]:
    """Both brokers, until the end of the block."""
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
