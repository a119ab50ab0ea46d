"""why and events: from the store alone, bearing with lines and segments that are damaged."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mzplan.config import load_project
from mzplan.features.ui.event_table import event_table
from mzplan.model.address import Address
from mzplan.model.event import Event
from mzplan.model.times import instant_text
from mzplan.operations.events import EventFilter, explain, follow_events, latest_events
from mzplan.render.event_text import render_events
from mzplan.render.html import element
from mzplan.store.event_log import EventLog
from mzplan.store.store import Store, open_store
from tests.contract.test_store import happened
from tests.unit.cli_runner import following
from tests.unit.cli_runs import apply, mzplan, write

ORDERS = Address("source", "orders")
NOW = "2026-11-24T12:00:00Z"


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


def test_why(told: Path) -> None:
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
    # As of each start: what was said then.
    starts = mzplan(told, "events", "source.orders", "--kind", "started", "--json").json()["events"]
    for start, detail in zip(
        starts, ("declared it", "changed connection.k: ", "restarted by hand"), strict=True
    ):
        assert detail in mzplan(told, "why", "source.orders", "--at", start["at"]).out
    assert (
        "PR 41) changed connection.k: brokers[0] a:9092 → b:9092."
        in mzplan(told, "why", "source.orders", "--at", starts[1]["at"]).out
    )
    assert "is recorded" in mzplan(told, "why", "source.orders", "--at", "2020-01-01").out
    assert mzplan(told, "why", "source.other").code == 64


def test_events_are_chosen_as_everywhere(told: Path) -> None:
    def listed(*more: str) -> list[dict[str, Any]]:
        return list(mzplan(told, "events", *more, "--json").json()["events"])

    every = listed()
    assert [one["at"] for one in every] == sorted(one["at"] for one in every)
    assert {one["address"] for one in every} == {"source.orders", "sink.out", "sink.few"}
    assert {one["address"] for one in listed("sink.*")} == {"sink.out", "sink.few"}
    assert listed("--connection", "k") == listed("source.orders")
    assert listed("--condition", "paused") == listed("source.orders")
    assert {one["kind"] for one in listed("--kind", "stopped", "--kind", "started")} == {"stopped", "started"}
    assert listed("--since", "2100-01-01") == []
    assert mzplan(told, "events", "--follow", "--json").code == 64
    assert mzplan(told, "events", "--kind", "odd").code == 64
    lines = mzplan(told, "events", "source.orders").out.splitlines()
    assert "serial 2: connection.k: brokers[0] a:9092 → b:9092" in lines[2]


def test_a_query_that_was_destroyed_is_known_to_both(tmp_path: Path) -> None:
    folder = write(tmp_path)
    apply(folder)
    assert mzplan(folder, "destroy", "--auto-approve").code == 0
    why = mzplan(folder, "why", "source.orders")
    assert "source.orders stopped " in why.out
    assert "because serial 2 (" in why.out and "changed it: it is no longer committed." in why.out
    listed = mzplan(folder, "events", "source.orders", "--json").json()["events"]
    assert [one["kind"] for one in listed if one["kind"] != "generation"] == ["started", "stopped"]
    assert mzplan(folder, "events", "source.orders", "--since", "2100-01-01").code == 0
    assert mzplan(folder, "events", "source.ordrs", "--json").error()["code"] == "MZ070"


def test_what_a_serial_has_done_in_fact_and_a_secret_is_no_hand(told: Path) -> None:
    shown = mzplan(told, "history", "show", "2")
    assert "Events:  1 stopped, 1 started" in shown.out
    found = mzplan(told, "history", "show", "2", "--json").json()["events"]
    assert [(one["kind"], one["address"], one["cause"]["serial"]) for one in found] == [
        ("stopped", "source.orders", 2),
        ("started", "source.orders", 2),
    ]


def test_what_comes_is_followed(told: Path, store: Store) -> None:
    found: list[str] = []
    steps = iter(range(50))

    def wait() -> bool:
        time.sleep(0.02)
        return next(steps, None) is not None and not found

    def follow() -> None:
        for one in follow_events(store, EventFilter(kinds=["failed"]), wait):
            found.append(render_events(one))

    thread = threading.Thread(target=follow)
    thread.start()
    time.sleep(0.1)
    log = EventLog(store.backend, "elsewhere", 1)
    log.add([happened(1)], serial=1)
    log.flush()
    thread.join(10)
    store.backend.delete(next(k for k in store.backend.list("events/") if "elsewhere" in k))
    assert len(found) == 1 and "[MZ050] 1" in found[0]


def logged(told: Path, store: Store, *lines: bytes, name: str = "local.1795000000000-9") -> str:
    key = f"events/{name}.jsonl"
    store.backend.write(key, b"\n".join(lines))
    return key


def line(**more: Any) -> bytes:
    return json.dumps({"at": NOW, "kind": "started", "address": "source.orders"} | more).encode()


def test_a_runner_that_is_gone_runs_nothing(told: Path, store: Store) -> None:
    """What it had started has run until its end; without one, until its successor began at most."""
    at = "2099-01-01T00:{:02}:00Z".format
    runs: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("started", at(0), {}),
        ("runner-ended", at(2), {"address": None}),
        ("runner-began", at(10), {"address": None}),
        ("started", at(11), {}),
        ("runner-began", at(14), {"address": None}),
        ("started", at(15), {}),
        ("runner-ended", at(16), {"address": None}),
        ("runner-began", at(20), {"address": None}),
        ("runner-ended", at(30), {"address": None}),
    )
    lines = [line(kind=kind, at=when, **more) for kind, when, more in runs]
    lines = [one.replace(b'"address": null, ', b"").replace(b', "address": null', b"") for one in lines]
    key = logged(told, store, *lines, name="local.4070908800000-9")
    try:
        for until, said in (
            (11, "restarted 2099-01-01 00:11:00 UTC"),
            (11, "had run for 2 min"),
            (15, "had run for at most 3 min"),
            (40, "stopped 2099-01-01 00:16:00 UTC"),
            (40, "had run for 60 s"),
        ):
            assert said in mzplan(told, "why", "source.orders", "--at", at(until)).out
    finally:
        store.backend.delete(key)


def test_a_serial_that_the_history_no_longer_holds_is_named_all_the_same(told: Path, store: Store) -> None:
    cause = {"cause": "change", "serial": 99, "detail": "it is no longer committed"}
    key = logged(told, store, line(at="2099-01-01T00:00:00Z", cause=cause), name="local.4070908800000-9")
    try:
        ran = mzplan(told, "why", "source.orders")
        assert "because serial 99 changed it: it is no longer committed." in ran.out
        assert mzplan(told, "why", "source.orders", "--json").json()["commit"] is None
    finally:
        store.backend.delete(key)


def test_what_is_no_event_is_left_out_and_nothing_moves_the_cursor(told: Path, store: Store) -> None:
    keys = [
        logged(
            told,
            store,
            b"not json",
            b'{"at":"2026-',
            line(kind="of a newer mzplan"),
            line(address="nothing"),
            b"[" * 5000,
            b"\xff\xfe",
            line(detail="\x1b[2Jmoved\u202e", code="\x1b[1m"),
        ),
        logged(told, store, line(), name="no/name"),
    ]
    try:
        before = len(mzplan(told, "events", "--json").json()["events"])
        ran = mzplan(told, "events", "source.orders")
        assert ran.code == 0 and "\x1b" not in ran.out and "\u202e" not in ran.out
        assert "\\x1b[2Jmoved" in ran.out
        found = mzplan(told, "events", "--json").json()
        assert found["unreadable"] == 6 and len(found["events"]) == before
        assert "6 lines of the event log can't be read" in mzplan(told, "events").err
        assert mzplan(told, "why", "source.orders").code == 0
        table = str(element("div", event_table("x", latest_events(store, ORDERS, 50, 0.0))))
        assert "\x1b" not in table and "<table" in table
    finally:
        for key in keys:
            store.backend.delete(key)


def test_a_segment_that_can_not_be_read_is_left_out_and_named(
    told: Path, store: Store, tmp_path: Path
) -> None:
    outside = tmp_path / "outside.jsonl"
    outside.write_bytes(line(detail="from outside"))
    link = told / "state" / "events" / "local.1795000000002-9.jsonl"
    before = mzplan(told, "events", "--json").json()["events"]
    link.symlink_to(outside)
    try:
        ran = mzplan(told, "events")
        assert ran.code == 0 and "from outside" not in ran.out and "source.orders" in ran.out
        assert f"warning: events/{link.name} of the event log can't be read and is skipped" in ran.err
        found = mzplan(told, "events", "--json")
        assert (found.json()["events"], found.json()["unreadable"]) == (before, 1)
        ran = mzplan(told, "why", "source.orders")
        assert ran.code == 0 and "paused by hand" in ran.out
        assert ran.err.count("warning: ") == 1
        # The runner goes on with its own, and writes through no link.
        log = EventLog(store.backend, "local", 50)
        log.add([happened(1)], serial=1)
        log.flush()
        assert outside.read_bytes() == line(detail="from outside")
    finally:
        link.unlink(missing_ok=True)


@pytest.mark.parametrize(
    "at",
    ["9999-12-31T23:59:59-14:00", "9999-12-31T23:59:59.999999Z", "NaN", "1e999", "99999-01-01T00:00:00Z"],
)
def test_a_time_that_can_not_be_shown_is_no_event(told: Path, store: Store, at: str) -> None:
    cause = {"cause": "change", "serial": 2}
    key = logged(told, store, line(at=at, cause=cause), line(at="0001-01-01T00:00:00+14:00", cause=cause))
    try:
        found = mzplan(told, "events", "source.orders", "--json")
        assert found.code == 0 and found.json()["unreadable"] == 1
        for command in (("events",), ("why", "source.orders"), ("history", "show", "2")):
            assert mzplan(told, *command).code == 0
        assert mzplan(told, "why", "source.orders", "--at", "9999-12-31").code == 0
    finally:
        store.backend.delete(key)


def test_events_of_logs_that_overlap_are_in_the_order_of_their_times(
    told: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query that went to another instance and back: the segment that was begun first has the last event."""

    def moved(minute: int, kind: str) -> bytes:
        return line(at=f"2020-01-01T00:{minute:02}:00Z", kind=kind, address="sink.moved", detail=str(minute))

    first, other, earlier = 1_577_836_800_000, 1_577_836_860_000, 1_577_750_400_000
    keys = [
        logged(told, store, moved(0, "stopped"), name=f"small.{earlier}-1"),
        logged(
            told,
            store,
            moved(1, "started"),
            moved(2, "stopped"),
            moved(9, "started"),
            name=f"small.{first}-1",
        ),
        logged(told, store, moved(3, "started"), moved(8, "stopped"), name=f"big.{other}-1"),
    ]
    read: list[str] = []
    content = store.backend.read
    monkeypatch.setattr(store.backend, "read", lambda key: [read.append(key), content(key)][1])
    try:
        address = Address("sink", "moved")
        newest = latest_events(store, address, 4, 0.0).events
        assert [one.event.detail for one in newest] == ["9", "8", "3", "2"]
        assert keys[0] not in read and len(set(read)) == len(read)
        said = explain(store, address, 1_577_836_800.0 + 600)
        assert said.event is not None and (said.event.event.detail, said.event.instance) == ("9", "small")
        assert said.seconds_before == 300.0
    finally:
        for key in keys:
            store.backend.delete(key)
