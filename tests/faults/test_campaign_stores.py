"""Many applies at once on each backend, and signals."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract import stores
from tests.contract.stores import Case, ObjectServer
from tests.faults.campaigns import SIZE, Before, checkout, goes_on
from tests.faults.forks import Forks
from tests.unit.cli_runs import apply

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    server = ObjectServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as process:
        yield process


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    """A backend of the kind that the test names. The project in the test's folder is applied on it."""
    match request.param:
        case "postgres":
            database = request.getfixturevalue("database")("campaign")
            made = stores.postgres(tmp_path, request.getfixturevalue("postgres"), database)
        case "object-store":
            bucket = request.node.name.partition("[")[0].replace("_", "-")
            made = stores.object_store(tmp_path, request.getfixturevalue("server"), bucket)
        case _:
            made = stores.local(tmp_path)
    apply(checkout(tmp_path, made.make.args[1]))  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize("case", ["local", "object-store"], indirect=True)
def test_a_signal_at_any_moment_of_an_apply(case: Case, forks: Forks, tmp_path: Path) -> None:

    def command(broker: str) -> list[str]:
        return ["-C", str(tmp_path), "apply", "--auto-approve", "--json", "--var", f"broker={broker}"]

    began = time.monotonic()
    assert forks.run(command("b"))[0].code == 0
    took = time.monotonic() - began
    moments = random.Random(19)
    for number in range(15 * SIZE):
        before = Before(tmp_path, case.make())
        sent = SIGNALS[number % 3]
        (ran,) = forks.run(command(f"c{number}"), number=sent, delay=moments.uniform(0, took))
        # What a library written in Rust says itself, where the Python that it calls is interrupted.
        err = re.sub(r"\nthread '[^\n]* panicked at .*", "", ran.err, flags=re.S)
        assert "Traceback" not in err and "MZ079" not in ran.out + ran.err, ran
        if ran.code == -sent or (ran.code == 130 and not ran.out):  # before the command line took it
            assert not before.is_committed
            before.stands()
        else:
            assert ran.code in (0, 130), ran
            before.holds(ran)
    goes_on(tmp_path)


@pytest.mark.parametrize("case", ["local", "object-store", "postgres"], indirect=True)
def test_twenty_applies_at_once(case: Case, forks: Forks, tmp_path: Path) -> None:
    """Each of something else: each serial is one of theirs, and what was told to be committed is there."""
    before = Before(tmp_path, case.make())
    options = ("--auto-approve", "--wait", "10s", "--json", "--var")
    ended = forks.run(*(["-C", str(tmp_path), "apply", *options, f"broker=c{n}"] for n in range(20)))
    committed = {}
    for number, ran in enumerate(ended):
        assert "Traceback" not in ran.err and "MZ079" not in ran.out + ran.err, ran
        assert ran.code in (0, 5, 6, 8), ran
        if ran.code in (0, 8):
            committed[ran.json()["serial"]] = f"c{number}:9092"
    before.stands()
    store = case.make()
    last = store.read_state()
    assert sorted(committed) == list(range(2, last.serial + 1))
    for serial, broker in committed.items():
        state = last if serial == last.serial else store.read_serial(serial)
        assert state is not None and broker in str(next(iter(state.resources.values())).body)
    goes_on(tmp_path)
