"""Secrets in AWS Secrets Manager: `${aws-sm:NAME#KEY}`, read with botocore from moto's server."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
import requests
from botocore.awsrequest import AWSResponse
from botocore.httpsession import URLLib3Session

from mzplan.model.diagnostics import Diagnostic
from mzplan.secrets import aws_secrets
from mzplan.secrets.providers import RemoteSecrets
from mzplan.secrets.references import Secrets
from tests.moto_server import moto_server, who_is_let_in
from tests.support import refusal
from tests.unit.secrets.conftest import Clock

REGION = "eu-central-1"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto_server() as found:
        yield found


@pytest.fixture
def manager(endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return a client that has stored secret `pg`, and set the variables that AWS's libraries read."""
    who_is_let_in(endpoint, "inf")
    requests.post(f"{endpoint}/moto-api/reset", timeout=5)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    given = {"AWS_ACCESS_KEY_ID": "AKIAOPERATOR", "AWS_SECRET_ACCESS_KEY": "of-the-operator"}
    given |= dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), str(tmp_path / "none"))
    given |= {"AWS_REGION": REGION, "AWS_ENDPOINT_URL": endpoint, "AWS_EC2_METADATA_DISABLED": "true"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(aws_secrets, "provider", aws_secrets.SecretsManager())
    client = boto3.client("secretsmanager", region_name=REGION, endpoint_url=endpoint)
    client.create_secret(Name="pg", SecretString="one")
    return client


def problem(secrets: Secrets, reference: str) -> Diagnostic:
    found = refusal(partial(secrets.resolve, reference))
    assert reference in found.summary and "of-the-operator" not in str(found)
    return found


def test_a_text_and_the_keys_of_an_object_but_no_bytes(manager: Any, secrets: Secrets) -> None:
    manager.create_secret(Name="shop/plain", SecretString="one\ntwo")
    stored = manager.create_secret(Name="shop/pg", SecretString='{"password": "p", "port": 5432}')
    assert secrets.resolve("${aws-sm:shop/plain}") == "one\ntwo"
    assert secrets.resolve("${aws-sm:shop/pg#password}") == "p"
    assert secrets.resolve(f"${{aws-sm:{stored['ARN']}#password}}") == "p"
    assert problem(secrets, "${aws-sm:shop/pg#port}").code == "MZ103"
    assert problem(secrets, "${aws-sm:shop/plain#password}").code == "MZ103"
    assert problem(secrets, "${aws-sm:shop/pg#user}").code == "MZ056"
    manager.create_secret(Name="bytes", SecretBinary=b"x")
    assert problem(secrets, "${aws-sm:none}").code == "MZ056"
    assert problem(secrets, "${aws-sm:bytes}").code == "MZ261"


def test_a_login_without_permission(manager: Any, secrets: Secrets, endpoint: str) -> None:
    who_is_let_in(endpoint, "0")
    found = problem(secrets, "${aws-sm:pg}")
    assert found.code == "MZ261" and "secretsmanager:GetSecretValue" in found.hint


@pytest.mark.parametrize(("unset", "said"), [("AWS_ACCESS_KEY_ID", "no login"), ("AWS_REGION", "AWS_REGION")])
def test_missing_settings_are_reported(
    unset: str, said: str, manager: Any, secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(unset)
    found = problem(secrets, "${aws-sm:pg}")
    assert found.code == "MZ261" and said in f"{found.detail} {found.hint}"


def test_a_server_that_does_not_answer(
    manager: Any, secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    found = problem(secrets, "${aws-sm:pg}")
    assert found.code == "MZ260" and "EndpointConnectionError" in found.detail


ODD = (b"[]", b"null", b"[" * 100_000, b'{"__type": ["x"]}')


@pytest.mark.parametrize("status", [200, 503])
def test_invalid_answers_stop_no_query(
    status: int, manager: Any, secrets: Secrets, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy or a load balancer answers. Cached values stay in use."""
    assert secrets.resolve("${aws-sm:pg}") == "one"
    monkeypatch.setattr(URLLib3Session, "send", lambda *_: AWSResponse("https://aws", status, {}, None))
    for body in ODD if status != 200 else ODD[:3]:
        monkeypatch.setattr(AWSResponse, "content", body)
        clock.now += 100.0
        assert secrets.resolve("${aws-sm:pg}") == "one"
        found = problem(secrets, "${aws-sm:other}")
        assert found.code == "MZ260" and "AWS_ENDPOINT_URL" in found.hint


def test_handed_over_values_do_not_change_the_server(manager: Any, clock: Clock) -> None:
    handed = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_REGION": "us-east-1"}
    assert Secrets(".", handed, RemoteSecrets(60.0, clock)).resolve("${aws-sm:pg}") == "one"


def test_aws_login_files_cannot_be_secrets_of_a_connection(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Keys in variables are allowed, because a sink may use the same keys for its bucket."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".aws").mkdir()
    files = {"AWS_WEB_IDENTITY_TOKEN_FILE": "jwt", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "token"}
    files |= {"AWS_SHARED_CREDENTIALS_FILE": "keys", "": ".aws/credentials"}
    given = Secrets(str(tmp_path), {"AWS_SECRET_ACCESS_KEY": "a key"})
    for variable, name in files.items():
        (tmp_path / name).write_text("a login")
        if variable:
            assert given.resolve(f"${{file:{name}}}") == "a login"
            monkeypatch.setenv(variable, str(tmp_path / name))
        assert problem(given, f"${{file:{name}}}").code == "MZ263"
    assert given.resolve("${env:AWS_SECRET_ACCESS_KEY}") == "a key"
