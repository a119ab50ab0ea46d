"""A Kafka connection's options for two clients: Java's (in Spark), and librdkafka (probes, transactions)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mzplan.connectors.api.queries import ResolvedConnection, ResolvedQuery
from mzplan.connectors.network.aws import ROLE as AWS
from mzplan.connectors.network.aws import escaped, java_kafka_options
from mzplan.connectors.network.aws import librdkafka_options as aws_librdkafka_options
from mzplan.model.words import scalar_text
from mzplan.secrets.files import read_pem_text

# A dead broker must not block a query, or its stop, for minutes.
_JAVA_DEFAULTS = {
    "request.timeout.ms": "8000",
    "default.api.timeout.ms": "10000",
    "socket.connection.setup.timeout.ms": "5000",
    "socket.connection.setup.timeout.max.ms": "10000",
    "reconnect.backoff.max.ms": "2000",
}
_CONSUMER_DEFAULTS = {
    # Spark requests only existing records. The default, 500, would delay every micro-batch whose consumer
    # still waits for the answer to a request of the previous one.
    "fetch.max.wait.ms": "50",
    # Kafka's default would also read the records of aborted transactions.
    "isolation.level": "read_committed",
}
_PRODUCER_DEFAULTS = {
    "max.block.ms": "15000",
    "delivery.timeout.ms": "30000",
    # Spark's tasks send single records: a short wait collects many in one request.
    "linger.ms": "5",
}
_LIBRDKAFKA_DEFAULTS: dict[str, Any] = {
    "socket.timeout.ms": 5000,
    "socket.connection.setup.timeout.ms": 4000,
    "reconnect.backoff.max.ms": 1000,
    "log_level": 0,  # otherwise librdkafka writes to standard error
}
# Options of a connection that have the same name and meaning in librdkafka.
_SHARED_OPTIONS = (
    "client.id",
    "client.dns.lookup",
    "client.rack",
    "metadata.max.age.ms",
    "receive.buffer.bytes",
)
_PRODUCER_OPTIONS = {
    "compression.type": "compression.type",
    "linger.ms": "linger.ms",
    "batch.size": "batch.size",
    "max.request.size": "message.max.bytes",
}
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def reader_options(connection: ResolvedConnection, directory: str) -> dict[str, str]:
    """Return the options of Spark's Kafka reader that connect to the cluster. Raises OSError if a PEM file
    can't be read."""
    return _spark_options(_CONSUMER_DEFAULTS, connection, directory)


def writer_options(connection: ResolvedConnection, directory: str, topic: str) -> dict[str, str]:
    """Return the options of Spark's Kafka writer. Raises OSError if a PEM file can't be read."""
    return {"topic": topic, **_spark_options(_PRODUCER_DEFAULTS, connection, directory)}


def _spark_options(
    defaults: Mapping[str, str], connection: ResolvedConnection, directory: str
) -> dict[str, str]:
    # PEM files are read here, so that executors don't need them.
    body = connection.body
    security = body["security"]
    options = {**defaults, **_JAVA_DEFAULTS, "bootstrap.servers": ",".join(body["brokers"])}
    options["security.protocol"] = security["protocol"]
    sasl, ssl = security.get("sasl"), security.get("ssl") or {}
    if AWS in connection.connections:
        options |= java_kafka_options(connection.connections[AWS])
    if sasl:
        options["sasl.mechanism"] = sasl["mechanism"]
        options["sasl.jaas.config"] = jaas(sasl["mechanism"], sasl["username"], sasl["password"])
    if ssl.get("ca"):
        options["ssl.truststore.type"] = "PEM"
        options["ssl.truststore.certificates"] = _text(directory, ssl["ca"])
    if ssl.get("certificate"):
        options["ssl.keystore.type"] = "PEM"
        options["ssl.keystore.certificate.chain"] = _text(directory, ssl["certificate"])
        options["ssl.keystore.key"] = ssl["key"]
    if not ssl.get("verify_hostname", True):
        options["ssl.endpoint.identification.algorithm"] = ""
    options |= {key: scalar_text(value) for key, value in body["options"].items()}
    return {f"kafka.{key}": value for key, value in options.items()}


def librdkafka_options(connection: ResolvedConnection, directory: str) -> dict[str, Any]:
    """Return the options of librdkafka for connecting, authenticating and requesting metadata. Raises OSError
    if a PEM file can't be read."""
    body = connection.body
    security = body["security"]
    options = {**_LIBRDKAFKA_DEFAULTS, "bootstrap.servers": ",".join(body["brokers"])}
    options["security.protocol"] = security["protocol"]
    sasl, ssl = security.get("sasl"), security.get("ssl") or {}
    if AWS in connection.connections:
        options |= aws_librdkafka_options(connection.connections[AWS])
    if sasl:
        options["sasl.mechanism"] = sasl["mechanism"]
        options["sasl.username"] = sasl["username"]
        options["sasl.password"] = sasl["password"]
    if ssl.get("ca"):
        options["ssl.ca.pem"] = _text(directory, ssl["ca"])
    if ssl.get("certificate"):
        options["ssl.certificate.pem"] = _text(directory, ssl["certificate"])
        options["ssl.key.pem"] = ssl["key"]
    if not ssl.get("verify_hostname", True):
        options["ssl.endpoint.identification.algorithm"] = "none"
    shared = {key: value for key, value in body["options"].items() if key in _SHARED_OPTIONS}
    return {**options, **shared}


def transaction_options(connection: ResolvedConnection, directory: str) -> dict[str, Any]:
    """Return the options of librdkafka's transactional producer and its consumer. Translates options of
    Java's producer that have another name. Raises OSError if a PEM file can't be read."""
    options = librdkafka_options(connection, directory)
    own = connection.body["options"]
    return {**options, **{theirs: own[ours] for ours, theirs in _PRODUCER_OPTIONS.items() if ours in own}}


def route(query: ResolvedQuery) -> str:
    """Return the connection and its brokers, for people."""
    return f"{query.link.address} ({', '.join(query.link.body['brokers'])})"


def jaas(mechanism: str, username: str, password: str) -> str:
    """Return a JAAS configuration line, with username and password escaped inside their quotes."""
    module = _LOGIN_MODULES[mechanism]
    return f'{module} required username="{escaped(username)}" password="{escaped(password)}";'


def _text(directory: str, path: str) -> str:
    return read_pem_text(Path(directory) / path)
