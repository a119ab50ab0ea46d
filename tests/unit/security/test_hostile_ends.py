"""What comes from outside at the ends of the command line: bytes that are no text, secrets in statements,
texts that turn others around, and places where no state can be."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from mzplan.features.alter.sql.parser import parse_statements
from mzplan.model.diagnostics import MzplanError
from tests.unit.cli_runs import apply, mzplan, write

STATE = Path("state") / "mzplan.state.json"
BIDI = "\u202e\u2066\u200f\u2028"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "p")


@pytest.mark.parametrize("command", ["validate", "plan", "show"])
@pytest.mark.parametrize("given", ["--var", "environment"])
def test_a_variable_that_is_no_text_is_one_error(
    folder: Path, command: str, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = folder / "mzplan.yaml"
    settings.write_text(settings.read_text() + "variables: {x: {}}\nwarehouse: ${var.x}\n")
    pipeline = folder / "pipeline.yaml"
    pipeline.write_text(pipeline.read_text().replace("a:9092", "${var.x}:9092"))
    bad = os.fsdecode(b"\xff")
    if given == "environment":
        monkeypatch.setenv("MZPLAN_VAR_X", bad)
    ran = mzplan(folder, command, "--json", *(("--var", f"x={bad}") if given == "--var" else ()))
    if command != "show" or given == "environment":  # --var is of the configuration, which show does not read
        assert ran.code == 1 and ran.error()["code"] == "MZ015"
        assert ran.error()["summary"] == 'The value of variable "x" is not text'


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER CONNECTION k SET BROKERS SECRET 'hunter2'",
        "ALTER CONNECTION k SET (BROKERS = SECRET 'hunter2', NOTHING = 'x')",
        "ALTER CONNECTION k SET (SASL PASSWORD = SECRET 'hunter2')",
        "ALTER CONNECTION k SET BROKERS SECRET hunter2",
        "ALTER CONNECTION k SET BROKERS SECRET   hunter2, hunter2",
        "ALTER CONNECTION k SET BROKERS = secret\n hunter2",
        'ALTER CONNECTION k SET BROKERS SECRET "hunter2"',
        "ALTER CONNECTION k SET BROKERS SECRET ('hunter2')",
        "ALTER CONNECTION k SET BROKERS SECRET 'hunter2",
        "ALTER CONNECTION k SET NOTHING SECRET 'hunter2'",
        "ALTER CONNECTION nobody SET BROKERS SECRET 'hunter2'",
        "ALTER CONNECTION k AS POSTGRES SET BROKERS SECRET 'hunter2'",
        "ALTER CONNECTION k SET BROKERS SECRET hunter2 WITH (VALIDATE)",
        "ALTER SOURCE orders SET CONNECTION SECRET hunter2",
    ],
)
def test_a_literal_after_secret_is_never_echoed(folder: Path, statement: str) -> None:
    apply(folder)
    for more in ((), ("--no-apply",), ("--json",)):
        ran = mzplan(folder, "alter", statement, *more)
        assert ran.code in (1, 64) and "hunter2" not in ran.out + ran.err, ran


def test_what_is_not_after_secret_is_still_shown() -> None:
    with pytest.raises(MzplanError) as caught:
        parse_statements("ALTER CONNECTION k SIT HOST 'h'")
    assert caught.value.diagnostics[0].summary == "Unexpected SIT"


def test_markdown_goes_to_stdout(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_json_shows_what_turns_text_around_as_escapes(folder: Path) -> None:
    pipeline = folder / "pipeline.yaml"
    text = f"a{BIDI}b"
    escaped = "".join(f"\\u{ord(char):04x}" for char in BIDI)
    pipeline.write_text(pipeline.read_text().replace("k: {", f'k: {{description: "a{escaped}b é", '))
    for command in (("plan", "--json"), ("graph", "--json"), ("show",)):
        if command == ("show",):
            apply(folder)
        ran = mzplan(folder, *command)
        assert not set(BIDI) & set(ran.out)
        if command[0] != "graph":
            assert text in json.dumps(ran.json(), ensure_ascii=False) and f"a{escaped}b é" in ran.out


def test_the_current_serial_can_be_pulled(folder: Path, tmp_path: Path) -> None:
    apply(folder)
    apply(write(folder, broker="b"))
    assert mzplan(folder, "state", "pull", "--serial", "2").out == (folder / STATE).read_text()
    assert mzplan(folder, "state", "pull", "--out", "-").out == (folder / STATE).read_text()
    assert json.loads(mzplan(folder, "state", "pull", "--serial", "1").out)["serial"] == 1
    assert mzplan(folder, "state", "pull", "--serial", "3", "--json").error()["code"] == "MZ038"


@pytest.mark.parametrize("path", ["pipeline.yaml", "pipeline.yaml/below", "x" * 300, "loop"])
@pytest.mark.parametrize("command", ["plan", "status"])
def test_a_state_path_that_can_be_no_folder_has_its_line(folder: Path, path: str, command: str) -> None:
    (folder / "loop").symlink_to("loop")
    settings = folder / "mzplan.yaml"
    settings.write_text(settings.read_text() + f"state:\n  path: {path}\n")
    found = mzplan(folder, command, "--json").error()
    assert found["code"] == "MZ030"
    assert (found["range"]["path"], found["range"]["line"], found["range"]["column"]) == ("mzplan.yaml", 6, 9)


def test_what_killed_commands_have_left_is_swept_under_the_lock(folder: Path) -> None:
    apply(folder)
    apply(write(folder, broker="b"))
    left = [
        "state/.mzplan.state.json.0123456789ab.tmp",
        "state/history/.00000001.json.0123456789ab.tmp",
        "state/status/.local.json.0123456789ab.tmp",
    ]
    others = ["state/.mine.0123456789ab.tmp"]  # beside the state may be somebody else's
    for name in (*left, *others):
        (folder / name).write_text("x")
    assert mzplan(folder, "plan").code == 0
    assert all((folder / name).exists() for name in left)  # it has no lock
    apply(folder)
    assert not any((folder / name).exists() for name in left)
    assert all((folder / name).exists() for name in others)


def test_an_earlier_serial_over_the_state_is_noticed_and_the_printed_fix_works(
    folder: Path, tmp_path: Path
) -> None:
    """The last one of the history is no less whole than the state was: a status tells."""
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
