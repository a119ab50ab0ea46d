"""--wait limits the time for all instances together, whatever the store holds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mzplan.host.processes import started_at
from mzplan.store.formats import encode_lease
from mzplan.store.leases import new_lease
from tests.unit.cli_runs import apply, mzplan, write

NAMES = ("local", "b", "c")
FOREVER = replace(new_lease("local", "somebody", 99), heartbeat=time.time() + 1e6, ttl=1e6)
LEASES = {
    "empty": b"",
    "zeros": b"\0" * 200,
    "of a process that lives": replace(FOREVER, pid=1, pid_started=started_at(1)),
    "of another machine": replace(FOREVER, host="elsewhere"),
}
COMMANDS = {
    "apply": ("apply", "--auto-approve", "--no-live"),
    "alter": ("alter", "ALTER CONNECTION k SET BROKER 'b:9092'", "--auto-approve", "--no-live"),
    "pause": ("pause", "source.orders"),
    "destroy": ("destroy", "--auto-approve"),
}


class Clock:
    """A clock that advances without sleeping."""

    def __init__(self) -> None:
        self.slept = 0.0
        self._monotonic = time.monotonic

    def sleep(self, seconds: float) -> None:
        self.slept += seconds

    def monotonic(self) -> float:
        return self._monotonic() + self.slept


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(time, "sleep", clock.sleep)
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    return clock


def three(folder: Path, type_: str) -> Path:
    """A project with a query on each of three instances, and two serials."""
    write(folder)
    instances = "".join(f"  {name}: {{type: {type_}}}\n" for name in NAMES)
    (folder / "mzplan.yaml").write_text(f"version: 1\nproject: shop\ninstances:\n{instances}")
    text = (folder / "pipeline.yaml").read_text()
    text = text.replace("topic: orders,", "topic: orders, instance: local,")
    text = text.replace("from: orders}", "from: orders, instance: b}").replace(
        "rows: 3", "rows: 3, instance: c"
    )
    (folder / "pipeline.yaml").write_text(text)
    assert mzplan(folder, "apply", "--auto-approve", "--no-live", "--wait", "0s").code in (0, 8)
    assert mzplan(folder, "pause", "sink.few", "--wait", "0s").code in (0, 8)
    (folder / "pipeline.yaml").write_text(text.replace("rows: 3", "rows: 4"))
    return folder


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("lease", LEASES)
@pytest.mark.parametrize("type_", ["dry", "cluster"])
def test_no_lease_makes_a_command_wait_longer(
    tmp_path: Path, clock: Clock, type_: str, lease: str, command: str
) -> None:
    folder = three(tmp_path, type_)
    (folder / "state/leases").mkdir(exist_ok=True)
    for name in NAMES:
        held = LEASES[lease]
        data = held if isinstance(held, bytes) else encode_lease(replace(held, instance=name))
        (folder / "state/leases" / f"{name}.json").write_bytes(data)
    clock.slept = 0.0
    ran = mzplan(folder, *COMMANDS[command], "--wait", "2s", "--json")
    assert ran.code in (0, 8) and clock.slept < 3.0, (clock.slept, ran)
    clock.slept = 0.0
    ran = mzplan(folder, "state", "rollback", "--auto-approve", "--no-live", "--wait", "2s")
    assert ran.code in (0, 8) and clock.slept < 7.0, (clock.slept, ran)
    for name in NAMES:
        (folder / "state/leases" / f"{name}.json").unlink()
    if type_ == "dry":
        apply(folder)
