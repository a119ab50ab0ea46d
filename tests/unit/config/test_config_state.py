"""`state:` of mzplan.yaml: the three backends, their mistakes, and no secret in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mzplan.model.diagnostics import MzplanError
from mzplan.operations.project import open_project
from tests.unit.cli_runs import mzplan
from tests.unit.config_files import errors

HEAD = "version: 1\nproject: shop\n"
POSTGRES = "state: {backend: postgres, host: h, database: d, user: u, password: '${env:PW}'}\n"
OBJECTS = "state: {backend: object-store, url: 's3://bucket/shop', region: eu-west-1}\n"


@pytest.mark.parametrize(
    ("state", "place"),
    [
        ("", "{folder}/state"),
        ("state: {path: elsewhere}\n", "{folder}/elsewhere"),
        (POSTGRES, "postgres://h:5432/d/mzplan"),
        (OBJECTS, "s3://bucket/shop"),
    ],
)
def test_each_backend_is_opened_by_its_name(tmp_path: Path, state: str, place: str) -> None:
    (tmp_path / "mzplan.yaml").write_text(HEAD + state)
    assert open_project(str(tmp_path)).store.backend.describe() == place.format(folder=tmp_path)


@pytest.mark.parametrize(
    ("state", "code", "words"),
    [
        ("state: {backend: postgres, host: h, database: d}\n", "MZ006", "user"),
        ("state: {backend: object-store, url: 'bucket'}\n", "MZ005", "url"),
        ("state: {backend: etcd}\n", "MZ005", "object-store"),
        ("state: {backend: postgres, hots: h, database: d, user: u}\n", "MZ004", "host"),
    ],
)
def test_a_wrong_backend_is_an_error(tmp_path: Path, state: str, code: str, words: str) -> None:
    (problem, *_) = errors(tmp_path, {"mzplan.yaml": HEAD + state})
    assert problem.code == code
    assert words in f"{problem.summary} {problem.detail} {problem.hint}" and problem.range is not None


def test_a_secret_written_out_is_refused_and_never_shown(tmp_path: Path) -> None:
    written = OBJECTS.replace("region: eu-west-1", "secret_access_key: hunter2")
    for state in (POSTGRES.replace("${env:PW}", "hunter2"), written):
        (tmp_path / "mzplan.yaml").write_text(HEAD + state)
        ran = mzplan(tmp_path, "state", "list")
        assert ran.code == 1 and "MZ016" in ran.err and "hunter2" not in ran.err + ran.out


def test_a_secret_without_a_value_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PW", raising=False)
    (tmp_path / "mzplan.yaml").write_text(HEAD + POSTGRES)
    with pytest.raises(MzplanError) as caught:
        open_project(str(tmp_path)).store.read_state()
    assert caught.value.diagnostics[0].code == "MZ056"
