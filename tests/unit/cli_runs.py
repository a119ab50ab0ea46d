"""Runs the command line in the test's process, and returns its exit code and both streams."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from mzplan.cli.main import main

PROJECT = """\
version: 1
project: shop
instances:
  local: {type: %s}
"""
PIPELINE = """\
connections:
  k: {type: kafka, brokers: ["%s:9092"]}
sources:
  orders: {connection: k, topic: orders, format: {type: json, schema: "id BIGINT, name STRING"}}
sinks:
  out: {type: console, from: orders}
  few: {type: console, from: orders, rows: 3}
"""
STATE = Path("state") / "mzplan.state.json"
CODES = {0, 1, 2, 3, 4, 5, 6, 7, 8, 64, 130}


@dataclass(frozen=True)
class Ran:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Return the JSON document on stdout."""
        return json.loads(self.out)

    def error(self) -> dict[str, Any]:
        """Return the only diagnostic of a command that failed with --json."""
        (found,) = self.json()["diagnostics"]
        assert isinstance(found, dict)
        return found


def write(folder: Path, instance: str = "dry", broker: str = "a") -> Path:
    """Write a project of one connection, one source and two sinks."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mzplan.yaml").write_text(PROJECT % instance)
    (folder / "pipeline.yaml").write_text(PIPELINE % broker)
    return folder


def edit(folder: Path, before: str, after: str, name: str = "pipeline.yaml") -> None:
    """Replace a text in one of the project's files."""
    path = folder / name
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def add_settings(folder: Path, text: str) -> None:
    """Append to the project's settings."""
    with (folder / "mzplan.yaml").open("a") as settings:
        settings.write(text)


def run(*arguments: str, stdin: str = "", terminal: bool = False) -> Ran:
    """Run `mzplan` with these arguments. `terminal`: stdin claims to be a terminal."""
    out, err, given = io.StringIO(), io.StringIO(), io.StringIO(stdin)
    if terminal:
        given.isatty = lambda: True  # type: ignore[method-assign]
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.object(sys, "stdin", given),
    ):
        try:
            main(list(arguments))
        except SystemExit as left:
            code = left.code
    assert isinstance(code, int)
    ran = Ran(int(code), out.getvalue(), err.getvalue())
    assert ran.code in CODES, ran
    assert "Traceback" not in ran.err and "MZ079" not in ran.out + ran.err, ran.out + ran.err
    return ran


def mzplan(folder: Path, *arguments: str, **more: Any) -> Ran:
    """Run `mzplan -C folder …`."""
    return run("-C", str(folder), *arguments, **more)


def failed(folder: Path, *arguments: str, code: int) -> dict[str, Any]:
    """Run `mzplan -C folder … --json`, which must exit with this code, and return its only diagnostic."""
    ran = mzplan(folder, *arguments, "--json")
    assert ran.code == code, ran
    return ran.error()


def apply(folder: Path, *arguments: str) -> Ran:
    """Run `mzplan apply --auto-approve --json`, which must succeed."""
    ran = mzplan(folder, "apply", "--auto-approve", "--json", *arguments)
    assert ran.code == 0, ran
    return ran


def state(folder: Path) -> Any:
    """Return the stored state."""
    return json.loads((folder / STATE).read_text())


def planned_effects(folder: Path, *arguments: str) -> dict[str, str]:
    """Return the effect of each planned change, by address."""
    plan = mzplan(folder, "plan", "--json", *arguments).json()
    return {change["address"]: change["effect"] for change in plan["changes"]}


def with_another(folder: Path, instance: str = "dry") -> Path:
    """Write a project with a second connection and a second source."""
    write(folder, instance)
    (folder / "more.yaml").write_text(
        "connections:\n  k2: {type: kafka, brokers: ['z:9092']}   # another\n"
        "sources:\n  second: {connection: k, topic: second, format: {type: json, schema: 'id BIGINT'}}\n"
    )
    return folder


def applied_with_another(folder: Path) -> Path:
    """Write and apply a project with a second connection and a second source, on a dry instance."""
    apply(with_another(folder))
    return folder
