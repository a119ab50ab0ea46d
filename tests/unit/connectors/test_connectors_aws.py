"""aws connections without AWS: the settings of each client. No secret is shown."""

from __future__ import annotations

import base64
import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from mzplan.connectors.api.probes import fingerprint
from mzplan.connectors.api.queries import ResolvedConnection, resolve
from mzplan.connectors.checks import check_description
from mzplan.connectors.kafka.options import librdkafka_options as all_librdkafka_options
from mzplan.connectors.kafka.options import reader_options, writer_options
from mzplan.connectors.network.aws import librdkafka_options, s3a_settings, sign_in
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError
from mzplan.schema.description import Description, references_of
from mzplan.secrets.references import Secrets
from tests.unit.connectors.queries import described, inlined

ROLE = "arn:aws:iam::123456789012:role/mzplan"
KEY = {"access_key_id": "AKIA1", "secret_access_key": 'hunter2"\\'}


def aws(**body: Any) -> ResolvedConnection:
    address = Address("connection", "cloud")
    return ResolvedConnection(address=address, type="aws", body={"type": "aws", **body})


def test_s3a_settings_are_for_one_bucket() -> None:
    def settings(**body: Any) -> dict[str, str]:
        found = s3a_settings(aws(**body), "lake")
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


def description(aws_body: dict[str, Any]) -> Description:
    body = {"type": "kafka", "brokers": ["127.0.0.1:1"], "security": {"protocol": "SASL_SSL"}, "aws": "cloud"}
    format_ = {"type": "json", "schema": "id INT"}
    cluster = inlined("msk", body, aws=inlined("cloud", aws_body))
    return described("source.s", "kafka", {"topic": "t", "format": format_}, cluster)


SECRET = {"type": "aws", "access_key_id": "AKIA1", "secret_access_key": "${env:AWS}", "role_arn": ROLE}


def test_kafka_with_iam() -> None:
    msk = description({**SECRET, "region": "eu-central-1"})
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
    options = all_librdkafka_options(query.link, ".")
    assert (options["security.protocol"], options["sasl.mechanism"]) == ("SASL_SSL", "OAUTHBEARER")
    assert "hunter2" not in repr(options) + str(options) + f"{options['oauth_cb']}"
    again = all_librdkafka_options(query.link, ".")
    assert fingerprint(options) == fingerprint(again)
    rotated = resolve(msk, Secrets(".", {"AWS": "other"}), ".")
    assert fingerprint(options) != fingerprint(all_librdkafka_options(rotated.link, "."))


LOGIN = {"access_key_id": "A", "secret_access_key": "${env:AWS}", "region": "x1"}


@pytest.mark.parametrize(("body", "text"), [(LOGIN, "role"), ({}, "region")])
def test_aws_connections_that_kafka_cannot_use(body: dict[str, Any], text: str) -> None:
    msk = description({"type": "aws", **body})
    (found,) = check_description(msk, Secrets(".", {"AWS": "hunter2"})).diagnostics
    assert found.code == "MZ130" and text in found.summary + found.detail + found.hint
    assert "hunter2" not in repr(found)


def test_missing_credentials_are_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error comes at once. No client waits for a token."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    msk = description({"type": "aws", "region": "eu-central-1"})
    (found,) = check_description(msk, Secrets(".", {})).diagnostics
    assert found.code == "MZ051" and "no AWS credentials here" in found.detail
    # Spark would use the credentials of the machine.
    options = reader_options(resolve(msk, Secrets(".", {}), ".").link, ".")
    assert options["kafka.sasl.jaas.config"] == "software.amazon.msk.auth.iam.IAMLoginModule required;"


def test_a_token_is_a_signed_request() -> None:
    settings = {**KEY, "session_token": "temporary", "region": "eu-central-1"}
    token = sign_in(settings)
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
    token = librdkafka_options(aws(**KEY, role_arn=ROLE, region="eu-central-1"))["oauth_cb"]
    token.settings.pop("role_arn")  # there is no STS here
    sent = pickle.dumps(token)
    assert b"hunter2" not in sent and b"botocore" not in sent
    text, until = pickle.loads(sent)("")
    assert text.count(".") == 0 and until > datetime.now(UTC).timestamp() + 600
    with pytest.raises(MzplanError, match="MZ130"):
        librdkafka_options(aws(**KEY, region="eu-central-1"))
