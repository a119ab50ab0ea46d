"""Secure by default: dangerous options, logins in addresses, and files of this machine (docs/security.md)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mzplan.cli.main import main
from mzplan.runner.wake import runtime_folder
from mzplan.secrets.logins import holds_login
from tests.unit.cli_runs import Ran, apply, mzplan, write


def validated(folder: Path, options: str) -> Ran:
    """Validate a Kafka connection with these options."""
    write(folder)
    text = f'connections: {{k2: {{type: kafka, brokers: ["a:1"], options: {{{options}}}}}}}\n'
    (folder / "more.yaml").write_text(text)
    return mzplan(folder, "validate", "--json")


def test_a_kafka_option_that_does_more_than_tune_is_refused(tmp_path: Path) -> None:
    for option in (
        "sasl.oauthbearer.token.endpoint.url: http://evil",
        "ssl.engine.factory.class: evil.Class",
        "config.providers: file",
    ):
        found = validated(tmp_path, option).json()["diagnostics"]
        assert found[0]["code"] == "MZ020", option  # and MZ016, for what sounds like a secret


def test_a_kafka_option_that_only_tunes_is_allowed(tmp_path: Path) -> None:
    options = "linger.ms: 5, fetch.min.bytes: 1024, client.id: shop, ssl.truststore.location: /etc/trust.jks"
    assert validated(tmp_path, options).code == 0
    assert "linger.ms" in validated(tmp_path, "linger.msec: 5").error()["hint"]


HEAD = "version: 1\nproject: p\n"


def write_with(folder: Path, text: str) -> None:
    """A valid project with more settings, or with more resources."""
    write(folder)
    if text.startswith(("connections", "sinks")):
        (folder / "more.yaml").write_text(f"{text}\n")
    else:
        (folder / "mzplan.yaml").write_text(f"{HEAD}{text}\n")


@pytest.mark.parametrize(
    "text",
    [
        "warehouse: s3://AKIA:secr3t@bucket/w",
        "state: {backend: object-store, url: 's3://AKIA:secr3t@b'}",
        "state: {backend: postgres, host: 'u:secr3t@h', database: d, user: u}",
        "connections: {k2: {type: kafka, brokers: ['b:1', 'user:secr3t@h:9092']}}",
        "connections: {p: {type: postgres, host: 'u:secr3t@h', database: d, user: u}}",
        "sinks: {d: {type: delta, from: orders, path: 's3://AKIA:secr3t@bucket/x'}}",
        "connections: {k2: {type: kafka, brokers: ['b:1,user:s@ecr3t@h:9092']}}",
        "connections: {r: {type: schema-registry, url: 'https://r/x?access_token=secr3t'}}",
        "connections: {r: {type: schema-registry, url: 'https://secr3t@r/x'}}",
        "connections: {f: {type: files, path: 's3://b/x?X-Amz-Signature=secr3t'}}",
    ],
)
def test_a_login_in_an_address_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    write_with(tmp_path, text)
    ran = mzplan(tmp_path, "validate")
    assert ran.code == 1 and "MZ016" in ran.err and "ecr3t" not in ran.err + ran.out, ran.err


@pytest.mark.parametrize(
    "text",
    [
        'lineage: {url: "https://%s/"}',
        'state: {backend: object-store, url: "s3://%s/x"}',
        'instances: {a: {type: dry, metrics: {port: 1, host: "%s"}}}',
        'connections: {r: {type: schema-registry, url: "https://%s/x"}}',
        'connections: {k2: {type: kafka, brokers: ["%s:9092"]}}',
        'connections: {p: {type: postgres, host: "%s", database: d, user: u}}',
        'connections: {t: {type: ssh-tunnel, host: "%s", user: u, host_keys: ["ssh-ed25519 AAAA"]}}',
    ],
)
def test_an_address_that_readers_split_differently_is_refused(tmp_path: Path, text: str) -> None:
    for host in (r"evil.example\corp.example", "evil\x07.example"):
        write_with(tmp_path, text % json.dumps(host)[1:-1])
        ran = mzplan(tmp_path, "validate")
        assert ran.code == 1 and "MZ0" in ran.err, ran
    write_with(tmp_path, text % "corp.example")
    assert "corp.example" not in mzplan(tmp_path, "validate").err


@pytest.mark.parametrize("value", ["'u:secr3t@h:9092'", "'h:9092?password=secr3t'"])
def test_alter_refuses_a_login_in_an_address(tmp_path: Path, value: str) -> None:
    apply(write(tmp_path))
    ran = mzplan(tmp_path, "alter", f"ALTER CONNECTION k SET BROKERS = {value}")
    assert ran.code == 1 and "MZ016" in ran.err and "ecr3t" not in ran.err + ran.out, ran.err


def test_a_login_in_an_address_is_told_from_other_text() -> None:
    for address in ("u:123@h", ":123@h", "https://u:s@ecr3t@h/x", "s3://AKIA:12/34@bucket", "u:s ecr3t@h"):
        assert holds_login(address), address
    for text in (
        "abfss://container@account.dfs.core.windows.net/x",
        "http://host:8080/a@b",
        "git@github.com:o/r",
        "arn:aws:iam::123456789012:role/a",
        "https://host/x?partition=1&format=json",
        "s3://bucket/a:b@c",
        "a > 1 AND b = ':x@y'",
        "id BIGINT COMMENT 'a:b@c'",
    ):
        assert not holds_login(text), text


class PanicError(BaseException):
    """What a library written in Rust raises, as pyo3 does."""


def test_a_panic_of_a_library_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def panics(*_: object, **__: object) -> None:
        raise PanicError("it may say anything: secr3t")

    write(tmp_path)
    monkeypatch.setattr("mzplan.operations.project.open_project", panics)
    with pytest.raises(SystemExit) as left:
        main(["-C", str(tmp_path), "plan"])
    assert left.value.code == 1


def test_the_folder_of_this_machine_is_left_out_by_git(tmp_path: Path) -> None:
    folder = runtime_folder(tmp_path)
    assert (folder / ".gitignore").read_text() == "*\n" and folder.stat().st_mode & 0o777 == 0o700
    assert runtime_folder(tmp_path) == folder
