"""Sending run events: nothing waits for the server, and a key goes only to its own server."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from mzplan.model.resources import RunEventSettings
from mzplan.runner import telemetry
from mzplan.runner.run_events import watch
from mzplan.runner.run_events.receiver import Receiver, cleartext_warning, receiver_of
from mzplan.runner.run_events.server import LineageServer
from mzplan.runner.run_events.watch import EventSender, RefusedEventError, RunEvent
from mzplan.runner.telemetry import RunEvents, run_events_of
from mzplan.secrets.policy import Allowance, Policy
from mzplan.secrets.references import Secrets
from tests.event_collector import Collector, answer, check_event, collecting
from tests.support import eventually, refusal
from tests.unit.runner.test_run_events import JSON, KAFKA, describing
from tests.unit.runner.test_runner import World, make_state

SOURCE = describing("source.q", "kafka", {"topic": "t", "format": JSON}, KAFKA)


def event(number: int = 0) -> RunEvent:
    return RunEvent(kind="RUNNING", at=float(number), run_id=f"run-{number}", description=SOURCE)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENLINEAGE_URL", "OPENLINEAGE_API_KEY", "OPENLINEAGE_DISABLED", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(watch, "FIRST_WAIT", 0.02)


def server_at(url: str, key: str = "", timeout: float = 5.0) -> LineageServer:
    given = (lambda: key) if key else None
    return LineageServer(
        Receiver(url=f"{url}/", timeout=timeout, key=given), "shop", "/project", "/warehouse"
    )


# --- one event


def test_an_event_is_posted_with_the_key_and_no_login_of_the_machine(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password not-for-you\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    server_at(f"{collector.url}/base", "a-key").send(event())
    server_at(collector.url).send(event())
    assert (collector.paths[0], collector.keys) == ("/base/api/v1/lineage", ["Bearer a-key", None])
    check_event(collector.events[0])


def test_a_redirect_is_not_followed(collector: Collector) -> None:
    with collecting() as other:
        collector.answer = answer(308, Location=f"{other.url}/api/v1/lineage")
        with pytest.raises(ConnectionError, match="doesn't follow"):
            server_at(collector.url, "a-key").send(event())
        assert (len(collector.events), other.events) == (1, [])


def test_only_a_temporary_refusal_is_retried(collector: Collector) -> None:
    """The sender retries at its own pace. It ignores the library's retries and the server's Retry-After."""
    for sent, status in enumerate((400, 401, 422, 429, 503), 1):
        refusal = RefusedEventError if status in (400, 422) else ConnectionError
        collector.answer = answer(status, Retry_After="3600")
        with pytest.raises(refusal, match=str(status)):
            server_at(collector.url).send(event())
        assert len(collector.events) == sent


@pytest.fixture
def left() -> Iterator[threading.Event]:
    """Ends the answers that hang, at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def test_an_endless_answer_is_not_read_and_a_missing_answer_times_out(
    collector: Collector, left: threading.Event
) -> None:
    def endless(request: BaseHTTPRequestHandler) -> None:
        answer(200, Content_Length="1000000000000")(request)
        left.wait(60.0)

    collector.answer = endless
    server_at(collector.url).send(event())
    collector.answer = lambda request: (left.wait(60.0), None)[1]
    with pytest.raises(TimeoutError, match=r"not answered in 0\.2 s"):
        server_at(collector.url, timeout=0.2).send(event())


# --- the queue


def test_queued_events_are_sent_once_the_server_is_back(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mzplan.runner")
    collector.answer = answer(503)
    sending = EventSender(server_at(collector.url).send, "here:1")
    for number in range(3):
        sending.put(event(number))
    eventually("several attempts", lambda: len(collector.events) > 2)
    collector.answer = answer(201)
    eventually("all are sent", lambda: len({one["run"]["runId"] for one in collector.events}) == 3)
    sending.close(5.0)
    messages = [record.getMessage() for record in caplog.records]
    (problem,) = (line for line in messages if "can't be sent" in line)
    assert "[MZ178]" in problem and "here:1: it answers 503" in problem and "queries continue" in problem
    assert messages[-1] == "run events are sent to here:1 again; 0 were dropped"


def test_the_oldest_events_are_dropped_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    begun, may = threading.Event(), threading.Event()
    sent: list[float] = []

    def slow(one: RunEvent) -> None:
        begun.set()
        assert may.wait(60.0)
        sent.append(one.at)

    sending = EventSender(slow, "here:1", max_queued=3)
    sending.put(event(0))
    assert begun.wait(60.0)
    for number in range(1, 100):
        sending.put(event(number))
    assert sending.dropped == 96
    may.set()
    sending.close(60.0)
    assert sent == [0.0, 97.0, 98.0, 99.0]
    assert len([one for one in caplog.records if "dropped" in one.getMessage()]) == 1


def test_a_stopping_runner_does_not_wait_for_a_server_that_is_down(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watch, "FIRST_WAIT", 3600.0)
    sending = EventSender(server_at("http://127.0.0.1:9").send, "here:1")
    sending.put(event())
    began = time.monotonic()
    sending.close(600.0)
    assert time.monotonic() - began < 300.0
    assert "can't be reached: [Errno 111] Connection refused" in caplog.text


def test_a_hanging_server_delays_neither_rounds_nor_the_end(
    collector: Collector, world: World, left: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    collector.answer = lambda request: (left.wait(60.0), None)[1]
    monkeypatch.setattr(telemetry, "LAST_SECONDS", 0.1)
    events = RunEvents(EventSender(server_at(collector.url, timeout=60.0).send, "here:1"), 0.0)
    world.runner.observe_runs = events.observe
    status = world.apply(make_state(1))
    assert {one.condition for one in status.observations.values()} == {"running"}
    eventually("one has come", lambda: bool(collector.events))
    events.close(lost=False)
    assert len(collector.events) == 1  # the others are still queued


def test_a_defect_costs_events_but_no_query(world: World, caplog: pytest.LogCaptureFixture) -> None:
    sender = mock.Mock(put=mock.Mock(side_effect=RuntimeError("a defect")))
    events = RunEvents(sender, 300.0)
    world.runner.observe_runs = events.observe
    status = world.apply(make_state(1))
    assert {one.condition for one in status.observations.values()} == {"running"}
    assert len([one for one in caplog.records if one.exc_info]) == 1
    events.close(lost=False)


# --- the server and the key


KEYLESS = RunEventSettings(url="https://ol.example")
KEYED = replace(KEYLESS, api_key="${env:OL_KEY}")


def found(
    folder: Path, given: RunEventSettings, policy: Policy | None = None, **environment: str
) -> tuple[str, str | None] | None:
    secrets = Secrets(str(folder), {"OL_KEY": "key-of-the-file", "MINE": "not-for-it"})
    receiver = receiver_of(given, str(folder), secrets, policy, environment)
    if receiver is None:
        return None
    return receiver.url, receiver.key() if receiver.key else None


ALLOWING = Policy(
    path="/etc/p.toml", allowed=(Allowance(references=("${env:OL_KEY}",), hosts=("ol.example:443",)),)
)


def test_events_and_keys_go_only_to_their_own_server(tmp_path: Path) -> None:
    assert found(tmp_path, RunEventSettings(namespace="prod", interval=60.0)) is None
    assert found(tmp_path, KEYLESS, OPENLINEAGE_DISABLED="true") is None
    mine = {"OPENLINEAGE_URL": "https://mine.example/x?y=1", "OPENLINEAGE_API_KEY": "mine"}
    assert found(tmp_path, KEYED, None, **mine) == ("https://mine.example/x/", "mine")
    assert found(tmp_path, KEYLESS, OPENLINEAGE_API_KEY="mine") == ("https://ol.example/", None)
    shown = found(tmp_path, KEYED, ALLOWING, OPENLINEAGE_API_KEY="mine")
    assert shown == ("https://ol.example/", "key-of-the-file")


def test_a_checkout_sends_no_key_unless_a_policy_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(tmp_path, KEYED) == ("https://ol.example/", "key-of-the-file")
    monkeypatch.setenv("CI", "true")
    assert refusal(lambda: found(tmp_path, KEYED)).code == "MZ107"
    monkeypatch.delenv("CI")
    (tmp_path / ".git").mkdir()
    refused = refusal(lambda: found(tmp_path, KEYED))
    assert refused.code == "MZ107" and "OPENLINEAGE_URL and OPENLINEAGE_API_KEY" in refused.hint
    # Both fixes work.
    mine = {"OPENLINEAGE_URL": "https://ol.example", "OPENLINEAGE_API_KEY": "k"}
    assert found(tmp_path, KEYED, None, **mine) is not None
    assert found(tmp_path, KEYED, ALLOWING) == ("https://ol.example/", "key-of-the-file")
    # With a policy, the key goes nowhere else.
    elsewhere = [replace(one, url="https://other.example") for one in (KEYED, KEYLESS)]
    for wrong in (*elsewhere, replace(KEYED, api_key="${env:MINE}")):
        assert refusal(partial(found, tmp_path, wrong, ALLOWING)).code == "MZ106"
    assert found(tmp_path, KEYLESS, ALLOWING) == ("https://ol.example/", None)


@pytest.mark.parametrize(
    "url",
    [
        "ol.example:5000",
        "http://",
        "http://a:99999",
        "https://me:pass@ol.example",
        "https://ol.example/?key=pass@",
    ],
)
def test_a_variable_with_an_invalid_url(tmp_path: Path, url: str) -> None:
    refused = refusal(lambda: found(tmp_path, RunEventSettings(), OPENLINEAGE_URL=url))
    assert refused.code == "MZ178" and "pass@" not in str(refused)


def started(folder: Path) -> RunEvents:
    project: Any = SimpleNamespace(directory=str(folder), project="shop")
    return run_events_of(project, RunEventSettings(), Secrets(str(folder)), None, "/w")


def test_the_variable_alone_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collector: Collector, world: World
) -> None:
    monkeypatch.setenv("OPENLINEAGE_URL", collector.url)
    events = started(tmp_path)
    world.runner.observe_runs = events.observe
    world.apply(make_state(1))
    events.close(lost=False)
    found = [(one["eventType"], one["job"]["namespace"]) for one in collector.of("source.orders")]
    assert found == [("START", "shop"), ("COMPLETE", "shop")]


def test_unusable_settings_and_an_unencrypted_key_are_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OPENLINEAGE_URL", "nowhere")
    started(tmp_path)
    assert "MZ178" in caplog.text
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "openlineage", None)
    started(tmp_path)
    assert "pip install 'mzplan[lineage]'" in caplog.text
    codes = {"http://ol.example/": "MZ116", "https://ol.example/": "", "http://[::1]:5000/": ""}
    for url, code in codes.items():
        warning = cleartext_warning(Receiver(url=url, timeout=1.0, key=lambda: "k"))
        assert (warning.code if warning else "") == code
    assert cleartext_warning(Receiver(url="http://ol.example/", timeout=1.0, key=None)) is None


def test_a_missing_key_is_resolved_again_for_the_next_event(collector: Collector, tmp_path: Path) -> None:
    given = RunEventSettings(url=collector.url, api_key="${file:token}")
    receiver = receiver_of(given, str(tmp_path), Secrets(str(tmp_path)), None, {})
    assert receiver is not None
    server = LineageServer(receiver, "shop", str(tmp_path), "/w")
    refusal(lambda: server.send(event()))
    for token in ("first-token", "second-token"):
        (tmp_path / "token").write_text(f"{token}\n")
        server.send(event())
    assert collector.keys == ["Bearer first-token", "Bearer second-token"]
