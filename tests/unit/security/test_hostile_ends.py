"""Odd input of the command line: bytes that aren't text, secrets in statements, unusable states."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.unit.cli_runs import apply, mzplan, write

STATE = Path("state") / "mzplan.state.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "p")


@pytest.mark.parametrize("given", ["--var", "environment"])
def test_a_variable_that_is_not_text_is_one_error(
    folder: Path, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = folder / "mzplan.yaml"
    settings.write_text(settings.read_text() + "variables: {x: {}}\nwarehouse: ${var.x}\n")
    bad = os.fsdecode(b"\xff")
    if given == "environment":
        monkeypatch.setenv("MZPLAN_VAR_X", bad)
    ran = mzplan(folder, "plan", "--json", *(("--var", f"x={bad}") if given == "--var" else ()))
    assert ran.code == 1 and ran.error()["code"] == "MZ015"


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER CONNECTION k SET BROKERS SECRET 'hunter2'",
        "ALTER CONNECTION k SET (SASL PASSWORD = SECRET 'hunter2')",
        "ALTER CONNECTION k SET BROKERS SECRET hunter2",
        "ALTER CONNECTION k SET BROKERS = secret\n hunter2",
        'ALTER CONNECTION k SET BROKERS SECRET "hunter2"',
        "ALTER CONNECTION k SET BROKERS SECRET 'hunter2",
        "ALTER CONNECTION k AS POSTGRES SET BROKERS SECRET 'hunter2'",
    ],
)
def test_a_literal_after_secret_is_never_echoed(folder: Path, statement: str) -> None:
    apply(folder)
    for more in ((), ("--json",)):
        ran = mzplan(folder, "alter", statement, *more)
        assert ran.code in (1, 64) and "hunter2" not in ran.out + ran.err, ran


def test_markdown_can_go_to_stdout(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    into = mzplan(folder, "plan", "--markdown", "comment.md")
    assert into.code == 0 and "Plan: " in into.out
    ran = mzplan(folder, "plan", "--markdown", "-", "--detailed-exitcode")
    assert ran.code == 2 and ran.out == (folder / "comment.md").read_text()
    apply(folder)
    assert mzplan(folder, "drift", "--markdown", "drift.md").code == 0
    assert mzplan(folder, "drift", "--markdown", "-").out == (folder / "drift.md").read_text()
    for command in ("plan", "drift"):
        assert mzplan(folder, command, "--markdown", "-", "--json").code == 64
    assert not (folder / "-").exists()


def test_the_current_serial_can_be_pulled(folder: Path, tmp_path: Path) -> None:
    apply(folder)
    apply(write(folder, broker="b"))
    assert mzplan(folder, "state", "pull", "--serial", "2").out == (folder / STATE).read_text()
    assert mzplan(folder, "state", "pull", "--out", "-").out == (folder / STATE).read_text()
    assert json.loads(mzplan(folder, "state", "pull", "--serial", "1").out)["serial"] == 1
    assert mzplan(folder, "state", "pull", "--serial", "3", "--json").error()["code"] == "MZ038"


@pytest.mark.parametrize("path", ["pipeline.yaml", "pipeline.yaml/below", "loop"])
def test_an_unusable_state_path_is_an_error_with_its_line(folder: Path, path: str) -> None:
    (folder / "loop").symlink_to("loop")
    settings = folder / "mzplan.yaml"
    settings.write_text(settings.read_text() + f"state:\n  path: {path}\n")
    found = mzplan(folder, "plan", "--json").error()
    assert found["code"] == "MZ030"
    assert (found["range"]["path"], found["range"]["line"], found["range"]["column"]) == ("mzplan.yaml", 6, 9)


def test_an_older_copy_of_the_state_is_refused_and_the_printed_fix_works(
    folder: Path, tmp_path: Path
) -> None:
    apply(folder)
    apply(write(folder, broker="b"))
    lost = tmp_path / "lost.json"
    shutil.copy(folder / STATE, lost)
    shutil.copy(folder / "state/history/00000001.json", folder / STATE)
    for command in (("plan",), ("apply", "--auto-approve"), ("state", "pull")):
        found = mzplan(folder, *command, "--json").error()
        assert found["code"] == "MZ030" and "has serial 1" in found["summary"]
        assert "A runner has read serial 2" in found["detail"] and "history/" not in found["hint"]
    # Either way back: from the history, or from a copy of the latest.
    for source in ("history", "copy"):
        shutil.copy(folder / "state/history/00000001.json", folder / STATE)
        file = lost
        if source == "history":
            file = tmp_path / "pulled.json"
            assert mzplan(folder, "state", "pull", "--serial", "1", "--out", str(file)).code == 0
        pushed = mzplan(folder, "state", "push", str(file), "--force", "--json")
        assert pushed.code == 0 and pushed.json()["serial"] >= 3
        changes = [c["address"] for c in mzplan(folder, "plan", "--json").json()["changes"]]
        assert changes == (["connection.k", "source.orders"] if source == "history" else [])


@pytest.mark.parametrize("damage", ["truncated", "edited"])
def test_the_printed_fix_of_a_damaged_state_works(folder: Path, tmp_path: Path, damage: str) -> None:
    apply(folder)
    apply(write(folder, broker="b"))
    text = (folder / STATE).read_text()
    (folder / STATE).write_text(text[:200] if damage == "truncated" else text.replace("b:9092", "c:9092"))
    found = mzplan(folder, "plan", "--json").error()
    assert found["code"] == "MZ030"
    assert "mzplan state pull --serial N --out FILE" in found["hint"] and "push FILE --force" in found["hint"]
    file = str(tmp_path / "pulled.json")
    assert mzplan(folder, "state", "pull", "--serial", "1", "--out", file).code == 0
    assert mzplan(folder, "state", "push", file, "--force").code == 0
    assert mzplan(folder, "plan", "--detailed-exitcode").code == 2
