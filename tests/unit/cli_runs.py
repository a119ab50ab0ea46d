"""The command line, run in this process: arguments in, exit code and both streams out."""

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
    """How a command line ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)

    def error(self) -> dict[str, Any]:
        """The only diagnostic of a command that failed with --json."""
        (found,) = self.json()["diagnostics"]
        assert isinstance(found, dict)
        return found


def write(folder: Path, instance: str = "dry", broker: str = "a") -> Path:
    """A project of one connection, one source and two sinks."""
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
    """`mzplan` with these arguments. `terminal`: stdin claims to be one."""
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
    """`mzplan -C folder …`"""
    return run("-C", str(folder), *arguments, **more)


def failed(folder: Path, *arguments: str, code: int) -> dict[str, Any]:
    """The only diagnostic of `mzplan -C folder … --json`, which must end with this code."""
    ran = mzplan(folder, *arguments, "--json")
    assert ran.code == code, ran
    return ran.error()


def apply(folder: Path, *arguments: str) -> Ran:
    """`mzplan apply --auto-approve --json`, which must do."""
    ran = mzplan(folder, "apply", "--auto-approve", "--json", *arguments)
    assert ran.code == 0, ran
    return ran


def state(folder: Path) -> Any:
    """The committed state, as it is stored."""
    return json.loads((folder / STATE).read_text())


def planned_effects(folder: Path, *arguments: str) -> dict[str, str]:
    """Address → effect of what a plan would change."""
    plan = mzplan(folder, "plan", "--json", *arguments).json()
    return {change["address"]: change["effect"] for change in plan["changes"]}


def with_another(folder: Path, instance: str = "dry") -> Path:
    """A project with another connection and another source."""
    write(folder, instance)
    (folder / "more.yaml").write_text(
        "connections:\n  k2: {type: kafka, brokers: ['z:9092']}   # another\n"
        "sources:\n  second: {connection: k, topic: second, format: {type: json, schema: 'id BIGINT'}}\n"
    )
    return folder


def applied_with_another(folder: Path) -> Path:
    """A project with another connection and another source, applied on a dry instance."""
    apply(with_another(folder))
    return folder
