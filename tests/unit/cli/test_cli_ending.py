"""The end of a command: errors, one JSON document in any case, interrupts, closed streams."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from mzplan.cli.main import COMMANDS, main
from mzplan.host import files
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.store.backends.local import LocalBackend
from mzplan.store.store import Store
from tests.unit.cli_runs import STATE, add_settings, apply, edit, mzplan, run, write

APPLY: tuple[str, ...] = ("apply", "--auto-approve")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path)


# --- errors


@pytest.mark.parametrize(
    "arguments", [("validate",), ("plan",), ("apply", "--auto-approve"), ("graph",), ("alter", "DROP")]
)
def test_an_error_in_the_settings_hides_no_other_error(folder: Path, arguments: tuple[str, ...]) -> None:
    write(folder, "dryy")
    edit(folder, "rows: 3", "row: 3")
    ran = mzplan(folder, *arguments, "--json")
    found = {(Path(d["range"]["path"]).name, d["code"]) for d in ran.json()["diagnostics"]}
    assert ran.code == 1
    assert found >= {("mzplan.yaml", "MZ005"), ("pipeline.yaml", "MZ004")}
    # A command that reads only the settings reports only their errors.
    assert {d["code"] for d in mzplan(folder, "status", "--json").json()["diagnostics"]} == {"MZ005"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("fly",),
        ("plan", "--fast"),
        ("plan", "--target", "orders"),
        ("pause",),
        ("state",),
        ("apply", "--wait", "soon"),
        ("apply", "--canary-wait", "5s"),  # without --canary
        ("apply",),  # without a terminal
        ("apply", "no-such-file"),
        ("apply", "x", "--target", "source.orders"),
        ("show", "source.none"),
        ("show", "none"),
        ("show", "--explain"),
        ("schema", "none"),
        ("init", "--from", "none"),
        ("run", "--instance", "none"),
        ("run",),
        ("up", "--instance", "none"),
        ("up", "--instance", "local"),  # it is dry
        ("plan", "--var", "x"),
        ("status", "--watch", "--json"),
        (),
    ],
)
def test_a_wrong_command_line_is_64(folder: Path, arguments: tuple[str, ...]) -> None:
    ran = mzplan(folder, *arguments, "--json")
    assert ran.code == 64
    for found in ran.json()["diagnostics"]:
        assert found["code"] == "MZ070" and found["severity"] == "error"
        assert found["hint"] and found["summary"].strip() and "\\n" not in found["hint"]


def test_a_wrong_name_gets_a_suggestion(folder: Path) -> None:
    assert "'apply'" in mzplan(folder, "aply").err
    assert "did you mean source.orders?" in mzplan(folder, "plan", "--target", "source.ordrs").err


# --- one document


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        (("plan", "--explain"), {"changes", "summary", "stages", "diagnostics"}),
        (("destroy", "--auto-approve"), {"changes", "serial"}),
        (("validate",), {"diagnostics"}),
        (("status",), {"queries", "instances", "serial"}),
        (("show",), {"resources"}),
        (("graph",), {"nodes", "edges"}),
        (("graph", "--impact", "connection.k"), {"impact"}),
        (("schema",), {"schemas"}),
        (("schema", "sink.console"), {"properties"}),
        (("completion", "bash"), {"script"}),
        (("up",), {"instances"}),
        (("--version",), {"version"}),
    ],
)
def test_json_is_one_document(folder: Path, arguments: tuple[str, ...], keys: set[str]) -> None:
    ran = mzplan(folder, *arguments, "--json")
    assert ran.code == 0 and keys <= ran.json().keys(), ran


def test_a_plan_with_errors_is_shown_with_them(folder: Path) -> None:
    apply(folder)
    add_settings(folder, "warehouse: ./elsewhere\n")
    ran = mzplan(folder, "plan", "--json", "--out", str(folder / "p"))
    assert ran.code == 7
    assert [d["code"] for d in ran.json()["diagnostics"]] == ["MZ044"] and "changes" in ran.json()
    ran = mzplan(folder, "plan", "--out", str(folder / "p"))
    assert ran.code == 7 and "error[MZ044]" in ran.out
    assert "can't be applied: 1 error" in ran.err and "not saved" in ran.err
    assert not (folder / "p").exists()


def test_an_unexpected_error_hides_its_text_unless_verbose(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mzplan.cli.plan.make_plan", mock.Mock(side_effect=KeyError("geheim")))
    for options, shown in (((), False), (("-v",), True)):
        with pytest.raises(SystemExit) as left:
            main(["-C", str(folder), "plan", "--json", *options])
        out, err = capsys.readouterr()
        assert left.value.code == 1
        assert json.loads(out)["diagnostics"][0]["code"] == "MZ079"
        assert "geheim" not in out and ("geheim" in err) == shown


class PanicException(BaseException):
    """An error as Rust libraries raise it when the Python code that they call is interrupted."""


@pytest.mark.parametrize(
    ("number", "raised"),
    [
        (signal.SIGINT, PanicException("called `Result::unwrap()` on an `Err` value")),
        (signal.SIGTERM, ConnectionRefusedError(errno.ECONNREFUSED, "the signal has also ended the JVM")),
        (signal.SIGINT, MzplanError(Diagnostic(code="MZ283", summary="Connection refused"))),
    ],
    ids=["a panic", "a connection", "an error"],
)
def test_an_interrupt_counts_even_if_a_library_raises_another_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException, number: signal.Signals
) -> None:
    def serials(self: Store, first: int = 0) -> list[int]:
        try:
            signal.raise_signal(number)
        except KeyboardInterrupt:
            raise raised from None
        return []

    monkeypatch.setattr(Store, "serials", serials)
    default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
    signal.signal(number, default)  # ignored where tests run in the background
    ran = mzplan(folder, "apply", "--auto-approve", "--json")
    assert (ran.code, ran.error()["code"], ran.error()["detail"]) == (130, "MZ071", "nothing was changed.")


def test_an_error_after_the_commit_says_that_it_is_committed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Diagnostic(code="MZ035", summary="x", detail="No. Nothing was changed: intact.")
    monkeypatch.setattr("mzplan.runner.main.run_dry", mock.Mock(side_effect=MzplanError(problem)))
    ran = mzplan(folder, "apply", "--auto-approve", "--json")
    assert ran.code == 8 and ran.json()["serial"] == 1
    assert ran.error()["detail"] == "No. Serial 1 is committed."
    assert (folder / STATE).exists()


ALTER = ("alter", "--auto-approve", "--no-live", "ALTER CONNECTION k SET (brokers = ['b:9092'])")


@pytest.mark.parametrize(("command", "serial"), [(APPLY, 1), (ALTER, 2)], ids=["apply", "alter"])
def test_a_folder_that_cannot_be_synced_after_the_commit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], serial: int
) -> None:
    if command == ALTER:
        apply(folder)
    sync = files.sync_folder

    def fails(place: Path, folder: int | None = None) -> None:
        whole = place if folder is None else Path(f"/proc/self/fd/{folder}").readlink() / place
        if whole.name == "state":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(place, folder)

    monkeypatch.setattr(files, "sync_folder", fails)
    ran = mzplan(folder, *command, "--json")
    assert ran.code == 8 and ran.json()["serial"] == serial, ran
    assert "committed" in ran.error()["summary"] and "Nothing was changed" not in ran.out + ran.err
    assert json.loads((folder / STATE).read_text())["serial"] == serial
    assert ("b:9092" in (folder / "pipeline.yaml").read_text()) == (command == ALTER)
    assert not (folder / ".mzplan" / "alter.json").exists()


# --- global options


def test_global_options_go_before_and_after_the_command(folder: Path) -> None:
    one = run("-C", str(folder), "--json", "--no-color", "plan")
    other = run("plan", "-C", str(folder), "--json", "--no-color")
    assert one.code == other.code == 0 and one.out == other.out
    assert run("-C", "/nowhere", "plan", "-C", str(folder)).code == 0


# --- asking


@pytest.mark.parametrize(("answer", "code"), [("yes\n", 0), ("no\n", 1), ("y\n", 1), ("\n", 1), ("", 1)])
def test_only_yes_is_yes(folder: Path, answer: str, code: int) -> None:
    ran = mzplan(folder, "apply", stdin=answer, terminal=True)
    assert ran.code == code
    assert "Do you want to apply this?" in ran.err and "Plan: 4 to create" in ran.out
    assert (folder / STATE).exists() == (code == 0)
    if code:
        assert "error[MZ071]: Not approved" in ran.err and "Nothing was changed." in ran.err


def test_apply_asks_only_on_a_terminal_and_without_json(folder: Path) -> None:
    assert "--auto-approve" in mzplan(folder, "apply", stdin="yes\n").err
    ran = mzplan(folder, "apply", "--json", stdin="yes\n", terminal=True)
    assert ran.code == 64 and "with --json can't ask" in ran.error()["summary"]
    assert not (folder / STATE).exists()


# --- interruptions


FOLLOW = "mzplan.operations.follower.OutcomeFollower.follow"


@pytest.mark.parametrize(
    ("step", "command", "message"),
    [
        ("mzplan.cli.plan.make_plan", ("plan",), "Interrupted."),
        ("mzplan.operations.validation.validate_queries", APPLY, "Interrupted: nothing was changed."),
        ("mzplan.cli.context.Invocation.ask", ("apply",), "Interrupted: nothing was changed."),
        ("mzplan.store.store.Store.commit", APPLY, "Interrupted: serial 1 was being committed"),
        (FOLLOW, APPLY, "Interrupted: serial 1 is committed and stays"),
    ],
    ids=["planning", "validating", "asking", "committing", "following"],
)
def test_an_interrupted_command_says_whether_it_has_committed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: str, command: tuple[str, ...], message: str
) -> None:
    monkeypatch.setattr(step, mock.Mock(side_effect=KeyboardInterrupt))
    ran = mzplan(folder, *command, terminal=True)
    assert ran.code == 130 and ran.err.splitlines()[-1].startswith(message)
    assert (folder / STATE).exists() == (step == FOLLOW)


def started(folder: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "mzplan", "-C", str(folder), *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, **{"stdout": pipe, "stderr": pipe, "text": True, **options})


def test_ctrl_c_while_following_ends_only_the_waiting(tmp_path: Path) -> None:
    write(tmp_path, "cluster")
    # This process holds the instance's lease, without running its queries.
    assert Store(LocalBackend(tmp_path / "state"), "shop").leases.acquire("local", "test") is not None
    process = started(tmp_path, "apply", "--auto-approve", "--no-live", "--json")
    assert process.stderr is not None
    # On a slow machine, the command first reports what it waits for.
    assert next(line for line in process.stderr if " s: " not in line) == "Committed serial 1\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130 and "Traceback" not in err
    assert json.loads(out)["serial"] == 1
    assert (tmp_path / STATE).exists()


# --- closed and full streams


@pytest.mark.parametrize("command", [APPLY, ("--help",)], ids=["apply", "help"])
def test_a_closed_reader_does_not_stop_a_command(folder: Path, command: tuple[str, ...]) -> None:
    read, written = os.pipe()
    os.close(read)
    process = started(folder, *command, stdout=written)
    os.close(written)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, (folder / STATE).exists()) == (0, command == APPLY)
    assert "Traceback" not in err and "Exception ignored" not in err and "Broken pipe" not in err
    assert command == APPLY or err == ""


@pytest.mark.parametrize(
    ("command", "first"),
    [(("status", "--watch"), "Serial 1"), (("events", "--follow", "--since", "1h"), "generation")],
    ids=["status", "events"],
)
def test_a_closed_reader_ends_a_following_command(folder: Path, command: tuple[str, ...], first: str) -> None:
    """Even if nothing happens that the command would print."""
    apply(folder)
    process = started(folder, *command)
    assert process.stdout is not None and process.stderr is not None
    assert first in process.stdout.readline()
    process.stdout.close()
    process.wait(timeout=120)
    assert (process.returncode, process.stderr.read()) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_results_that_cannot_be_written_are_an_error(folder: Path) -> None:
    with Path("/dev/full").open("w") as full:
        process = started(folder, "plan", "--json", stdout=full)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 1 and "error[MZ035]: The results could not be written" in err
        process = started(folder, "apply", "--auto-approve", stdout=full)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 8 and "No space left" in err  # it did commit
    assert (folder / STATE).exists()


def test_closed_streams(folder: Path) -> None:
    for redirection in (">&-", ">&- 2>&- <&-"):
        line = f"'{sys.executable}' -m mzplan -C '{folder}' plan {redirection}"
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and "Traceback" not in done.stderr, (redirection, done.stderr)


def test_output_works_in_a_poor_encoding(folder: Path) -> None:
    (folder / "pipeline.yaml").write_text(
        'connections: {k: {type: kafka, brokers: ["a:1"], description: "ünï ⟳ 漢"}}\n', encoding="utf-8"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    process = started(folder, "plan", env=environment, text=False)
    shown, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert shown.decode("ascii").startswith("+ connection.k")
    process = started(folder, "plan", "--json", env=environment, text=False)
    out, _ = process.communicate(timeout=120)
    fields = json.loads(out.decode("ascii"))["changes"][0]["fields"]
    assert "ünï ⟳ 漢" in [field["after"] for field in fields]


def test_arguments_that_are_not_text_are_an_error(folder: Path) -> None:
    for arguments in ((b"-C", b"\xff"), (b"plan", b"--target", b"\xff")):
        command = [sys.executable.encode(), b"-m", b"mzplan", *arguments]
        done = subprocess.run(command, capture_output=True, timeout=120, cwd=folder)
        assert done.returncode in (1, 64) and b"Traceback" not in done.stderr, done.stderr


def test_every_command_has_help() -> None:
    for name in COMMANDS:
        ran = run(name, "--help")
        assert ran.code == 0 and "--json" in ran.out and "Usage: mzplan " + name in ran.out


def test_an_interrupt_while_modules_load_shows_no_traceback() -> None:
    # SIGINT is ignored where the tests run in the background: a handler, which exec resets, undoes that.
    command = [sys.executable, "-X", "importtime", "-m", "mzplan", "--version"]
    ready = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    reset = f"{ready}; import os, sys; os.execv(sys.executable, {command!r})"
    with subprocess.Popen(
        [sys.executable, "-c", reset], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as loading:
        assert loading.stderr is not None
        next(line for line in loading.stderr if "click" in line)  # the command line's modules begin to load
        loading.send_signal(signal.SIGINT)
        rest = loading.stderr.read()
    assert "Traceback" not in rest
    assert loading.returncode in (-signal.SIGINT, 130)
