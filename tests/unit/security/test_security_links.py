"""No write follows a link that a checkout, the state or a warehouse can hold; nothing is removed through one.

Where commands write is traced: for each new place, and each folder on the way to it, a link is planted, and
the command runs again.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from mzplan.host.guarded_folder import refuse_foreign_links
from tests.left_by_hand import leave
from tests.stored_steps import StoredSource, named
from tests.unit.cli_runs import Ran, edit, mzplan
from tests.unit.features.alter.test_cli_keys import HOST_KEY

SETTINGS = "version: 1\nproject: shop\ninstances: {local: {type: dry}}\nretain_dropped: 1s\n"
PIPELINE = """\
connections:
  k: {type: kafka, brokers: ["a:9092"]}
  way: {type: ssh-tunnel, host: h, user: t, host_keys: [%s]}
  pg: {type: postgres, host: db, database: s, user: u, ssh_tunnel: way}
sources:
  orders: {connection: k, topic: orders, format: {type: json, schema: "id BIGINT, name STRING"}}
  raw: {type: local, schema: "id BIGINT"}
sinks:
  out: {type: console, from: orders}
"""
MORE = '  also: {connection: k, topic: orders, format: {type: json, schema: "id BIGINT, amount DOUBLE"}}\n'
WORD = "precious"
_CHANGED = re.compile(r"pipeline.*yaml")  # test_security_checkout.py tests links of YAML files


changed = partial(edit, before="a:9092", after="b:9092")
declared = partial(edit, before="sinks:\n", after=f"{MORE}sinks:\n")


def forgotten(folder: Path) -> None:
    assert mzplan(folder, "state", "rm", "sink.out").code == 0


def nothing(folder: Path) -> None:
    pass


LEFT = ("--checkpoint", "left/checkpoint", "--table", "left/table")
COMMANDS: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "init": (nothing, ("-C", "example", "init", "--from", "cdc")),
    "schema": (nothing, ("schema", "--editor", "--out", "made/schemas")),
    "plan": (changed, ("plan", "--out", "p.plan", "--markdown", "comment.md", "--html", "page.html")),
    "apply": (changed, ("apply", "--auto-approve")),
    "rotate": (nothing, ("alter", "--auto-approve", "ALTER CONNECTION way ROTATE KEYS")),
    "destroy": (nothing, ("destroy", "--auto-approve")),
    "state lock": (nothing, ("state", "lock")),
    "state pull": (nothing, ("state", "pull", "--out", "pulled.json")),
    "append": (nothing, ("append", "source.raw", "--file", "rows.jsonl")),
    "expire": (forgotten, ("expire", "source.orders", "--before", "2")),
    "snapshot": (nothing, ("snapshot", "source.orders", "--out", "rows.csv", "--format", "csv")),
    "import": (declared, ("import", "source.also", *LEFT, "--auto-approve")),
    "gc": (nothing, ("state", "gc", "--apply")),
}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A committed project on a dry instance, with storage in its warehouse that nothing claims any more."""
    folder = tmp_path_factory.mktemp("shop") / "p"
    folder.mkdir()
    (folder / "mzplan.yaml").write_text(SETTINGS)
    (folder / "pipeline.yaml").write_text(PIPELINE % HOST_KEY)
    (folder / "rows.jsonl").write_text('{"id": 1}\n')
    assert mzplan(folder, "apply", "--auto-approve").code == 0
    id_ = mzplan(folder, "state", "show", "source.orders").json()["id"]
    source = StoredSource(folder / "warehouse", id_)
    source.record(*(source.run(named(2 * step, 2 * step + 2)) for step in range(3)))
    assert mzplan(folder, "append", "source.raw", "--file", str(folder / "rows.jsonl")).code == 0
    for kind in ("collections", "checkpoints"):
        left = folder / "warehouse" / kind / id_ / "g7"
        (left / "spark").mkdir(parents=True)
        (left / "spark" / "metadata").write_text("{}")
        (left / "data").write_text("x")
        for path in (*left.rglob("*"), left):
            os.utime(path, (1, 1))
    leave(folder / "left")
    return folder


class Trace:
    """The paths below a folder that this process opens to write, makes, renames or removes."""

    def __init__(self) -> None:
        self.below: Path | None = None
        self.found: set[Path] = set()
        self._hears = False
        self._folder = threading.local()
        opened = os.open

        def watched(path: Any, flags: int, *more: Any, dir_fd: int | None = None, **named: Any) -> int:
            self._folder.handle = dir_fd
            try:
                return opened(path, flags, *more, dir_fd=dir_fd, **named)
            finally:
                self._folder.handle = None

        self.patch = mock.patch.object(os, "open", watched)

    @contextmanager
    def of(self, folder: Path) -> Iterator[set[Path]]:
        if not self._hears:  # only now: no such hook can be removed, and it is asked of every event
            sys.addaudithook(self._heard)
            self._hears = True
        self.below, self.found = folder, set()
        try:
            with self.patch:
                yield self.found
        finally:
            self.below = None

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.below is None:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self._add(path, getattr(self._folder, "handle", None))
        elif event in ("os.rename", "os.link"):
            self._add(arguments[1], arguments[3])
        elif event in ("os.remove", "os.rmdir", "os.mkdir"):
            self._add(arguments[0], arguments[-1])

    def _add(self, path: Any, handle: int | None) -> None:
        if isinstance(path, int) or self.below is None:
            return
        relative = handle is not None and handle >= 0
        folder = Path(f"/proc/self/fd/{handle}").readlink() if relative else Path.cwd()
        whole = Path(folder, os.fsdecode(path))
        if whole.is_relative_to(self.below) and not re.search(r"\.[0-9a-f]{12}\.tmp$", whole.name):
            self.found.add(whole.relative_to(self.below))


TRACE = Trace()


def ran_in(folder: Path, command: str) -> Ran:
    _, arguments = COMMANDS[command]
    with mock.patch.dict(os.environ, {"CI": ""}), chdir(folder):
        return mzplan(Path(), *arguments)


def places(written: set[Path]) -> list[Path]:
    """Each path that was written, and each folder on the way to it, but for the roots: what a user names."""
    roots = {Path(name) for name in (".", "state", "warehouse", "example", "made", "made/schemas", ".mzplan")}
    found = {part for path in written for part in (path, *path.parents)} - roots
    return sorted(path for path in found if not _CHANGED.fullmatch(path.name))


def form(place: Path) -> str:
    """The place without what differs between two runs: ids, and the numbers in names."""
    return "/".join(re.sub(r"[0-9a-f]{16,}|\d+", "0", part) for part in place.parts)


def content(folder: Path) -> dict[str, Any]:
    def of(path: Path) -> str | bytes | bool:
        return str(path.readlink()) if path.is_symlink() else path.is_dir() or path.read_bytes()

    return {str(path.relative_to(folder)): of(path) for path in sorted(folder.rglob("*"))}


# Some of the places that the trace must find, or the test plants no links.
EXPECTED = {
    "apply": {"state/lock", "state/.mutex", "state/mzplan.state.json", "state/history/0.json"},
    "append": {"warehouse/checkpoints/0/g0/steps/.lock"},
    "plan": {"p.plan", "comment.md", "page.html"},
    "rotate": {"keys/way-0", "keys/way-0.pub", ".mzplan/alter.lock"},
    "gc": {"warehouse/collections/0/g0", "warehouse/checkpoints/0/g0"},
}


@pytest.fixture(scope="module")
def tried() -> set[str]:
    """The forms of the places at which an earlier command has met a link."""
    return set()


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_writes_through_a_link(command: str, shop: Path, tmp_path: Path, tried: set[str]) -> None:
    traced = tmp_path / "traced"
    shutil.copytree(shop, traced)
    COMMANDS[command][0](traced)
    with TRACE.of(traced) as written:
        assert ran_in(traced, command).code == 0
    assert EXPECTED.get(command, set()) <= {form(path) for path in written}
    by_form = {form(place): place for place in places(written)}
    new = [by_form[one] for one in by_form if one not in tried]
    tried.update(by_form)
    for number, place in enumerate(new):
        folder, outside = tmp_path / str(number), tmp_path / f"outside{number}"
        shutil.copytree(shop, folder)
        COMMANDS[command][0](folder)
        shutil.copytree(traced, outside)
        for path in outside.rglob("*"):
            if path.is_file():
                path.write_text(WORD)
        there = folder / place
        there.parent.mkdir(parents=True, exist_ok=True)
        if there.exists():
            # Move the original behind the link, so that the command gets as far as before.
            if there.is_dir():
                shutil.rmtree(outside / place, ignore_errors=True)
            (outside / place).parent.mkdir(parents=True, exist_ok=True)
            there.rename(outside / place)
        there.symlink_to(outside / place)
        before = content(outside)
        ran = ran_in(folder, command)
        assert content(outside) == before, (place, ran)
        said = f"{ran.out}{ran.err}"
        refused = ran.code != 0 and there.name in said and ("link" in said or "already exists" in said)
        assert refused or ran.code == 0, (place, ran)  # 0: the command replaced or removed the link itself
        shutil.rmtree(folder)
        shutil.rmtree(outside)


@pytest.mark.parametrize(
    "script",
    [
        "{} --html >(cat >{}/got; echo >{}/end) >/dev/null; while ! test -e {}/end; do sleep 0.05; done",
        "{} --html /dev/stdout --json >{}/got",
    ],
)
def test_a_file_that_the_shell_has_opened_is_written(shop: Path, tmp_path: Path, script: str) -> None:
    plan = f"{sys.executable} -m mzplan -C {shop} plan"
    line = script.replace("{}", plan, 1).replace("{}", str(tmp_path))
    subprocess.run(["bash", "-c", line], check=True, timeout=120)
    text = (tmp_path / "got").read_text()
    assert text.count("<html") == 1 and text.count("</html>") == 1
    assert ("format_version" in text) == ("--json" in script)


@pytest.fixture
def checkout(shop: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    shutil.copytree(shop, folder)
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (tmp_path / "outside").mkdir()
    return folder


def track(folder: Path, *names: str) -> None:
    subprocess.run(["git", "-C", str(folder), "add", "-f", "--", *names], check=True)


@pytest.mark.programs
@pytest.mark.parametrize(
    ("name", "command"), [("state", "apply"), ("warehouse", "append"), ("made", "schema")]
)
def test_a_link_in_a_path_is_followed_unless_git_tracks_it(
    checkout: Path, tmp_path: Path, name: str, command: str
) -> None:
    outside = tmp_path / "outside" / name
    if (checkout / name).exists():
        (checkout / name).rename(outside)
    else:
        outside.mkdir()
    (checkout / name).symlink_to(outside)
    track(checkout, name)
    before = content(outside)
    ran = ran_in(checkout, command)
    assert ran.code != 0 and "link" in ran.err and name in ran.err, ran
    assert content(outside) == before
    subprocess.run(["git", "-C", str(checkout), "rm", "-q", "--cached", name], check=True)
    refuse_foreign_links.cache_clear()
    ran = ran_in(checkout, command)
    assert ran.code == 0 and content(outside) != before, ran
