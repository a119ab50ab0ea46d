"""No write follows a link that a checkout, the state or a warehouse can hold; nothing is removed through one.

Where commands write is traced: for each place, and each folder on the way to it, a link is planted, and the
command runs again.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from mzplan.host.files import UnfitError
from mzplan.host.guarded_folder import refuse_foreign_links, write_whole
from mzplan.model.diagnostics import MzplanError
from mzplan.warehouse.storage import remove_storage
from tests.left_by_hand import leave
from tests.stored_steps import StoredSource, named
from tests.unit.cli_runs import Ran, mzplan
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
_CHANGED = re.compile(
    r"pipeline.*yaml"
)  # links of a project's YAML files: tests/unit/security/test_security_checkout.py


def changed(folder: Path) -> None:
    pipeline = folder / "pipeline.yaml"
    pipeline.write_text(pipeline.read_text().replace("a:9092", "b:9092"))


def declared(folder: Path) -> None:
    pipeline = folder / "pipeline.yaml"
    pipeline.write_text(pipeline.read_text().replace("sinks:\n", f"{MORE}sinks:\n"))


def forgotten(folder: Path) -> None:
    assert mzplan(folder, "state", "rm", "sink.out").code == 0


def nothing(folder: Path) -> None:
    pass


COMMANDS: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "init": (lambda folder: shutil.rmtree(folder / "new", ignore_errors=True), ("-C", "new", "init")),
    "init --from": (nothing, ("-C", "example", "init", "--from", "cdc")),
    "schema": (nothing, ("schema", "--editor")),
    "schema --out": (nothing, ("schema", "--editor", "--out", "made/schemas")),
    "plan": (changed, ("plan", "--out", "p.plan", "--markdown", "comment.md", "--html", "page.html")),
    "drift": (nothing, ("drift", "--markdown", "drift.md")),
    "apply": (changed, ("apply", "--auto-approve")),
    "apply --parallelism": (changed, ("apply", "--auto-approve", "--parallelism", "2")),
    "alter": (nothing, ("alter", "--auto-approve", "ALTER CONNECTION k SET (BROKERS = ('c:9092'))")),
    "rotate": (nothing, ("alter", "--auto-approve", "ALTER CONNECTION way ROTATE KEYS")),
    "pause": (nothing, ("pause", "source.orders", "--auto-approve")),
    "destroy": (nothing, ("destroy", "--auto-approve")),
    "state lock": (nothing, ("state", "lock")),
    "state pull": (nothing, ("state", "pull", "--out", "pulled.json")),
    "state rm": (nothing, ("state", "rm", "sink.out")),
    "append": (nothing, ("append", "source.raw", "--file", "rows.jsonl")),
    "expire": (forgotten, ("expire", "source.orders", "--before", "2")),
    "snapshot": (nothing, ("snapshot", "source.orders", "--out", "rows.csv", "--format", "csv")),
    "import": (
        declared,
        (
            "import",
            "source.also",
            "--checkpoint",
            "left/checkpoint",
            "--table",
            "left/table",
            "--auto-approve",
        ),
    ),
    "gc": (nothing, ("state", "gc", "--apply")),
}


def ids(folder: Path) -> dict[str, str]:
    listed = mzplan(folder, "state", "pull").json()["resources"]
    pairs = listed.items() if isinstance(listed, dict) else ((one["address"], one) for one in listed)
    return {address: one["id"] for address, one in pairs}


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A committed project on a dry instance, with storage in its warehouse that nothing claims any more."""
    folder = tmp_path_factory.mktemp("shop") / "p"
    folder.mkdir()
    (folder / "mzplan.yaml").write_text(SETTINGS)
    (folder / "pipeline.yaml").write_text(PIPELINE % HOST_KEY)
    (folder / "rows.jsonl").write_text('{"id": 1}\n')
    assert mzplan(folder, "apply", "--auto-approve").code == 0
    known = ids(folder)
    source = StoredSource(folder / "warehouse", known["source.orders"])
    source.record(*(source.run(named(2 * step, 2 * step + 2)) for step in range(3)))
    assert mzplan(folder, "append", "source.raw", "--file", str(folder / "rows.jsonl")).code == 0
    for kind in ("collections", "checkpoints"):
        left = folder / "warehouse" / kind / known["source.orders"] / "g7"
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
        folder = (
            Path(f"/proc/self/fd/{handle}").readlink() if handle is not None and handle >= 0 else Path.cwd()
        )
        whole = Path(folder, os.fsdecode(path))
        if whole.is_relative_to(self.below) and not re.search(r"\.[0-9a-f]{12}\.tmp$", whole.name):
            self.found.add(whole.relative_to(self.below))


TRACE = Trace()


def ran_in(folder: Path, command: str) -> Ran:
    _, arguments = COMMANDS[command]
    with mock.patch.dict(os.environ, {"CI": ""}):
        before = Path.cwd()
        os.chdir(folder)
        try:
            return mzplan(Path(), *arguments)
        finally:
            os.chdir(before)


def places(written: set[Path]) -> list[Path]:
    """Each path that was written, and each folder on the way to it, but for the roots: what a user names."""
    roots = {
        Path(name)
        for name in (".", "state", "warehouse", "new", "example", "made", "made/schemas", ".mzplan")
    }
    found = {part for path in written for part in (path, *path.parents)} - roots
    return sorted(path for path in found if not _CHANGED.fullmatch(path.name))


def content(folder: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(folder)): (
            str(path.readlink()) if path.is_symlink() else path.is_dir() or path.read_bytes()
        )
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_writes_through_a_link(command: str, shop: Path, tmp_path: Path) -> None:
    traced = tmp_path / "traced"
    shutil.copytree(shop, traced)
    COMMANDS[command][0](traced)
    with TRACE.of(traced) as written:
        assert ran_in(traced, command).code == 0
    assert written
    tried = places(written)
    assert tried
    for number, place in enumerate(tried):
        folder, outside = tmp_path / str(number), tmp_path / f"outside{number}"
        shutil.copytree(shop, folder)
        COMMANDS[command][0](folder)
        shutil.copytree(traced, outside)
        for path in (*outside.rglob("*"),):
            if path.is_file():
                path.write_text(WORD)
        there = folder / place
        there.parent.mkdir(parents=True, exist_ok=True)
        if there.is_dir():
            # What is really there lies behind the link: only so does the command go as far as before.
            shutil.rmtree(outside / place, ignore_errors=True)
            (outside / place).parent.mkdir(parents=True, exist_ok=True)
            there.rename(outside / place)
        elif there.exists():
            (outside / place).parent.mkdir(parents=True, exist_ok=True)
            there.rename(outside / place)
        there.symlink_to(outside / place)
        before = content(outside)
        ran = ran_in(folder, command)
        assert content(outside) == before, (place, ran)
        said = f"{ran.out}{ran.err}"
        is_told = ran.code != 0 and there.name in said and ("link" in said or "already exists" in said)
        assert is_told or ran.code == 0, (place, ran)  # it was replaced, or removed, itself
        shutil.rmtree(folder)
        shutil.rmtree(outside)


def test_the_trace_sees_what_is_written(shop: Path, tmp_path: Path) -> None:
    """Else the test above would plant nothing."""
    expected = {
        "apply": {"state/lock", "state/.mutex", "state/mzplan.state.json", "state/history/00000001.json"},
        "append": {"warehouse/checkpoints/ID/g1/steps/.lock"},
        "plan": {"p.plan", "comment.md", "page.html"},
        "rotate": {"keys/way-1", "keys/way-1.pub", ".mzplan/alter.lock"},
        "gc": {"warehouse/collections/ID/g7", "warehouse/checkpoints/ID/g7"},
    }
    known = set(ids(shop).values())
    for command, wanted in expected.items():
        folder = tmp_path / command
        shutil.copytree(shop, folder)
        COMMANDS[command][0](folder)
        with TRACE.of(folder) as written:
            ran_in(folder, command)
        named_ = {"/".join("ID" if part in known else part for part in path.parts) for path in written}
        assert wanted <= named_, (command, named_)


@pytest.mark.parametrize(
    "script",
    [
        "{} --html >(cat >{}/got; echo >{}/end) >/dev/null; while ! test -e {}/end; do sleep 0.05; done",
        "{} --html /dev/fd/3 3>{}/got >/dev/null",
        "{} --html /dev/stdout --json >{}/got",
        "{} --html /proc/self/fd/2 2>>{}/got >/dev/null",
    ],
)
def test_what_the_shell_has_opened_is_written(shop: Path, tmp_path: Path, script: str) -> None:
    plan = f"{sys.executable} -m mzplan -C {shop} plan"
    line = script.replace("{}", plan, 1).replace("{}", str(tmp_path))
    subprocess.run(["bash", "-c", line], check=True, timeout=120)
    text = (tmp_path / "got").read_text()
    assert text.count("<html") == 1 and text.count("</html>") == 1
    assert ("format_version" in text) == ("--json" in script)


@pytest.mark.programs
def test_a_file_for_results_is_where_its_user_says(tmp_path: Path) -> None:
    """Not where the repository does."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "there").mkdir()
    for place in ("link", "own"):
        (tmp_path / place).symlink_to("there")
    track(tmp_path, "link")
    write_whole(tmp_path / "own" / "a.md", b"one")
    assert (tmp_path / "there" / "a.md").read_bytes() == b"one"
    for place in ("link/a.md", "own/../link/a.md"):
        with pytest.raises(UnfitError, match="link is a link that may have come with the repository"):
            write_whole(tmp_path / place, b"two")
    assert (tmp_path / "there" / "a.md").read_bytes() == b"one"


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
    ("name", "command"),
    [("state", "apply"), ("warehouse", "append"), ("warehouse", "gc"), ("made", "schema --out")],
)
def test_a_link_on_the_way_is_its_users_own_unless_git_tracks_it(
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


# --- the removal of storage that nothing claims


def storage(warehouse: Path) -> Callable[[str], Path]:
    def made(inner: str) -> Path:
        place = warehouse / inner
        (place / "spark").mkdir(parents=True)
        (place / "spark" / "metadata").write_text("{}")
        (place / "data").write_text("x")
        return place

    return made


@pytest.mark.parametrize(
    "linked",
    [
        "collections",
        "checkpoints",
        "collections/a",
        "checkpoints/a",
        "collections/a/g1",
        "checkpoints/a/g1",
        "checkpoints/a/g1/spark",
        "checkpoints/a/g1/spark/metadata",
        "collections/a/g1/spark",
        "checkpoints/a/g1/steps",
    ],
)
def test_a_removal_follows_no_link(tmp_path: Path, linked: str) -> None:
    warehouse, outside = tmp_path / "warehouse", tmp_path / "outside"
    for kind in ("collections", "checkpoints"):
        storage(warehouse)(f"{kind}/a/g1")
        storage(outside)(f"{kind}/a/g1")
    (outside / "checkpoints/a/g1/steps").mkdir()
    before = content(outside)
    there = warehouse / linked
    if there.is_dir():
        shutil.rmtree(there)
    there.unlink(missing_ok=True)
    there.symlink_to(outside / linked)
    if linked.count("/") < 2:  # the folder of others, too: nobody says which one is meant
        with pytest.raises(MzplanError) as caught:
            remove_storage(str(warehouse), "a", 1)
        assert f"{linked} is a link" in caught.value.diagnostics[0].detail
        there.unlink()
        remove_storage(str(warehouse), "a", 1)
    else:
        remove_storage(str(warehouse), "a", 1)
        assert not there.is_symlink()
    assert not any((warehouse / kind / "a" / "g1").exists() for kind in ("collections", "checkpoints"))
    assert content(outside) == before


def test_a_warehouse_may_be_a_link_of_its_user(tmp_path: Path) -> None:
    place = storage(tmp_path / "disk")("collections/a/g1")
    (tmp_path / "warehouse").symlink_to("disk")
    remove_storage(str(tmp_path / "warehouse"), "a", 1)
    assert not place.exists() and (tmp_path / "warehouse").is_symlink()
