"""Every command that changes or removes something, beside an apply and killed at any moment, by fixed seeds:
then the next apply converges, and nothing is lost."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mzplan.model.address import Address
from mzplan.store.backends.local import LocalBackend
from mzplan.store.store import Store
from tests.faults.campaigns import SIZE, Before, fresh_copy, goes_on
from tests.faults.forks import Forks
from tests.stored_steps import StoredSource, named
from tests.unit.cli_runs import Ran, apply, mzplan

SETTINGS = """\
version: 1
project: shop
instances: {local: {type: dry}}
variables: {broker: {default: a}, sink: {default: few}}
"""
PIPELINE = """\
connections:
  k: {type: kafka, brokers: ["${var.broker}:9092"]}
sources:
  orders: {connection: k, topic: orders, format: {type: json, schema: "id BIGINT, name STRING"}}
  raw: {type: local, schema: "id BIGINT"}
sinks:
  out: {type: console, from: orders}
  few: {type: console, from: orders, rows: 3}
"""
BESIDE = {
    "rm": ("state", "rm", "sink.few"),
    "rollback": ("state", "rollback", "--auto-approve"),
    "mv": ("state", "mv", "sink.few", "sink.moved"),
    "pause": ("pause", "source.orders", "--wait", "5s", "--auto-approve"),
    "destroy": ("destroy", "--wait", "5s", "--auto-approve"),
    "snapshot": ("snapshot", "source.orders", "--format", "csv", "--out", "rows.csv"),
    "gc": ("state", "gc", "--apply"),
}
SIGNALS = (0, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL)


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as process:
        yield process


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A committed project on a dry instance: a collection of three steps, an append, storage that nothing
    claims, and a pause."""
    folder = tmp_path_factory.mktemp("shop") / "p"
    folder.mkdir()
    (folder / "mzplan.yaml").write_text(SETTINGS)
    (folder / "pipeline.yaml").write_text(PIPELINE)
    (folder / "rows.jsonl").write_text('{"id": 1}\n')
    apply(folder)
    source = StoredSource(folder / "warehouse", id_of(folder, "source.orders"))
    source.record(*(source.run(named(2 * step, 2 * step + 2)) for step in range(3)))
    assert mzplan(folder, "append", "source.raw", "--file", str(folder / "rows.jsonl")).code == 0
    assert mzplan(folder, "pause", "sink.out").code == 0
    for kind in ("collections", "checkpoints"):
        left = folder / "warehouse" / kind / "nobody" / "g1"
        (left / "spark").mkdir(parents=True)
        (left / "spark" / "metadata").write_text("{}")
        for path in (*left.rglob("*"), left, left.parent):
            os.utime(path, (1, 1))
    return folder


def store_of(folder: Path) -> Store:
    return Store(LocalBackend(folder / "state"), "shop")


def id_of(folder: Path, address: str) -> str:
    return store_of(folder).read_state().resources[Address.parse(address)].id


def is_clear(ran: Ran) -> None:
    assert "Traceback" not in ran.err and "MZ079" not in ran.out + ran.err, ran


def stored(folder: Path) -> dict[str, bytes]:
    """What a claimed warehouse holds."""
    found = folder / "warehouse"
    return {str(p.relative_to(found)): p.read_bytes() for p in found.rglob("*") if p.is_file()}


@pytest.mark.parametrize("command", BESIDE)
def test_a_command_beside_an_apply(shop: Path, forks: Forks, tmp_path: Path, command: str) -> None:
    """Both at once, and either of them killed at a random moment."""
    chance = random.Random(f"23 {command}")
    folder = fresh_copy(shop, tmp_path / "p")
    kept = {name: data for name, data in stored(folder).items() if "nobody" not in name}
    whole = mzplan(folder, *BESIDE["snapshot"][:-2]).out
    assert whole.count("\n") == 7
    beside = ["-C", str(folder), *BESIDE[command]]
    if command == "snapshot":
        beside[-1] = str(folder / "rows.csv")
    own = id_of(folder, "source.orders")
    took = 0.0  # seconds, of the first, of which none is killed
    for number in range(5 * SIZE):
        before, was = Before(folder, store_of(folder)), store_of(folder).read_state().serial
        both = [
            ["-C", str(folder), "apply", "--auto-approve", "--wait", "5s", "--var", f"broker=c{number}"],
            beside,
        ]
        chance.shuffle(both)
        killed = SIGNALS[number % len(SIGNALS)]
        began = time.monotonic()
        ended = forks.run(*both, number=killed, delay=chance.uniform(0, took))
        took = took or time.monotonic() - began
        for ran in ended:
            is_clear(ran)
            assert ran.code in (0, 1, 5, 6, 7, 8, 130, -killed), ran
        before.stands()
        now = store_of(folder).read_state().serial
        told = sum(ran.code in (0, 8) and "ommitted serial" in ran.err for ran in ended)
        assert told <= now - was <= told + sum(ran.code not in (0, 8) for ran in ended), ended
        assert store_of(folder).serials()[: now - 1] == list(range(1, now))
        rows = folder / "rows.csv"
        assert not rows.exists() or rows.read_text() == whole
        rows.unlink(missing_ok=True)
        source = store_of(folder).read_state().resources.get(Address.parse("source.orders"))
        if source is None or source.id != own:  # destroyed; the apply that came after it has begun anew
            assert command == "destroy"
            assert mzplan(folder, "state", "rollback", str(was), "--auto-approve").code == 0
        moved = Address.parse("sink.moved") in store_of(folder).read_state().resources
        text = PIPELINE.replace("  few:", "  moved:") if moved else PIPELINE
        (folder / "pipeline.yaml").write_text(text)
        goes_on(folder)
        assert mzplan(folder, "plan", "--detailed-exitcode").code == 0
        beside[-2:] = ("sink.moved", "sink.few") if moved else beside[-2:]
        if command == "mv" and not moved:
            beside[-2:] = ("sink.few", "sink.moved")
        assert {name: data for name, data in stored(folder).items() if name in kept} == kept
        assert mzplan(folder, *BESIDE["snapshot"][:-2]).out == whole
    # A snapshot that is killed while it writes leaves what it had, hidden, in its user's folder.
    assert not [path for path in folder.rglob("*.tmp") if not path.name.startswith(".rows.csv.")]
