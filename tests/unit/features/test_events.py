"""why and events: from the store alone, despite damaged lines and segments. The log of a runner: bounded,
whatever writes to it, and read as one."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mzplan.config import load_project
from mzplan.features.ui.history_page import event_table
from mzplan.model.address import Address
from mzplan.model.event import Event
from mzplan.model.times import instant_text
from mzplan.operations.events import explain, latest_events
from mzplan.operations.logs import entries
from mzplan.render.html import element
from mzplan.store.event_log import EventLog
from mzplan.store.store import Store, open_store
from tests.unit.cli_runner import following
from tests.unit.cli_runs import apply, mzplan, write

ORDERS = Address("source", "orders")


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose broker has moved; then source.orders was restarted by hand, and paused."""
    folder = write(tmp_path_factory.mktemp("shop"))
    apply(folder)
    apply(write(folder, broker="b"), "-m", "PR 41")
    for command in ("restart", "pause"):
        assert mzplan(folder, command, "source.orders").code == 0
    return folder


@pytest.fixture
def store(told: Path) -> Store:
    return open_store(load_project(str(told)))


def listed(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    return list(mzplan(folder, "events", *arguments, "--json").json()["events"])


# --- why


def test_why_says_that_no_runner_is_alive(tmp_path: Path) -> None:
    write(tmp_path, "cluster")
    with following(tmp_path):
        apply(tmp_path)
        alive = mzplan(tmp_path, "why", "source.orders")
        assert "started " in alive.out and "isn't running" not in alive.out
    # As a runner leaves it that was killed: the last event of the query is its start.
    log = EventLog(open_store(load_project(str(tmp_path))).backend, "local", 9)
    log.add([Event(at=instant_text(int(time.time() * 1000)), kind="started", address=ORDERS)], 1)
    log.flush()
    gone = mzplan(tmp_path, "why", "source.orders")
    assert gone.out.startswith("It isn't running now: no runner of instance local is alive.\n"), gone.out
    assert mzplan(tmp_path, "why", "source.orders", "--json").json()["has_runner"] is False


def test_why_names_the_commit_behind_the_last_start_or_stop(told: Path) -> None:
    ran = mzplan(told, "why", "source.orders")
    assert ran.code == 0 and "source.orders stopped " in ran.out
    assert "UTC, because of serial 4 (" in ran.out and "): paused by hand." in ran.out
    assert "Before that it had run for " in ran.out
    found = mzplan(told, "why", "source.orders", "--json").json()
    assert found["event"]["kind"] == "stopped"
    assert (found["cause"]["cause"], found["cause"]["serial"]) == ("hand", 4)
    assert found["commit"]["command"] == "pause" and found["ran_seconds"] >= 0
    first = mzplan(told, "why", "sink.out", "--json").json()
    assert (first["cause"]["serial"], first["ran_seconds"]) == (1, None)
    # At each earlier start, the reason of that start.
    moved = "PR 41) changed connection.k: brokers[0] a:9092 → b:9092."
    starts = listed(told, "source.orders", "--kind", "started")
    for start, detail in zip(starts, ("declared it", moved, "restarted by hand"), strict=True):
        assert detail in mzplan(told, "why", "source.orders", "--at", start["at"]).out
    assert "is recorded" in mzplan(told, "why", "source.orders", "--at", "2020-01-01").out
    assert mzplan(told, "why", "source.other").code == 64


def test_a_destroyed_query_still_has_events_and_a_reason(tmp_path: Path) -> None:
    folder = write(tmp_path)
    apply(folder)
    assert mzplan(folder, "destroy", "--auto-approve").code == 0
    why = mzplan(folder, "why", "source.orders").out
    assert "source.orders stopped " in why and "because serial 2 (" in why
    assert "changed it: it is no longer committed." in why
    kinds = [one["kind"] for one in listed(folder, "source.orders")]
    assert [kind for kind in kinds if kind != "generation"] == ["started", "stopped"]
    assert mzplan(folder, "events", "source.orders", "--since", "2100-01-01").code == 0
    assert mzplan(folder, "events", "source.ordrs", "--json").error()["code"] == "MZ070"


def test_queries_run_until_their_runner_ends(told: Path, store: Store) -> None:
    """Or, if its end isn't recorded, until the next runner began at most."""
    at = "2099-01-01T00:{:02}:00Z".format
    runs = (
        ("started", 0),
        ("runner-ended", 2),
        ("runner-began", 10),
        ("started", 11),
        ("runner-began", 14),
        ("started", 15),
        ("runner-ended", 16),
        ("runner-began", 20),
        ("runner-ended", 30),
    )
    lines = [
        line(kind=kind, at=at(when), address=kind == "started" and "source.orders") for kind, when in runs
    ]
    with logged(store, *lines, name="local.4070908800000-9"):
        for until, said in (
            (11, "restarted 2099-01-01 00:11:00 UTC"),
            (11, "had run for 2 min"),
            (15, "had run for at most 3 min"),
            (40, "stopped 2099-01-01 00:16:00 UTC"),
            (40, "had run for 60 s"),
        ):
            assert said in mzplan(told, "why", "source.orders", "--at", at(until)).out


# --- events


def test_events_are_selected_by_query_time_and_kind(told: Path) -> None:
    every = listed(told)
    assert [one["at"] for one in every] == sorted(one["at"] for one in every)
    assert {one["address"] for one in every} == {"source.orders", "sink.out", "sink.few"}
    assert {one["address"] for one in listed(told, "sink.*")} == {"sink.out", "sink.few"}
    assert listed(told, "--connection", "k") == listed(told, "source.orders")
    assert listed(told, "--condition", "paused") == listed(told, "source.orders")
    kinds = listed(told, "--kind", "stopped", "--kind", "started")
    assert {one["kind"] for one in kinds} == {"stopped", "started"}
    assert listed(told, "--since", "2100-01-01") == []
    for wrong in (("--follow", "--json"), ("--kind", "odd")):
        assert mzplan(told, "events", *wrong).code == 64
    lines = mzplan(told, "events", "source.orders").out.splitlines()
    assert "serial 2: connection.k: brokers[0] a:9092 → b:9092" in lines[2]


def test_history_counts_the_events_of_a_serial(told: Path) -> None:
    assert "Events:  1 stopped, 1 started" in mzplan(told, "history", "show", "2").out
    found = mzplan(told, "history", "show", "2", "--json").json()["events"]
    assert [(one["kind"], one["address"], one["cause"]["serial"]) for one in found] == [
        ("stopped", "source.orders", 2),
        ("started", "source.orders", 2),
    ]


@contextlib.contextmanager
def logged(store: Store, *lines: bytes, name: str = "local.1795000000000-9") -> Iterator[str]:
    """Add a segment with these lines to the event log for a while."""
    key = f"events/{name}.jsonl"
    store.backend.write(key, b"\n".join(lines))
    try:
        yield key
    finally:
        store.backend.delete(key)


def line(**more: Any) -> bytes:
    fields = {"at": "2026-11-24T12:00:00Z", "kind": "started", "address": "source.orders", **more}
    return json.dumps({name: value for name, value in fields.items() if value is not False}).encode()


def test_lines_that_are_no_events_are_skipped_and_counted(told: Path, store: Store) -> None:
    wrong: tuple[dict[str, Any], ...] = ({"kind": "of a newer mzplan"}, {"address": "nothing"}, {"at": "NaN"})
    odd = (b'{"at":"2026-', b"\xff\xfe", *(line(**fields) for fields in wrong))
    before = len(listed(told))
    with logged(store, *odd, line(detail="\x1b[2Jmoved\u202e", code="\x1b[1m")):
        ran = mzplan(told, "events", "source.orders")
        assert ran.code == 0 and "\x1b" not in ran.out and "\u202e" not in ran.out
        assert "\\x1b[2Jmoved" in ran.out
        found = mzplan(told, "events", "--json").json()
        assert found["unreadable"] == 5 and len(found["events"]) == before + 1
        assert "5 lines of the event log can't be read" in mzplan(told, "events").err
        assert mzplan(told, "why", "source.orders").code == 0
        table = str(element("div", event_table("x", latest_events(store, ORDERS, 50, 0.0))))
        assert "\x1b" not in table and "<table" in table


def test_an_unreadable_segment_is_skipped_and_named(told: Path, tmp_path: Path) -> None:
    before, segment = listed(told), told / "state" / "events" / "local.1795000000002-9.jsonl"
    segment.symlink_to(tmp_path / "outside.jsonl")
    (tmp_path / "outside.jsonl").write_bytes(line(detail="from outside"))
    try:
        for command in (("events",), ("why", "source.orders")):
            ran = mzplan(told, *command)
            assert ran.code == 0 and "paused by hand" in ran.out and "from outside" not in ran.out
            warning = f"warning: events/{segment.name} of the event log can't be read and is skipped"
            assert ran.err.count(warning) == 1
        found = mzplan(told, "events", "--json").json()
        assert (found["events"], found["unreadable"]) == (before, 1)
    finally:
        segment.unlink()


def test_events_of_two_instances_are_in_the_order_of_their_times(store: Store) -> None:
    """A query has moved to another instance and back: the older segment has its last event."""

    def moved(minute: int, kind: str) -> bytes:
        return line(at=f"2020-01-01T00:{minute:02}:00Z", kind=kind, address="sink.moved", detail=str(minute))

    first, other, earlier = 1_577_836_800_000, 1_577_836_860_000, 1_577_750_400_000
    small = moved(1, "started"), moved(2, "stopped"), moved(9, "started")
    address = Address("sink", "moved")
    with (
        logged(store, moved(0, "stopped"), name=f"small.{earlier}-1"),
        logged(store, *small, name=f"small.{first}-1"),
        logged(store, moved(3, "started"), moved(8, "stopped"), name=f"big.{other}-1"),
    ):
        newest = latest_events(store, address, 4, 0.0).events
        assert [one.event.detail for one in newest] == ["9", "8", "3", "2"]
        said = explain(store, address, 1_577_836_800.0 + 600)
        assert said.event is not None and (said.event.event.detail, said.event.instance) == ("9", "small")
        assert said.seconds_before == 300.0


# --- the log of a runner

WRITER = """\
import os, sys, threading, time
from pathlib import Path
from mzplan.runner import logs

logs.LIMIT, logs._CHECK_INTERVAL = 4000, 0.01
log, stopping = Path(sys.argv[1]), threading.Event()
thread = threading.Thread(target=logs.rotate, args=(log, stopping))
thread.start()
logs.configure_logging()
for number in range(200):
    logs.logging.getLogger("mzplan.runner").info("line %d", number)
    os.write(1, b"sink.hot step 1: printed\\n")
    time.sleep(0.001)
stopping.set()
thread.join()
"""


def test_a_log_is_bounded_and_its_parts_are_read_in_order(tmp_path: Path) -> None:
    log = tmp_path / "local.log"
    for _ in range(2):  # the next runner goes on with it
        with log.open("ab") as output:
            subprocess.run([sys.executable, "-c", WRITER, log], stdout=output, stderr=output, check=True)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["local.log", "local.log.1", "local.log.2", "local.log.3"]
    assert all(path.stat().st_size < 40_000 for path in tmp_path.iterdir())
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir() if path != log)
    found = list(entries("local", log))
    numbers = [int(one.message.split()[1]) for one in found if one.message.startswith("line ")]
    assert numbers[-1] == 199 and len(numbers) > 40
    assert numbers == [*range(numbers[0], 200)] or numbers == [*range(numbers[0], 200), *range(200)]
    assert any(one.message == "sink.hot step 1: printed" for one in found)
    before = [path.stat().st_size for path in sorted(tmp_path.iterdir())]
    done = subprocess.run([sys.executable, "-c", WRITER, log], capture_output=True, check=True)
    assert b"line 199" in done.stderr, "the log isn't its standard error, so it isn't rotated"
    assert [path.stat().st_size for path in sorted(tmp_path.iterdir())] == before


def test_a_log_that_is_rotated_meanwhile_is_read_once(tmp_path: Path) -> None:
    log = tmp_path / "local.log"
    log.write_text("2026-01-31T10:00:00.123Z INFO a: one\n")
    os.link(log, tmp_path / "local.log.1")
    assert [one.message for one in entries("local", log)] == ["one"]


def test_why_and_status_say_which_source_of_a_running_query_has_failed(tmp_path: Path) -> None:
    folder = write(tmp_path)
    apply(folder)
    assert "Now it is" not in mzplan(folder, "why", "sink.out").out
    store = open_store(load_project(str(folder)))
    status = store.read_status("local")
    assert status is not None
    failed = replace(
        status.observations[ORDERS],
        condition="failed",
        error="The topic is gone.",
        error_code="MZ052",
        last_batch_at=1769853720.0,
    )
    store.write_status(replace(status, observations={**status.observations, ORDERS: failed}))
    reads = "reads source.orders as of 2026-01-31T10:02:00Z, which has failed since"
    assert mzplan(folder, "why", "sink.out").out.endswith(f"Now it is running:\n  {reads}\n")
    assert f"sink.out: {reads}" in mzplan(folder, "status").out
    assert "Now it is failed:\n  [MZ052] The topic is gone." in mzplan(folder, "why", "source.orders").out
    now = mzplan(folder, "why", "sink.out", "--json").json()["now"]
    assert now["condition"] == "running" and now["stale_inputs"][0]["address"] == "source.orders"
