"""Secure by default (docs/security.md): dangerous options, logins in addresses, files of this machine; and
who says where the state is: not a pull request."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from mzplan.cli.main import main
from mzplan.config import load_project
from mzplan.operations.project import open_project
from mzplan.runner import embedded
from mzplan.runner.wake import runtime_folder
from mzplan.secrets.logins import holds_login
from tests.support import refusal
from tests.unit.cli_runs import Ran, apply, mzplan, write
from tests.unit.config_files import PROJECT


def write_with(folder: Path, text: str) -> None:
    """A valid project with more settings, or with more resources."""
    write(folder)
    if text.startswith(("connections", "sinks")):
        (folder / "more.yaml").write_text(f"{text}\n")
    else:
        (folder / "mzplan.yaml").write_text(f"{PROJECT}{text}\n")


def validated(folder: Path, options: str) -> Ran:
    """Validate a Kafka connection with these options."""
    write_with(folder, f'connections: {{k2: {{type: kafka, brokers: ["a:1"], options: {{{options}}}}}}}')
    return mzplan(folder, "validate", "--json")


def test_kafka_options_only_tune(tmp_path: Path) -> None:
    for option in (
        "sasl.oauthbearer.token.endpoint.url: http://evil",
        "ssl.engine.factory.class: evil.Class",
        "config.providers: file",
    ):
        found = validated(tmp_path, option).json()["diagnostics"]
        assert found[0]["code"] == "MZ020", option  # and MZ016, for what sounds like a secret
    options = "linger.ms: 5, fetch.min.bytes: 1024, client.id: shop, ssl.truststore.location: /etc/trust.jks"
    assert validated(tmp_path, options).code == 0
    assert "linger.ms" in validated(tmp_path, "linger.msec: 5").error()["hint"]


@pytest.mark.parametrize(
    "text",
    [
        "warehouse: s3://AKIA:secr3t@bucket/w",
        "state: {backend: object-store, url: 's3://AKIA:secr3t@b'}",
        "connections: {k2: {type: kafka, brokers: ['b:1', 'user:secr3t@h:9092']}}",
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


def test_a_panic_of_a_library_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A panic in a library that is written in Rust is a BaseException, not an Exception."""
    panics = mock.Mock(side_effect=type("PanicError", (BaseException,), {}))
    write(tmp_path)
    monkeypatch.setattr("mzplan.operations.project.open_project", panics)
    with pytest.raises(SystemExit) as left:
        main(["-C", str(tmp_path), "plan"])
    assert left.value.code == 1


def test_the_folder_of_this_machine_is_left_out_by_git(tmp_path: Path) -> None:
    folder = runtime_folder(tmp_path)
    assert (folder / ".gitignore").read_text() == "*\n" and folder.stat().st_mode & 0o777 == 0o700
    assert runtime_folder(tmp_path) == folder


# --- where the state is


THEIRS = PROJECT + "state: {backend: postgres, host: evil, database: d, user: u, password: '${env:PW}'}\n"
OURS = "state: {backend: postgres, host: ours, database: d, user: u, password: '${env:PW}'}\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "mzplan.yaml").write_text(THEIRS)
    return folder


def test_the_state_of_a_file_outside_replaces_the_whole_block(checkout: Path) -> None:
    outside = checkout.parent / "base"
    outside.mkdir()
    (outside / "mzplan.yaml").write_text(PROJECT + OURS + "warehouse: s3://another\n")
    given = str(outside / "mzplan.yaml")
    project = open_project(str(checkout), state_config=given)
    assert project.store.backend.describe() == "postgres://ours:5432/d/mzplan"
    assert project.settings.warehouse == "./warehouse"  # nothing else of it counts
    # Its paths, and the files of its references, are its own, not those of the checkout.
    (outside / "mzplan.yaml").write_text("state: {path: here}\n")
    assert open_project(str(checkout), state_config=given).store.backend.describe() == str(outside / "here")
    # So are its variables.
    (checkout / "mzplan.yaml").write_text(PROJECT + "variables: {host: {default: evil}}\n")
    theirs = OURS.replace("host: ours", "host: '${var.host}'")
    (outside / "mzplan.yaml").write_text("variables: {host: {default: ours}}\n" + theirs)
    assert open_project(str(checkout), state_config=given).settings.state["host"] == "ours"


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        (None, "MZ001", "doesn't exist"),
        ("warehouse: w\n", "MZ110", "state"),
        ("state: {host: '${var.h}'}\n", "MZ015", "h"),
        ("state: [\n", "MZ002", ""),
    ],
)
def test_an_unusable_state_file_is_an_error(
    checkout: Path, content: str | None, code: str, words: str
) -> None:
    outside = checkout.parent / "state.yaml"
    if content is not None:
        outside.write_text(content)
    problem = refusal(lambda: load_project(checkout, state_config=str(outside)))
    assert problem.code == code and words in f"{problem.summary} {problem.detail} {problem.hint}"


def test_a_state_file_in_the_project_is_refused(checkout: Path) -> None:
    (checkout / "state.yaml").write_text(OURS)
    link = checkout.parent / "link.yaml"
    link.symlink_to(checkout / "state.yaml")
    for given in (checkout / "state.yaml", link, checkout / "mzplan.yaml"):
        problem = refusal(partial(load_project, checkout, state_config=str(given)))
        assert problem.code == "MZ110" and "outside" in problem.hint


def test_an_option_or_the_environment_names_the_state_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "shop")
    outside = tmp_path / "state.yaml"
    outside.write_text("state: {path: kept}\n")
    mzplan(folder, "apply", "--auto-approve", "--state-config", str(outside))
    assert (tmp_path / "kept" / "mzplan.state.json").exists() and not (folder / "state").exists()
    monkeypatch.setenv("MZPLAN_STATE_CONFIG", str(outside))
    assert "No changes" in mzplan(folder, "plan").out
    other = tmp_path / "other.yaml"
    other.write_text("state: {path: other}\n")
    assert "No changes" not in mzplan(folder, "plan", "--state-config", str(other)).out  # the option wins


def test_a_runner_that_a_command_starts_has_the_same_state(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = checkout.parent / "state.yaml"
    outside.write_text("state: {path: kept}\n")
    monkeypatch.chdir(checkout.parent)
    project = open_project(str(checkout), state_config="state.yaml")
    started = mock.Mock(side_effect=KeyError)
    monkeypatch.setattr(embedded.subprocess, "Popen", started)
    with pytest.raises(KeyError):
        embedded.start(project.settings, project.store, "local")
    assert started.call_args.kwargs["env"]["MZPLAN_STATE_CONFIG"] == str(outside)


@pytest.mark.parametrize(
    "settings",
    [
        "state: {backend: postgres, host: '${env:SECRET}.evil', database: d, user: u}",
        "state: {backend: postgres, host: h, database: d, user: u, tls: {ca: '${env:SECRET}'}}",
        "state: {backend: object-store, url: 's3://evil/${env:SECRET}'}",
        "state: {backend: object-store, url: 's3://b', options: {aws_default_region: '${env:SECRET}'}}",
        "warehouse: 's3://${env:SECRET}/x'",
    ],
)
def test_a_misplaced_reference_in_the_settings_is_refused(checkout: Path, settings: str) -> None:
    (checkout / "mzplan.yaml").write_text(f"{PROJECT}{settings}\n")
    problem = refusal(lambda: load_project(checkout))
    assert problem.code == "MZ102" and "secret" in problem.detail and problem.range is not None


def write_option(folder: Path, name: str, value: str) -> None:
    options = f"state: {{backend: object-store, url: 's3://b', options: {{{name}: '{value}'}}}}\n"
    (folder / "mzplan.yaml").write_text(PROJECT + options)


def test_a_secret_option_must_be_a_reference(checkout: Path) -> None:
    for name in ("aws_secret_access_key", "AWS_SECRET_ACCESS_KEY", "sas_token", "access_key"):
        write_option(checkout, name, "hunter22")
        problem = refusal(lambda: load_project(checkout))
        assert problem.code == "MZ016" and "hunter22" not in f"{problem} {problem.excerpt}"
        write_option(checkout, name, "${env:S}")
        load_project(checkout)
    write_option(checkout, "aws_access_key_id", "x")  # may be plain text
    load_project(checkout)
