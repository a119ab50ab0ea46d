"""Who says where the state is: not a pull request (docs/security.md)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mzplan.config import load_project
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.operations.project import open_project
from mzplan.runner import embedded
from tests.unit.cli_runs import run, write

HEAD = "version: 1\nproject: shop\n"
THEIRS = HEAD + "state: {backend: postgres, host: evil, database: d, user: u, password: '${env:PW}'}\n"
OURS = "state: {backend: postgres, host: ours, database: d, user: u, password: '${env:PW}'}\n"


def refused(folder: Path, state_config: str = "") -> Diagnostic:
    with pytest.raises(MzplanError) as caught:
        load_project(folder, state_config=state_config)
    (problem,) = caught.value.diagnostics
    return problem


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "mzplan.yaml").write_text(THEIRS)
    return folder


def test_the_state_of_a_file_outside_replaces_the_whole_block(checkout: Path) -> None:
    outside = checkout.parent / "base"
    outside.mkdir()
    (outside / "mzplan.yaml").write_text(HEAD + OURS + "warehouse: s3://another\n")
    given = str(outside / "mzplan.yaml")
    project = open_project(str(checkout), state_config=given)
    assert project.store.backend.describe() == "postgres://ours:5432/d/mzplan"
    assert project.settings.warehouse == "./warehouse"  # nothing else of it counts
    # Its paths, and the files of its references, are its own, not those of the checkout.
    (outside / "mzplan.yaml").write_text("state: {path: here}\n")
    assert open_project(str(checkout), state_config=given).store.backend.describe() == str(outside / "here")


def test_a_state_file_has_its_own_variables(checkout: Path) -> None:
    (checkout / "mzplan.yaml").write_text(HEAD + "variables: {host: {default: evil}}\n")
    outside = checkout.parent / "state.yaml"
    outside.write_text(
        "variables: {host: {default: ours}}\n" + OURS.replace("host: ours", "host: '${var.host}'")
    )
    project = open_project(str(checkout), state_config=str(outside))
    assert project.settings.state["host"] == "ours"


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
    with pytest.raises(MzplanError) as caught:
        load_project(checkout, state_config=str(outside))
    assert {problem.code for problem in caught.value.diagnostics} == {code}
    assert words in " ".join(f"{d.summary} {d.detail} {d.hint}" for d in caught.value.diagnostics)


def test_a_state_file_in_the_project_is_refused(checkout: Path) -> None:
    (checkout / "state.yaml").write_text(OURS)
    link = checkout.parent / "link.yaml"
    link.symlink_to(checkout / "state.yaml")
    for given in (checkout / "state.yaml", link, checkout / "mzplan.yaml"):
        problem = refused(checkout, str(given))
        assert problem.code == "MZ110" and "outside" in problem.hint


def test_an_option_or_the_environment_names_the_state_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    write(folder)
    outside = tmp_path / "state.yaml"
    outside.write_text("state: {path: kept}\n")
    run("-C", str(folder), "apply", "--auto-approve", "--state-config", str(outside))
    assert (tmp_path / "kept" / "mzplan.state.json").exists() and not (folder / "state").exists()
    monkeypatch.setenv("MZPLAN_STATE_CONFIG", str(outside))
    assert "No changes" in run("-C", str(folder), "plan").out
    other = tmp_path / "other.yaml"
    other.write_text("state: {path: other}\n")
    ran = run("-C", str(folder), "plan", "--state-config", str(other))
    assert "No changes" not in ran.out  # the option wins


def test_a_runner_that_a_command_starts_has_the_same_state(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = checkout.parent / "state.yaml"
    outside.write_text("state: {path: kept}\n")
    started: dict[str, str] = {}

    class StartedError(Exception):
        pass

    def popen(*_: object, env: dict[str, str], **__: object) -> None:
        started.update(env)
        raise StartedError

    monkeypatch.chdir(checkout.parent)
    project = open_project(str(checkout), state_config="state.yaml")
    monkeypatch.setattr(embedded.subprocess, "Popen", popen)
    with pytest.raises(StartedError):
        embedded.start(project.settings, project.store, "local")
    assert started["MZPLAN_STATE_CONFIG"] == os.fspath(outside)


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
    (checkout / "mzplan.yaml").write_text(f"{HEAD}{settings}\n")
    problem = refused(checkout)
    assert problem.code == "MZ102" and "secret" in problem.detail and problem.range is not None


def write_option(folder: Path, name: str, value: str) -> None:
    options = f"state: {{backend: object-store, url: 's3://b', options: {{{name}: '{value}'}}}}\n"
    (folder / "mzplan.yaml").write_text(HEAD + options)


@pytest.mark.parametrize(
    "name", ["aws_secret_access_key", "AWS_SECRET_ACCESS_KEY", "sas_token", "access_key"]
)
def test_a_secret_option_must_be_a_reference(checkout: Path, name: str) -> None:
    write_option(checkout, name, "hunter22")
    problem = refused(checkout)
    assert problem.code == "MZ016" and "hunter22" not in f"{problem} {problem.excerpt}"
    write_option(checkout, name, "${env:S}")
    load_project(checkout)
    write_option(checkout, "aws_access_key_id", "x")  # may be plain text
    load_project(checkout)
