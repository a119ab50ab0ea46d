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
from mzplan.model.observed import Observation, Status, Verdict
from mzplan.render.diagnostics import diagnostics_to_json, render_diagnostics
from mzplan.runner.logs import JsonFormatter, TextFormatter, configure_logging
from mzplan.secrets.references import Secrets
from mzplan.secrets.resolved import remember, scrub, shortened
from mzplan.spark import session
from mzplan.spark.failures import of_messages
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


def test_a_key_is_scrubbed_line_by_line() -> None:
    remember("-----BEGIN KEY-----\nMIIEvQIBADAN\nBgkqhkiG9w0B\n-----END KEY-----\n")
    assert scrub("line 2: BgkqhkiG9w0B, -----BEGIN KEY-----") == "line 2: ***, -----BEGIN KEY-----"


def test_short_values_leave_text_readable() -> None:
    for value in ("app1", "x", "", " "):
        remember(value)
    assert scrub("app10 with user app1: x") == "app10 with user ***: x"


def test_values_are_scrubbed_whole() -> None:
    for value in ("hunter2hunter2", "hunter2hunter2-and-more"):
        remember(value)
    assert scrub("<hunter2hunter2-and-more>") == "<***>"
    assert shortened("abc hunter2hunter2 " + "x" * 20, 8) == "abc ***…"


# --- the exits


@pytest.mark.usefixtures("known")
def test_a_status_holds_no_value() -> None:
    one = Observation(
        address=AT, generation=1, digest="", wanted_digest="", wanted_generation=1, condition="failed",
        error=f"{raised()}", warning=f"{raised()}", held=f"{raised()}",
    )  # fmt: skip
    status = Status(
        instance="local", epoch=1, heartbeat=0.0, serial=1, observations={AT: one},
        canaries={AT: Verdict(serial=1, passed=False, reason=f"{raised()}")},
    )  # fmt: skip
    written = encode_status(status).decode()
    assert "Tr0ub4" not in written and written.count("***") == 8


@pytest.mark.usefixtures("known")
def test_answers_diagnostics_and_the_terminal_show_no_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Diagnostic(code="MZ050", summary=f"{raised()}", detail=f"{raised()}", hint=f"{raised()}")
    Store(LocalBackend(tmp_path / "state"), "shop").proposals.answer(Answer(id="a", diagnostics=(found,)))
    Streams().err(f"{raised()}")
    Streams().live(f"{raised()}")
    for text in (
        (tmp_path / "state" / "proposals" / "a.answer.json").read_text(),
        render_diagnostics([found], False),
        json.dumps(diagnostics_to_json([found])),
        capsys.readouterr().err,
        of_messages([("java.lang.RuntimeException", f"{raised()}")]).text,
    ):
        assert "Tr0ub4" not in text and "***" in text


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_logs_and_their_stack_traces_hold_no_value(formatter: logging.Formatter) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    log = logging.Logger("psycopg")
    log.addHandler(handler)
    try:
        raise RuntimeError("outer") from raised()
    except RuntimeError as problem:
        log.exception("%s: %s", AT, problem.__cause__)
    assert "Tr0ub4" not in stream.getvalue() and "Traceback" in stream.getvalue()


def test_a_message_cannot_forge_an_entry_of_the_log() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    log = logging.Logger("mzplan.x")
    log.addHandler(handler)
    said = "x\x1b[2J\n2026-11-25T17:00:00.000Z INFO a: all is well\r2026\u2028\n\n2026\x85\u202e"
    try:
        raise ValueError(said)
    except ValueError as problem:
        log.exception("%s", problem)
    first, *others = stream.getvalue().splitlines()
    assert first.endswith("ERROR mzplan.x: x\\x1b[2J") and len(others) > 8
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


def test_words_that_only_begin_alike_stay_readable() -> None:
    for value in ("password123", "application_reader", "tenant-2024-reader", "connection1-a"):
        remember(value)
    for text in (
        "wrong password",
        "the application is gone",
        "tenant-2024-writer",
        "connection10",
        "xpassword1",
    ):
        assert scrub(text) == text
    assert scrub("tenant-2024-reader") == "***"


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER CONNECTION k SET BROKERS SECRET 'hunter2'",
        "ALTER CONNECTION k SET (SASL PASSWORD = SECRET 'hunter2')",
        "ALTER CONNECTION k SET BROKERS SECRET hunter2",
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
