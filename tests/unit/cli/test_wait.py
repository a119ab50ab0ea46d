"""--wait limits the time for all instances together, whatever the store holds."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from mzplan.host.processes import started_at
from mzplan.store.formats import encode_lease
from mzplan.store.leases import new_lease
from tests.unit.cli_runs import apply, edit, mzplan, write

NAMES = ("local", "b", "c")
FOREVER = replace(new_lease("local", "somebody", 99), heartbeat=time.time() + 1e6, ttl=1e6)
LEASES = {
    "emptied by a power failure": None,
    "of a process that lives": replace(FOREVER, pid=1, pid_started=started_at(1)),
    "of another machine": replace(FOREVER, host="elsewhere"),
}
APPLY = ("apply", "--auto-approve", "--no-live")
OTHERS = [
    ("alter", "ALTER CONNECTION k SET BROKER 'b:9092'", "--auto-approve", "--no-live"),
    ("pause", "source.orders"),
    ("destroy", "--auto-approve"),
]
CASES = [(type_, lease, APPLY) for type_ in ("dry", "cluster") for lease in LEASES]
CASES += [("cluster", "of another machine", command) for command in OTHERS]
CASES.append(("cluster", "emptied by a power failure", OTHERS[-1]))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that advances without sleeping."""
    clock, monotonic = SimpleNamespace(slept=0.0), time.monotonic

    def sleep(seconds: float) -> None:
        clock.slept += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + clock.slept)
    return clock


@pytest.fixture
def folder(tmp_path: Path, type_: str) -> Path:
    """A project with a query on each of three instances, two serials, and a change."""
    write(tmp_path)
    instances = "".join(f"  {name}: {{type: {type_}}}\n" for name in NAMES)
    (tmp_path / "mzplan.yaml").write_text(f"version: 1\nproject: shop\ninstances:\n{instances}")
    texts = ("topic: orders", "out: {type: console", "few: {type: console")
    for text, name in zip(texts, NAMES, strict=True):
        edit(tmp_path, text, f"{text}, instance: {name}")
    assert mzplan(tmp_path, "apply", "--auto-approve", "--no-live", "--wait", "0s").code in (0, 8)
    assert mzplan(tmp_path, "pause", "sink.few", "--wait", "0s").code in (0, 8)
    edit(tmp_path, "rows: 3", "rows: 4")
    return tmp_path


@pytest.mark.parametrize(("type_", "lease", "command"), CASES)
def test_no_lease_makes_a_command_wait_longer(
    folder: Path, clock: SimpleNamespace, type_: str, lease: str, command: tuple[str, ...]
) -> None:
    leases = folder / "state/leases"
    leases.mkdir(exist_ok=True)
    for name in NAMES:
        held = LEASES[lease]
        (leases / f"{name}.json").write_bytes(encode_lease(replace(held, instance=name)) if held else b"")
    clock.slept = 0.0
    ran = mzplan(folder, *command, "--wait", "2s", "--json")
    assert ran.code in (0, 8) and clock.slept < 3.0, (clock.slept, ran)
    clock.slept = 0.0
    ran = mzplan(folder, "state", "rollback", "--auto-approve", "--no-live", "--wait", "2s")
    assert ran.code in (0, 8) and clock.slept < 7.0, (clock.slept, ran)
    for name in NAMES:
        (leases / f"{name}.json").unlink()
    if type_ == "dry":
        apply(folder)
