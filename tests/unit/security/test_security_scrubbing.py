"""What was resolved as a secret is in nothing that leaves the process, whoever wrote the text."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import threading
from collections import deque
from pathlib import Path
from urllib.parse import quote

import pytest

from mzplan.cli.streams import Streams
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.observed import CanaryVerdict, Observation, Status
from mzplan.render.diagnostics import diagnostics_to_json, render_diagnostics
from mzplan.runner.logs import JsonFormatter, TextFormatter, configure_logging
from mzplan.secrets.references import Secrets
from mzplan.secrets.resolved import remember, scrub, shortened
from mzplan.spark.failures import of_messages
from mzplan.spark.process import session
from mzplan.store.backends.local import LocalBackend
from mzplan.store.formats import encode_status
from mzplan.store.proposals import Answer
from mzplan.store.store import Store
from tests.unit.cli_runs import apply, mzplan, write

VALUE = 'Tr0ub4"dor\\&3 ü'
AT = Address("source", "orders")


@pytest.fixture
def known() -> None:
    assert Secrets(".", {"PW": VALUE}).resolve("${env:PW}") == VALUE


def raised() -> ValueError:
    return ValueError(f'connection failed: password "{VALUE}" is wrong; {VALUE!r}')


@pytest.mark.usefixtures("known")
def test_a_value_is_scrubbed_in_every_quoting() -> None:
    url = f"https://u:{quote(VALUE, safe='')}@h"
    for text in (VALUE, repr(VALUE), json.dumps(VALUE), json.dumps(VALUE, ensure_ascii=False), url):
        assert "Tr0ub4" not in scrub(f"x{text}y") and "***" in scrub(f"x{text}y")


def test_values_are_scrubbed_whole_and_other_text_stays_readable() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADAN\nBgkqhkiG9w0B\n-----END KEY-----\n"
    values = (key, "app1", "x", "", " ", "hunter2hunter2", "hunter2hunter2-and-more", "connection1-a")
    for value in (*values, "password123", "application_reader", "tenant-2024-reader"):
        remember(value)
    for text, scrubbed in (
        ("line 2: BgkqhkiG9w0B, -----BEGIN KEY-----", "line 2: ***, -----BEGIN KEY-----"),
        ("app10 with user app1: x", "app10 with user ***: x"),
        ("<hunter2hunter2-and-more> tenant-2024-reader", "<***> ***"),
    ):
        assert scrub(text) == scrubbed
    for text in ("wrong password", "the application is gone", "tenant-2024-writer connection10 xpassword1"):
        assert scrub(text) == text
    assert shortened("abc hunter2hunter2 " + "x" * 20, 8) == "abc ***…"


# --- the exits


@pytest.mark.usefixtures("known")
def test_statuses_answers_diagnostics_and_the_terminal_show_no_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = f"{raised()}"
    one = Observation(
        address=AT, generation=1, digest="", wanted_digest="", wanted_generation=1, condition="failed",
        error=said, warning=said, held=said,
    )  # fmt: skip
    status = Status(
        instance="local", epoch=1, heartbeat=0.0, serial=1, observations={AT: one},
        canaries={AT: CanaryVerdict(serial=1, passed=False, reason=said)},
    )  # fmt: skip
    assert encode_status(status).count(b"***") == 8
    found = Diagnostic(code="MZ050", summary=said, detail=said, hint=said)
    Store(LocalBackend(tmp_path / "state"), "shop").proposals.answer(Answer(id="a", diagnostics=(found,)))
    Streams().err(said)
    Streams().live(said)
    for text in (
        encode_status(status).decode(),
        (tmp_path / "state" / "proposals" / "a.answer.json").read_text(),
        render_diagnostics([found], False),
        json.dumps(diagnostics_to_json([found])),
        capsys.readouterr().err,
        of_messages([("java.lang.RuntimeException", said)]).text,
    ):
        assert "Tr0ub4" not in text and "***" in text


def logged(formatter: logging.Formatter, problem: Exception) -> str:
    """The entry of a log for a problem and its cause."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    log = logging.Logger("mzplan.x")
    log.addHandler(handler)
    try:
        raise RuntimeError("outer") from problem
    except RuntimeError:
        log.exception("%s: %s", AT, problem)
    return stream.getvalue()


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_logs_and_their_stack_traces_hold_no_value(formatter: logging.Formatter) -> None:
    text = logged(formatter, raised())
    assert "Tr0ub4" not in text and "Traceback" in text


def test_a_message_cannot_forge_an_entry_of_the_log() -> None:
    said = "x\x1b[2J\n2026-11-25T17:00:00.000Z INFO a: all is well\r2026\u2028\n\n2026\x85\u202e"
    formatter = TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    first, *others = logged(formatter, ValueError(said)).splitlines()
    assert first.endswith("ERROR mzplan.x: source.orders: x\\x1b[2J") and len(others) > 8
    assert all(line.startswith("    ") and line.isprintable() for line in others)


@pytest.mark.usefixtures("known")
def test_an_uncaught_exception_shows_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, root = io.StringIO(), logging.getLogger()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    configure_logging()

    def fail() -> None:
        raise raised()

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    problem = raised()
    sys.excepthook(type(problem), problem, None)
    assert "Tr0ub4" not in stream.getvalue() and stream.getvalue().count("***") >= 2


@pytest.mark.usefixtures("known")
def test_log_lines_of_java_hold_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    started = threading.Event()
    started.set()
    os.write(writer, f"ERROR MicroBatchExecution: {raised()}\n\xff\n".encode("latin-1", "replace"))
    os.write(writer, f"Caused by: {raised()}\n".encode())
    os.close(writer)
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(session, "_discards", threading.Event())
    session._relay(reader, deque(), started)
    stream.flush()
    last = stream.buffer.getvalue().splitlines()[-1]  # type: ignore[attr-defined]
    assert last.startswith(b"Caused by") and b"Tr0ub4" not in last and b"\xff" in stream.buffer.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "value", ["eyJhbGciOiJIUzI1NiJ9." + "x" * 80, "A-token-of-many-words" * 5, "geheim12345"]
)
def test_the_beginning_of_a_value_is_scrubbed(value: str) -> None:
    remember(value)
    cut = value[:63] if len(value) > 63 else value[:9]
    for text in (f'role "{cut}" does not exist', f"user={cut}", f"{cut}... {cut}", f"({cut}) {value} {cut}"):
        assert cut[:8] not in scrub(text) and "***" in scrub(text), text
    assert scrub(f'role "{cut}" does not exist') == 'role "***" does not exist'


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER CONNECTION k SET BROKERS SECRET 'hunter2'",
        "ALTER CONNECTION k SET BROKERS = secret\n hunter2",
        'ALTER CONNECTION k SET BROKERS SECRET "hunter2"',
        "ALTER CONNECTION k SET BROKERS SECRET 'hunter2",
        "ALTER CONNECTION k AS POSTGRES SET BROKERS SECRET 'hunter2'",
    ],
)
def test_a_literal_after_secret_is_never_echoed(tmp_path: Path, statement: str) -> None:
    folder = write(tmp_path)
    apply(folder)
    for more in ((), ("--json",)):
        ran = mzplan(folder, "alter", statement, *more)
        assert ran.code in (1, 64) and "hunter2" not in ran.out + ran.err, ran
