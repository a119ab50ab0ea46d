"""Files that mean harm, or come from an accident: a clear error, in bounded time and memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mzplan.config import findings, load_configuration
from mzplan.config.project_files import MAX_FILE_BYTES
from mzplan.render.diagnostics import render_diagnostics
from tests.support import refusal
from tests.unit.config_files import PROJECT, SHOP, brief, errors, write

SECONDS = 10  # of processor time: far above what is needed, far below forever


def bomb(levels: int, width: int = 10) -> str:
    """An alias bomb: each level repeats the one before."""
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * width)}]" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


def merge_bomb(levels: int) -> str:
    lines = ["m0: &m0 {" + ", ".join(f"k{i}: x" for i in range(1000)) + "}"]
    lines += [f"m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 500)}]}}" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


K = "connections:\n  k:\n    type: files\n    path: x\n"
HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "an alias bomb": (bomb(20), "MZ007 Too many values"),
    "a bomb of merges": (merge_bomb(20), "MZ007 Too many values"),
    "a long list of aliases": ("a: &a [" + "x, " * 1000 + "]\nb: [" + "*a, " * 50_000 + "]\n", "MZ007 Too"),
    "deep brackets": ("a: " + "[" * 100_000 + "\n", "MZ007 Nested too deep"),
    "deep dashes": ("a:\n" + "- " * 100_000 + "x\n", "MZ007 Nested too deep"),
    "many keys in brackets": ("a: [" + "? " * 100_000, "MZ00"),
    "a long key": ("k" * 200_000 + ": x\n", "MZ00"),
    "many documents": ("--- {}\n" * 100_000, "MZ002 Several documents"),
    "not UTF-8": (b"sources:\n  caf\xe9: {}\n", "MZ002 Not UTF-8"),
    "UTF-16": ("sources: {}\n".encode("utf-16"), "MZ001 Can't read a.yaml"),
    "a null character": (b"sources: {}\n\x00", "MZ002 Control character"),
    "random bytes": (bytes(range(256)) * 1000, "MZ002"),
    "a control character in a name": ('sources:\n  "a\\u0007b": {}\n', "MZ002 Control character in a key"),
    "a name that turns the text around": ('connections:\n  "a\\u202eb": {type: files, path: x}\n', "MZ011"),
    "a very long name": (f"connections:\n  {'n' * 900}: {{type: files, path: x}}\n", "MZ011 Invalid name"),
    "many errors": ("sources:\n" + "".join(f"  s{i}: x\n" for i in range(10_000)), "MZ005"),
    "many unknown keys": (K + "".join(f"    pat{i}: x\n" for i in range(20_000)), 'MZ004 Unknown key "pat0"'),
    "many wrong labels": (K + "    labels:\n" + "".join(f"      l{i}: []\n" for i in range(30_000)), "MZ005"),
    "a wrong item after many": (
        "connections: {k: {type: kafka, brokers: [" + "".join(f"'a:{i}'," for i in range(1, 20_001)) + "x]}}",
        'MZ005 Wrong value for "brokers[20000]"',
    ),
    "errors on one long line": (
        "connections: {" + ", ".join(f"k{i}: {{type: x, password: p{i}}}" for i in range(10_000)) + "}\n",
        "MZ005 Unknown connection type",
    ),
    "a long number": ("a: " + "9" * 1_000_000 + "\n", "MZ002 Unusable value"),
    "a large exponent": ("sources: 1e999999999\n", "MZ002 Unusable value"),
    "a long pattern": (f"connections:\n  k: {{type: kafka, brokers: ['{'a' * 1_000_000}']}}\n", "MZ005"),
    "a long schema": (SHOP.replace("id BIGINT, ", "".join(f"c{i} INT, " for i in range(200_000))), "MZ018"),
    "a deep schema": (SHOP.replace("id BIGINT, ", "id " + "ARRAY<" * 5000 + ", "), "MZ018"),
    "a schema of backquotes": (SHOP.replace("id BIGINT, ", "`" * 50_001 + ", "), "MZ018"),
    "a deep expression": (SHOP + "    where: " + "(" * 5000 + "\n", "MZ019"),
    "a long expression": (SHOP + "    where: " + "id + " * 100_000 + "id > 1\n", "MZ019"),
    "many expressions": (SHOP + "    select: [" + "id + 1, " * 20_000 + "]\n", "MZ019 An expression without"),
    "an expression that backtracks": (SHOP + "    where: \"" + "a" * 9000 + "!\"\n", "MZ019"),
    "a long word that sounds secret": ("a: [" + "pass" * 50_000, "MZ002"),
    "many references": ("connections:\n  k: {type: files, path: '" + "${" * 300_000 + "'}\n", "MZ017"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_a_clear_error(name: str, tmp_path: Path) -> None:
    content, expected = HOSTILE[name]
    start = time.process_time()
    found = errors(tmp_path, {"a.yaml": content})
    assert time.process_time() - start < SECONDS
    assert any(expected in line for line in brief(found)), brief(found)[:5]
    assert [(d.severity, d.code) for d in found[1000:]] in ([], [("notice", "MZ007")])
    assert len(found) == 1001 or name != "many errors"
    for diagnostic in found:
        texts = (diagnostic.summary, diagnostic.detail, diagnostic.hint)
        assert all(len(text) < 2000 for text in texts), "messages stay readable"


def test_memory_stays_bounded(tmp_path: Path) -> None:
    """The peak of one process that loads one after the other."""
    names = ("an alias bomb", "errors on one long line", "many wrong labels", "random bytes")
    folders = [str(write(tmp_path / name, {"a.yaml": HOSTILE[name][0]})) for name in names]
    code = (
        "import re, sys\nfrom mzplan.config import load_configuration\n"
        "from mzplan.model.diagnostics import MzplanError\n"
        "for folder in sys.argv[1:]:\n"
        "    try: load_configuration(folder)\n"
        "    except MzplanError: pass\n"
        "status = open('/proc/self/status').read()\n"
        "print(int(re.search('VmHWM:[^0-9]*([0-9]+)', status)[1]) // 1024)"
    )
    ran = subprocess.run([sys.executable, "-c", code, *folders], capture_output=True, text=True, check=True)
    assert int(ran.stdout) < 200, "MiB"


def test_names_are_compared_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "MAX_COMPARED", 1000)
    connections = "".join(f"  number{i}: {{type: files, path: x}}\n" for i in range(100))
    sources = "".join(f"  s{i}: {{connection: numbr{i}, format: {{type: raw}}}}\n" for i in range(50))
    text = f"connections:\n{connections}sources:\n{sources}"
    found = [one for one in errors(tmp_path, {"a.yaml": text}) if one.code == "MZ012"]
    assert len(found) == 50 and sum("did you mean" in one.hint for one in found) == 10


def test_variables_can_not_make_a_project_too_large(tmp_path: Path) -> None:
    """`${var.x}` a thousand times, and x has a megabyte."""
    path = "${var.x}" * 1000
    text = "connections:\n" + "".join(f"  k{i}: {{type: files, path: '{path}'}}\n" for i in range(100))
    files: dict[str, str | bytes] = {"mzplan.yaml": PROJECT + "variables: {x: {}}\n", "a.yaml": text}
    assert errors(tmp_path, files, variables={"x": "x" * 1_000_000})[0].code == "MZ007"


def test_a_file_of_50_mb_is_not_even_read(tmp_path: Path) -> None:
    write(tmp_path, {"b.yaml": SHOP})
    with (tmp_path / "a.yaml").open("wb") as file:
        file.truncate(50_000_000)
    start = time.process_time()
    found = errors(tmp_path)
    assert time.process_time() - start < 2
    assert brief(found) == ["- MZ007 Can't read a.yaml"]
    assert "48 MiB" in found[0].detail and f"{MAX_FILE_BYTES // 1024**2};" not in found[0].hint


@pytest.mark.parametrize("instead", ["folder", "pipe", "/dev/zero", "nowhere.yaml", "itself"])
@pytest.mark.parametrize("name", ["mzplan.yaml", "a.yaml"])
def test_a_folder_device_or_broken_link_in_place_of_a_file_is_an_error(
    instead: str, name: str, tmp_path: Path
) -> None:
    write(tmp_path, {"b.yaml": SHOP})
    path = tmp_path / name
    path.unlink(missing_ok=True)
    if instead in ("folder", "pipe"):
        (os.mkdir if instead == "folder" else os.mkfifo)(path)
    else:
        path.symlink_to(name if instead == "itself" else instead)
    found = refusal(lambda: load_configuration(tmp_path))
    assert brief([found]) == [f"- MZ001 Can't read {name}"] and found.detail and found.hint


def test_a_file_or_folder_that_may_not_be_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the error, the next plan would delete what the folder declares."""
    write(tmp_path, {"a.yaml": SHOP, "shut/b.yaml": SHOP})

    def guard(real: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(path: str, *arguments: int) -> Any:
            if path.endswith(("a.yaml", "shut")):  # the superuser, who may run this test, may read everything
                raise PermissionError(13, "Permission denied", path)
            return real(path, *arguments)

        return guarded

    for name in ("open", "scandir"):
        monkeypatch.setattr(os, name, guard(getattr(os, name)))
    found = errors(tmp_path)
    assert brief(found) == ["- MZ001 Can't list the folder shut", "- MZ001 Can't read a.yaml"]
    assert "You may not read it." in found[0].detail


def test_odd_file_names_are_printed_safely(tmp_path: Path) -> None:
    names = [b"new\nline.yaml", b"caf\xe9.yaml", b"\x1b[31m.yaml", "日本.yaml".encode()]
    found = errors(tmp_path, {os.fsdecode(name): "sources: [\n" for name in names})
    assert len(found) == 4
    text = render_diagnostics(found, False, str(tmp_path))
    text.encode("utf-8")
    assert "\x1b" not in text and "\\x1b[31m.yaml" in text and "日本.yaml:2:1" in text


def test_a_folder_tree_that_is_too_deep_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, {"a.yaml": SHOP})
    (tmp_path / "/".join("d" * 80)).mkdir(parents=True)
    assert [d.code for d in errors(tmp_path)] == ["MZ007"]
