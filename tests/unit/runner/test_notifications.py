"""Notifications: failures from the event log, drift and new serials, each at least once, by webhook."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from mzplan.controller.table import Row
from mzplan.model.diagnostics import MzplanError
from mzplan.model.history import CommitRecord
from mzplan.model.plan import DriftItem
from mzplan.model.resources import Topic, Webhook
from mzplan.runner.notifications import DRIFT_SECONDS, Message, Notifier, RefusedMessageError
from mzplan.runner.webhooks import webhook
from mzplan.secrets.policy import Allowance, Policy
from mzplan.secrets.references import Secrets
from tests.event_collector import answer, collecting
from tests.support import eventually
from tests.unit.runner.test_runner import ORDERS, World, make_state

ALL: tuple[Topic, ...] = ("failed", "drift", "applied")


class Told:
    """A notifier whose messages are collected. `refuse` raises instead, as a server would."""

    def __init__(self, world: World, on: tuple[Topic, ...] = ALL):
        self.messages: list[Message] = []
        self.drift: tuple[DriftItem, ...] = ()
        self.now = 0.0
        self.refuse: Callable[[], None] = lambda: None
        self.notifier = Notifier(
            world.runner,
            "shop",
            Webhook(url="${env:HOOK}", on=on),
            self._send,
            lambda state, status, now: self.drift,
            clock=lambda: self.now,
        )

    def _send(self, message: Message) -> None:
        self.refuse()
        self.messages.append(message)

    def new(self) -> list[tuple[str, Any]]:
        """Look once, and return the topic and the subject of each new message."""
        self.notifier.look()
        found = [(one["topic"], one.get("address") or one.get("serial")) for one in self.messages]
        self.messages.clear()
        return found

    def die(self) -> None:
        """Fail each attempt to send as if the process were killed meanwhile."""

        def killed() -> None:
            self.notifier.stop()
            raise ConnectionError("no answer")

        self.refuse = killed


def test_a_failure_is_told_once_until_the_query_has_run_again(world: World) -> None:
    world.apply(make_state(1))
    told = Told(world)
    assert told.new() == []
    world.fail(ORDERS, "the disk is full")
    world.settle()
    told.notifier.look()
    (message,) = told.messages
    assert message["text"] == "shop/local: source.orders failed [MZ064]: the disk is full"
    assert (message["project"], message["instance"], message["serial"]) == ("shop", "local", 1)
    told.messages.clear()
    world.executor.fail_start = lambda one: "the disk is full" if one.address == ORDERS else None
    for _ in range(3):  # further attempts
        world.later(5.0)
    assert told.new() == []
    world.executor.fail_start = lambda one: None
    world.later(60.0)
    for _ in range(4):
        world.later(30.0)
    world.fail(ORDERS, "again")
    world.settle()
    assert told.new() == [("failed", "source.orders")]


def test_what_a_killed_runner_has_not_sent_is_sent_by_the_next_one(world: World) -> None:
    world.apply(make_state(1))
    first = Told(world)
    first.new()
    first.die()
    world.fail(ORDERS, "the disk is full")
    world.settle()
    assert first.new() == []
    second = Told(world)
    assert second.new() == [("failed", "source.orders")]
    assert Told(world).new() == []


def test_a_failure_after_a_restart_of_the_runner_is_told_again(world: World) -> None:
    """The next runner finds the query running, and logs no event that it recovered."""
    world.apply(make_state(1))
    told = Told(world)
    told.new()
    world.fail(ORDERS, "the disk is full")
    world.settle()
    assert told.new() == [("failed", "source.orders")]
    next(row for row in _rows(world) if row.address == ORDERS).is_failing = False
    for _ in range(4):
        world.later(30.0)
    assert told.new() == []
    world.fail(ORDERS, "again")
    world.settle()
    assert told.new() == [("failed", "source.orders")]


def test_a_change_that_was_refused_does_not_hide_a_failure(world: World) -> None:
    world.apply(make_state(1))
    told = Told(world)
    told.new()
    world.runner.controller.events.add("refused", ORDERS, code="MZ019", detail="a change was refused")
    world.settle()
    world.fail(ORDERS, "the disk is full")
    world.settle()
    assert told.new() == [("failed", "source.orders")] * 2


def test_what_was_read_before_an_error_of_the_store_is_sent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.apply(make_state(1))
    told = Told(world)
    told.new()
    for text in ("the disk is full", "still full"):
        world.runner.controller.events.add("failed", ORDERS, code="MZ064", detail=text)
        world.runner.controller.events.add("healed", ORDERS)
    world.settle()
    with monkeypatch.context() as away:
        away.setattr(told.notifier, "_write", Mock(side_effect=OSError("away")))
        with pytest.raises(OSError, match="away"):
            told.notifier.look()
    told.notifier._read_again()
    told.notifier.look()
    assert [one["detail"] for one in told.messages] == ["the disk is full"] * 2 + ["still full"]


def _rows(world: World) -> Iterable[Row]:
    queries = world.runner.controller.queries
    assert queries is not None
    return queries.rows.values()


def test_a_new_webhook_is_not_told_the_past(world: World) -> None:
    world.apply(make_state(1))
    world.fail(ORDERS, "the disk is full")
    world.settle()
    assert Told(world).new() == []


def test_a_new_serial_is_told_with_its_author(world: World) -> None:
    world.apply(make_state(1))
    told = Told(world)
    assert told.new() == []
    record = CommitRecord(
        time="2026-11-28T12:00:00Z",
        command="apply",
        user="ci",
        host="h",
        actor="ann",
        message="move the broker",
        summary={"update": 1},
    )
    world.commit(replace(make_state(2, broker="b:1"), commit=record))
    world.settle()
    told.notifier.look()
    assert [one["text"] for one in told.messages] == [
        "shop/local: follows serial 2 (apply by ann: 1 update) move the broker"
    ]
    told.messages.clear()
    assert told.new() == []
    quiet = Told(world, ("failed",))
    world.commit(make_state(3))
    world.settle()
    assert quiet.new() == []


def test_drift_is_told_once_it_has_lasted(world: World) -> None:
    world.apply(make_state(1))
    told = Told(world)
    item = DriftItem(address="sink.orders_out", kind="stalled-query", detail="no progress")
    failed = replace(item, kind="failed-query")  # the failure was told by its event
    told.drift = (item, failed)
    assert told.new() == []
    told.now = DRIFT_SECONDS - 1
    assert told.new() == []
    told.now = DRIFT_SECONDS
    told.notifier.look()
    assert [one["text"] for one in told.messages] == [
        "shop/local: sink.orders_out has drifted (stalled-query): no progress"
    ]
    told.messages.clear()
    assert told.new() == []
    told.drift = ()
    assert told.new() == []
    told.drift, told.now = (item,), 200.0
    assert told.new() == []
    told.now += DRIFT_SECONDS
    assert told.new() == [("drift", "sink.orders_out")]


def test_a_refused_notification_is_dropped_with_a_warning(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.apply(make_state(1))
    told = Told(world)
    told.new()

    def refuse() -> None:
        raise RefusedMessageError("it answers 404")

    told.refuse = refuse
    world.fail(ORDERS, "the disk is full")
    world.settle()
    with caplog.at_level(logging.WARNING, "mzplan.runner"):
        assert told.new() == []
    assert "[MZ342] the webhook ${env:HOOK} refuses a notification" in caplog.text
    told.refuse = lambda: None
    assert told.new() == []


def test_the_thread_sends_to_the_server_and_tries_again(world: World) -> None:
    world.apply(make_state(1))
    with collecting() as server:
        server.answer = answer(503)
        hook = Webhook(url="${env:HOOK}", on=ALL)
        send = webhook(hook.url, secrets(f"{server.url}/h"), None)
        notifier = Notifier(world.runner, "shop", hook, send, lambda *_: (), interval=0.02).start()
        try:
            eventually("it has a journal", lambda: notifier.has_journal)
            world.fail(ORDERS, "the disk is full")
            world.settle()
            eventually("the server has refused it", lambda: bool(server.events))
            server.answer = answer(200)
            eventually("it is sent again", lambda: len(server.events) > 1)
        finally:
            notifier.close(10.0)
        assert {event["topic"] for event in server.events} == {"failed"}


# --- the webhook


def secrets(url: str) -> Secrets:
    return Secrets("/nowhere", {"HOOK": url})


def test_a_webhook_is_posted_json_and_follows_no_redirect(tmp_path: Path) -> None:
    with collecting() as server:
        url = f"{server.url}/hooks/token-1234"
        send = webhook("${env:HOOK}", secrets(url), None)
        send({"text": "hello"})
        assert (server.paths, server.events) == (["/hooks/token-1234"], [{"text": "hello"}])
        for status, error in ((404, RefusedMessageError), (503, ConnectionError), (302, ConnectionError)):
            server.answer = answer(status, Location=f"{server.url}/elsewhere")
            with pytest.raises(error) as caught:
                send({"text": "x"})
            assert "token-1234" not in str(caught.value)
        assert "/elsewhere" not in server.paths


@pytest.mark.parametrize(
    "value",
    [
        "not-a-url-but-a-secret",
        "http://hooks.example/t",
        "file:///etc/passwd",
        "https://hooks.example/send?key=AIzaSy 12345",
        "https://hooks.example/send?key=AIzaSy12345\nhttps://hooks.example/t",
    ],
)
def test_a_value_that_is_no_https_url_is_not_used(value: str) -> None:
    with pytest.raises(ValueError, match="isn't an https") as caught:
        webhook("${env:HOOK}", secrets(value), None)({"text": "x"})
    assert value not in str(caught.value)


def test_a_policy_decides_which_webhook_a_reference_may_name() -> None:
    with collecting() as server:
        host = server.url.removeprefix("http://")
        allowing = Policy(path="p", allowed=(Allowance(references=("${env:HOOK}",), hosts=(host,)),))
        webhook("${env:HOOK}", secrets(server.url), allowing)({"text": "x"})
        with pytest.raises(MzplanError) as caught:
            webhook("${env:HOOK}", secrets(server.url), Policy(path="p", allowed=()))({"text": "x"})
        assert caught.value.diagnostics[0].code == "MZ106"
        assert len(server.events) == 1
