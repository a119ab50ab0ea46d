"""Files that mean harm, or come from an accident: a clear error, in bounded time and memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mzplan.config import findings, load_configuration, masking
from mzplan.config.project_files import MAX_FILE_BYTES
from mzplan.config.yaml import builder, positions
from mzplan.model.diagnostics import MzplanError
from mzplan.schema import validators
from mzplan.schema.loading import load_schema
from tests.unit.config_files import PROJECT, SHOP, brief, errors, write

SECONDS = 30  # of processor time: far above what is needed, far below forever


def bomb(levels: int, width: int = 10) -> str:
    """An alias bomb: each level repeats the one before."""
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * width)}]" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


def merge_bomb(levels: int) -> str:
    lines = ["m0: &m0 {" + ", ".join(f"k{i}: x" for i in range(1000)) + "}"]
    lines += [f"m{i}: &m{i} {{<<: [{', '.join([f'*m{i - 1}'] * 500)}]}}" for i in range(1, levels)]
    return "\n".join(lines) + "\n"


HOSTILE: dict[str, tuple[str | bytes, str]] = {
    "an alias bomb": (bomb(20), "MZ007 Too many values"),
    "a bomb of merges": (merge_bomb(20), "MZ007 Too many values"),
    "a long list of aliases": ("a: &a [" + "x, " * 1000 + "]\nb: [" + "*a, " * 50_000 + "]\n", "MZ007 Too"),
    "an alias of itself": ("a: &a [*a]\n", "MZ002 Unknown alias *a"),
    "deep brackets": ("a: " + "[" * 100_000 + "\n", "MZ007 Nested too deep"),
    "deep braces": ("a: " + "{a: " * 100_000 + "\n", "MZ007 Nested too deep"),
    "deep indentation": ("\n".join(" " * i + "a:" for i in range(2000)) + "\n", "MZ007 Nested too deep"),
    "deep dashes": ("a:\n" + "- " * 100_000 + "x\n", "MZ007 Nested too deep"),
    "many keys in brackets": ("a: [" + "? " * 100_000, "MZ00"),
    "a long key": ("k" * 200_000 + ": x\n", "MZ00"),
    "many documents": ("--- {}\n" * 100_000, "MZ002 Several documents"),
    "not UTF-8": (b"sources:\n  caf\xe9: {}\n", "MZ002 Not UTF-8"),
    "UTF-16": ("sources: {}\n".encode("utf-16"), "MZ001 Can't read a.yaml"),
    "a null character": (b"sources: {}\n\x00", "MZ002 Control character"),
    "an escape character": (b"sources: {\x1b[31m}\n", "MZ002 Control character"),
    "random bytes": (bytes(range(256)) * 1000, "MZ002"),
    "a control character in a name": ('sources:\n  "a\\u0007b": {}\n', "MZ002 Control character in a key"),
    "a name that turns the text around": ('connections:\n  "a\\u202eb": {type: files, path: x}\n', "MZ011"),
    "a very long name": (f"connections:\n  {'n' * 900}: {{type: files, path: x}}\n", "MZ011 Invalid name"),
    "a million errors": ("sources:\n" + "".join(f"  s{i}: x\n" for i in range(100_000)), "MZ005"),
    "many unknown keys": (
        "connections:\n  k:\n    type: files\n" + "".join(f"    pat{i}: x\n" for i in range(200_000)),
        'MZ004 Unknown key "pat0"',
    ),
    "many wrong labels": (
        "connections:\n  k:\n    type: files\n    path: x\n    labels:\n"
        + "".join(f"      l{i}: []\n" for i in range(300_000)),
        "MZ005",
    ),
    "many wrong items": ("connections: {k: {type: kafka, brokers: [" + "x, " * 300_000 + "]}}\n", "MZ005"),
    "errors on one long line": (
        "connections: {" + ", ".join(f"k{i}: {{type: x, password: p{i}}}" for i in range(50_000)) + "}\n",
        "MZ005 Unknown connection type",
    ),
    "a long number": ("a: " + "9" * 1_000_000 + "\n", "MZ002 Unusable value"),
    "a long float": ("sources: 1." + "9" * 1_000_000 + "\n", "MZ005"),
    "a large exponent": ("sources: 1e999999999\n", "MZ002 Unusable value"),
    "a long pattern": (f"connections:\n  k: {{type: kafka, brokers: ['{'a' * 1_000_000}']}}\n", "MZ005"),
    "a long schema": (
        SHOP.replace("id BIGINT, ", "id BIGINT, " + "".join(f"c{i} STRING, " for i in range(200_000))),
        "MZ018",
    ),
    "a deep schema": (SHOP.replace("id BIGINT, ", "id " + "ARRAY<" * 5000 + ", "), "MZ018"),
    "a schema of backquotes": (SHOP.replace("id BIGINT, ", "`" * 50_001 + ", "), "MZ018"),
    "a deep expression": (SHOP + "    where: " + "(" * 5000 + "\n", "MZ019"),
    "a long expression": (SHOP + "    where: " + "id + " * 100_000 + "id > 1\n", "MZ019"),
    "many expressions": (
        SHOP + "    select: [" + ", ".join(f"id + {i}" for i in range(20_000)) + "]\n",
        "MZ019 An expression without a name",
    ),
    "an expression that backtracks": (SHOP + "    where: \"" + "a" * 9000 + "!\"\n", "MZ019"),
    "a long word that sounds secret": ("a: [" + "pass" * 50_000, "MZ002"),
    "many references": ("connections:\n  k: {type: files, path: '" + "${" * 300_000 + "'}\n", "MZ017"),
    "many malformed references": (
        "connections:\n  k: {type: files, path: x, labels: {"
        + ", ".join(f"l{i}: '${{x}}'" for i in range(100_000))
        + "}}\n",
        "MZ017",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_a_clear_error(name: str, tmp_path: Path) -> None:
    content, expected = HOSTILE[name]
    start = time.process_time()
    found = errors(tmp_path, {"a.yaml": content})
    assert time.process_time() - start < SECONDS
    assert any(expected in line for line in brief(found)), brief(found)[:5]
    assert len(found) <= 1001
    for diagnostic in found:
        texts = (diagnostic.summary, diagnostic.detail, diagnostic.hint)
        assert all(len(text) < 2000 for text in texts), "messages stay readable"


@pytest.mark.parametrize(
    "name", ["an alias bomb", "errors on one long line", "many wrong labels", "random bytes"]
)
def test_memory_stays_bounded(name: str, tmp_path: Path) -> None:
    """Measured in a process of its own."""
    write(tmp_path, {"a.yaml": HOSTILE[name][0]})
    code = (
        "import re, sys\nfrom mzplan.config import load_configuration\n"
        "from mzplan.model.diagnostics import MzplanError\n"
        "try: load_configuration(sys.argv[1])\nexcept MzplanError: pass\n"
        "status = open('/proc/self/status').read()\n"
        "print(int(re.search('VmHWM:[^0-9]*([0-9]+)', status)[1]) // 1024)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert int(ran.stdout) < 600, "MiB"


def counting(function: Callable[..., Iterator[Any]], counts: list[int]) -> Callable[..., Iterator[Any]]:
    """The same generator; what it yields is counted in the last of `counts`."""

    def counted(*arguments: Any) -> Iterator[Any]:
        for one in function(*arguments):
            counts[-1] += 1
            yield one

    return counted


@pytest.mark.parametrize(
    ("text", "bounded"),
    [
        ("connections: {" + "a,\n" * 2000 + "%s}\n", True),  # known while it is read: the rest is not
        ("connections: {k: {type: kafka, brokers: [" + "x,\n" * 2000 + "%s]}}\n", False),
        ("connections: {k: {type: kafka, brokers: [" + "x," * 2000 + "%s]}}\n", False),  # one line
    ],
)
def test_the_cost_of_many_mistakes_is_that_of_the_first(
    text: str, bounded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, located, masked = [0], [0], [0]
    monkeypatch.setattr(builder, "events", counting(builder.events, built))
    monkeypatch.setattr(positions, "walk", counting(positions.walk, located))
    monkeypatch.setattr(masking, "scalars_on", counting(masking.scalars_on, masked))
    for more in ("", "x," * 20_000):
        for counts in (built, located, masked):
            counts.append(0)
        found = errors(tmp_path, {"a.yaml": text % more})
        assert 1000 <= len(found) <= 1001
    assert not bounded or built[-1] == built[-2]
    assert located[-1] == located[-2] < 7000
    assert masked[-1] == masked[-2] < 2000


def test_a_mistake_at_the_end_costs_no_more_than_the_items_before_it() -> None:
    """Each portion that is looked at begins where the last one ended, not at the first item."""
    looked_at = [0]

    class Items(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            for item in super().__iter__():
                looked_at[0] += 1
                yield item

    body = {"type": "kafka", "brokers": Items([*(f"a:{port}" for port in range(1, 20_001)), "x"])}
    schema = load_schema("connection.kafka")
    ((path, _),) = validators.errors_of("connection.kafka", schema, body)
    assert path == ("brokers", 20_000)
    assert looked_at[0] < 5 * 20_000


def test_names_are_compared_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    near = findings.nearest
    monkeypatch.setattr(findings, "MAX_COMPARED", 1000)
    monkeypatch.setattr(
        findings, "nearest", lambda word, names: (compared.append(len(names)), near(word, names))[1]
    )
    text = "connections:\n" + "".join(f"  number{i}: {{type: files, path: x}}\n" for i in range(100))
    text += "sources:\n" + "".join(
        f"  s{i}: {{connection: numbr{i}, format: {{type: raw}}}}\n" for i in range(50)
    )
    found = [one for one in errors(tmp_path, {"a.yaml": text}) if one.code == "MZ012"]
    assert len(found) == 50 and sum(compared) <= 1000
    assert sum("did you mean" in one.hint for one in found) == 10


def test_variables_that_multiply(tmp_path: Path) -> None:
    """`${var.x}` a thousand times, and x has a megabyte."""
    text = "connections:\n" + "".join(
        f"  k{i}: {{type: files, path: '{'${var.x}' * 1000}'}}\n" for i in range(100)
    )
    found = errors(
        tmp_path,
        {"mzplan.yaml": PROJECT + "variables: {x: {}}\n", "a.yaml": text},
        variables={"x": "x" * 1_000_000},
    )
    assert found[0].code == "MZ007"


def test_a_file_of_50_mb_is_not_even_read(tmp_path: Path) -> None:
    write(tmp_path, {"b.yaml": SHOP})
    with (tmp_path / "a.yaml").open("wb") as file:
        file.truncate(50_000_000)
    start = time.process_time()
    found = errors(tmp_path)
    assert time.process_time() - start < 2
    assert brief(found) == ["- MZ007 Can't read a.yaml"]
    assert "48 MiB" in found[0].detail and f"{MAX_FILE_BYTES // 1024**2};" not in found[0].hint


def _folder(path: Path) -> None:
    path.mkdir()


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _nothing(path: Path) -> None:
    path.symlink_to("nowhere.yaml")


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _socket(path: Path) -> None:
    import socket

    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path must be short
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.parametrize("make", [_folder, _pipe, _device, _nothing, _loop, _socket])
@pytest.mark.parametrize("name", ["mzplan.yaml", "a.yaml"])
def test_what_is_no_file(make: Callable[[Path], None], name: str, tmp_path: Path) -> None:
    write(tmp_path, {"b.yaml": SHOP})
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)
    with pytest.raises(MzplanError) as caught:
        load_configuration(tmp_path)
    assert brief(list(caught.value.diagnostics)) == [f"- MZ001 Can't read {name}"]
    assert caught.value.diagnostics[0].detail and caught.value.diagnostics[0].hint


def test_what_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in a folder that may not be listed is not known: the next plan would delete it."""
    write(tmp_path, {"a.yaml": SHOP, "shut/b.yaml": SHOP})
    real_open, real_scandir = os.open, os.scandir

    def guarded_open(path: str, *arguments: int) -> int:
        if path.endswith("a.yaml"):  # the superuser, who may run this test, may read everything
            raise PermissionError(13, "Permission denied", path)
        return real_open(path, *arguments)

    def guarded_scandir(path: str) -> object:
        if path.endswith("shut"):
            raise PermissionError(13, "Permission denied", path)
        return real_scandir(path)

    monkeypatch.setattr(os, "open", guarded_open)
    monkeypatch.setattr(os, "scandir", guarded_scandir)
    found = errors(tmp_path)
    assert brief(found) == ["- MZ001 Can't list the folder shut", "- MZ001 Can't read a.yaml"]
    assert "You may not read it." in found[0].detail


def test_a_project_folder_that_is_none(tmp_path: Path) -> None:
    for folder in (tmp_path / "nowhere", write(tmp_path, {}) / "mzplan.yaml", Path("a\0b")):
        with pytest.raises(MzplanError) as caught:
            load_configuration(folder)
        assert caught.value.diagnostics[0].code == "MZ010"


def test_file_names_of_all_kinds(tmp_path: Path) -> None:
    write(tmp_path, {})
    broken = b"sources: [\n"
    names = [b"new\nline.yaml", b"caf\xe9.yaml", b"\x1b[31m.yaml", "日本.yaml".encode()]
    for name in names:
        (tmp_path / os.fsdecode(name)).write_bytes(broken)
    found = errors(tmp_path)
    assert len(found) == 4
    from mzplan.render.diagnostics import render_diagnostics

    text = render_diagnostics(found, False, str(tmp_path))
    text.encode("utf-8")
    assert "\x1b" not in text and "\\x1b[31m.yaml" in text and "日本.yaml:2:1" in text


def test_a_folder_tree_without_end(tmp_path: Path) -> None:
    write(tmp_path, {"a.yaml": SHOP})
    deep = tmp_path
    for _ in range(80):
        deep = deep / "d"
        deep.mkdir()
    assert [d.code for d in errors(tmp_path)] == ["MZ007"]


@pytest.mark.parametrize("after", [None, b"", b"[", b"sinks: {}\n", b"\n\n\n", b"\xff"])
def test_a_file_that_changes_between_two_looks(
    after: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Places are looked up in a second reading: the file may be another by then, or gone."""
    from mzplan.config import locations

    read_text = locations.read_text

    def read(file: Any, findings: Any) -> str | None:
        (tmp_path / "a.yaml").unlink()
        if after is not None:
            (tmp_path / "a.yaml").write_bytes(after)
        return read_text(file, findings)

    write(tmp_path, {"a.yaml": SHOP.replace("mode: upsert", "mode: x")})
    monkeypatch.setattr(locations, "read_text", read)
    with pytest.raises(MzplanError) as caught:
        load_configuration(tmp_path)
    assert [d.code for d in caught.value.diagnostics] == ["MZ005"]
