"""The pages of `mzplan ui`: access, content, samples of the past hour."""

from __future__ import annotations

import contextlib
import html
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mzplan.features.ui.access import COOKIE, HEADERS, Access
from mzplan.features.ui.follower import Follower
from mzplan.features.ui.frame import error_page
from mzplan.features.ui.overview import OverviewReader
from mzplan.features.ui.resource_page import plot, resource_page
from mzplan.model.observed import Counters
from mzplan.operations.project import open_project
from mzplan.render.html import joined
from tests.browser.shown_project import HOSTILE, ShownProject, troubled, troubled_project
from tests.support import eventually
from tests.unit.cli_runs import failed, mzplan, write
from tests.unit.small_projects import at

ROOT = Path(__file__).parents[4]
TOKEN = "0123456789abcdef-token"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
# `mzplan`, with shorter waits for a request's head and for a change.
PROGRAM = """
from mzplan.cli.main import main
from mzplan.features.ui import follower, server
server.HEADER_SECONDS, follower.MAX_WAIT_SECONDS = 2.0, 1.0
main()
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> ShownProject:
    return troubled_project(tmp_path_factory.mktemp("ui") / "shop")


@contextlib.contextmanager
def serving(folder: Path, *options: str, token: str = TOKEN) -> Iterator[dict[str, Any]]:
    """Run `mzplan ui` on a free port. Yields the document that it prints."""
    command = [sys.executable, "-c", PROGRAM, "-C", str(folder), "ui", "--port", "0", "--json", *options]
    environment = {name: value for name, value in os.environ.items() if name != "MZPLAN_UI_TOKEN"}
    environment |= {"MZPLAN_UI_TOKEN": token} if token else {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        yield json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        process.terminate()
        assert process.wait(30) == 0


@pytest.fixture(scope="module")
def port(shown: ShownProject) -> Iterator[int]:
    """The port of a server that demands a token, and that a proxy serves at https://plan.example."""
    with serving(shown.folder, "--url", "https://plan.example") as found:
        assert (found["url"], found["token"]) == ("https://plan.example", True)
        yield found["port"]


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, Any, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def page_of(port: int, path: str) -> str:
    """Return the HTML of a page."""
    status, _, body = ask(port, path, **BEARER)
    assert status == 200, (path, status)
    return body.decode()


def text_of(port: int, path: str) -> str:
    return html.unescape(re.sub(r"<[^>]+>", " ", page_of(port, path)))


# --- access


def test_the_pages_can_only_be_read(port: int) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        for path in ("/", "/session", "/nowhere"):
            assert ask(port, path, method, **BEARER)[0] == 405, (method, path)
    assert ask(port, "/", "HEAD", **BEARER)[2] == b""


def test_without_the_token_or_its_cookie_nothing_is_shown(port: int) -> None:
    status, answer, _ = ask(port, "/session", **BEARER)
    cookie, *attributes = answer["Set-Cookie"].split("; ")
    assert status == 204 and TOKEN not in cookie
    assert {"HttpOnly", "SameSite=strict", "Secure"} <= set(attributes)
    for headers in (
        {},
        {"Accept": "text/html"},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Cookie": cookie[:-1] + ("0" if cookie[-1] != "0" else "1")},
        {"Cookie": re.sub(r"=(\d+)", lambda until: f"={int(until[1]) + 1}", cookie)},
        {"Cookie": f"{COOKIE}=\u00e9.x".encode().decode("latin-1")},
    ):
        assert ask(port, "/live", **headers)[0] == 401, headers
    status, answer, _ = ask(port, "/queries", Accept="text/html,*/*")
    assert (status, answer["Location"]) == (303, "/login")
    assert ask(port, "/", Cookie=cookie)[0] == 200
    status, answer, _ = ask(port, "/session", Cookie=cookie)
    assert status == 401 and answer["Set-Cookie"] is None, "a cookie does not prolong a session"
    assert ask(port, "/session", Cookie=cookie, **BEARER)[0] == 204
    for path in ("/static/x", "/login/x", "/session/x", "/loginx"):
        status, _, text = ask(port, path)
        assert status in (401, 404) and b"shop" not in text and b"serial" not in text, text


def test_incomplete_requests_block_nobody_and_are_closed(port: int) -> None:
    """Without credentials, from one address."""
    held = [socket.create_connection(("127.0.0.1", port)) for _ in range(260)]
    try:
        for number, one in enumerate(held):
            with contextlib.suppress(OSError):
                one.send((b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ", b"", b"GET")[number % 3])
        for _ in range(3):
            assert ask(port, "/queries", **BEARER)[0] == 200
        answered = ask_and_keep(port)  # and half of another request after an answer
        answered.send(b"GET / HTTP/1.1\r\nX")
        for one in (*held, answered):
            one.settimeout(60)
            with contextlib.suppress(ConnectionError):
                assert one.recv(100) == b""
    finally:
        for one in held:
            one.close()


def ask_and_keep(port: int) -> socket.socket:
    """A connection that has had an answer."""
    one = socket.create_connection(("127.0.0.1", port), timeout=30)
    one.send(b"GET /login HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = b""
    while b"</html>" not in answer:
        answer += one.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 200")
    return one


def test_only_requests_for_its_own_host_names_are_answered(port: int) -> None:
    own = ("plan.example", "PLAN.example:8470", "localhost:1", "[::1]:1", "192.0.2.7")
    others = ("evil.example", "plan.example.evil.example", "127.0.0.1.evil.example", "")
    for host in own + others:
        assert ask(port, "/queries", Host=host, **BEARER)[0] == (200 if host in own else 421), host
    assert not Access().is_ours("192.0.2.7") and Access().is_ours("127.0.0.1:8470")


def test_every_response_has_the_security_headers(port: int) -> None:
    for path in ("/", "/login", "/static/live.js", "/nowhere", "/resources/source.nowhere"):
        _, headers, _ = ask(port, path, **BEARER)
        assert {name: headers[name] for name in HEADERS} == HEADERS
        assert "unsafe" not in headers["Content-Security-Policy"] and "Server" not in headers


LONG = "9" * 5000


def test_a_missing_page_is_not_found(port: int) -> None:
    for path in (
        "/nowhere",
        "/resources/source.nowhere",
        "/resources/%2e%2e%2fetc",
        "/resources/source.<script>",
        f"/resources/source.{LONG}",
        "/static/..%2f..%2fapp.py",
        "/static/app.py",
        "/?connection=nowhere",
        "/queries?connection=nowhere",
        *(
            f"/history/{serials}"
            for serials in ("99", "1..99", "-1", 10**30, LONG, f"{LONG}..1", f"1..{LONG}")
        ),
        *(f"/errors/{code}" for code in ("MZ999", "mz050", "..%2fx", LONG)),
    ):
        status, _, body = ask(port, path, **BEARER)
        assert status == 404 and b"<script>" not in body, (path[:40], status)
    for path in (
        f"/history?before={LONG}&after={LONG}",
        f"/queries?condition={LONG}",
        f"/live?since=x-{LONG}",
    ):
        assert ask(port, path, **BEARER)[0] == 200, path[:40]


def test_pages_escape_text_from_the_store(port: int) -> None:
    for path in ("/resources/sink.orders_pg", "/open", "/resources/sink.clicks_log"):
        page = page_of(port, path)
        assert HOSTILE[:20] not in page and "<b>odd" not in page and "\u202e" not in page


# --- pages


def test_queries_are_filtered_by_condition_and_connection(port: int) -> None:
    """Without a script. A sink without a connection belongs to its source's."""

    def listed(path: str) -> set[str]:
        return set(re.findall(r'data-query="([^"]+)"', page_of(port, path)))

    assert listed("/queries?condition=failed&connection=") == {"source.payments"}
    assert listed("/queries?connection=web_kafka") == {"source.clicks", "sink.clicks_log"}
    found = listed("/queries?condition=running&connection=shop_pg")
    assert found == {"sink.customers_pg", "sink.payments_pg"}
    assert len(listed("/queries?condition=&connection=")) == 9
    page = page_of(port, "/queries?condition=failed")
    assert '<form action="/queries" method="get"' in page and '<option value="failed" selected>' in page
    assert '<a href="/errors/MZ050">MZ050</a> The topic payments is not there.' in page
    assert "4 attempts" in page and "Latency" in page


def test_the_pages_show_rates_faults_and_the_serial_that_changed_a_resource(port: int) -> None:
    text = text_of(port, "/")
    assert "shop_kafka · 87.5 rows/s · lag 42 records" in text and "shop_pg · 62.5 rows/s" in text
    text = text_of(port, "/open")
    for said in ("source.payments", "sink.orders_pg", "failed-query", "target-behind"):
        assert said in text
    for address, serial in (("connection.shop_kafka", 2), ("source.orders", 2), ("source.clicks", 1)):
        text = text_of(port, f"/resources/{address}")
        assert re.search(rf"Last changed by\s+serial {serial}\b", text), text


def test_the_page_of_a_source_shows_what_each_column_reaches(port: int) -> None:
    page = page_of(port, "/resources/source.orders")
    assert "What each column reaches" in page and "which rows it has" in page


def test_every_error_code_has_a_page(port: int) -> None:
    text = text_of(port, "/errors/MZ050")
    assert "MZ050: A server can't be reached" in text and "Check the address, port, network" in text
    known = set(re.findall(r"^### (MZ\d{3}):", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE))
    assert known == {code for code in known if error_page(code) is not None} and len(known) > 100


def test_the_log_lines_of_a_query_have_a_page(port: int, shown: ShownProject) -> None:
    said = "2026-01-31T10:00:00.123Z ERROR mzplan.runner: {0}: failed <b> \u202e [MZ050]\n  more of it\n"
    assert "MZ155" in text_of(port, "/resources/source.payments/logs")
    log = shown.folder / ".mzplan" / "local.log"
    log.parent.mkdir(exist_ok=True)
    try:
        log.write_text(said.format("source.payments") + said.format("source.orders") * 300)
        page = page_of(port, "/resources/source.payments/logs")
        assert 'failed &lt;b&gt; \\u202e [<a href="/errors/MZ050">MZ050</a>]\n  more of it' in page
        assert page.count("source.orders: failed") == 0
        assert text_of(port, "/resources/source.orders/logs").count("source.orders: failed") == 200
        assert "has logged nothing" in text_of(port, "/resources/source.clicks/logs")
    finally:
        log.unlink()
    assert "/resources/source.payments/logs" in page_of(port, "/resources/source.payments")


def test_live_updates_hold_only_changed_queries(port: int, shown: ShownProject) -> None:
    def live(since: str = "") -> tuple[int, Any]:
        status, _, body = ask(port, f"/live?since={since}", **BEARER)
        return status, json.loads(body or b"{}")

    eventually("nothing changes", lambda: live(live()[1]["version"])[0] == 204)
    _, first = live()
    assert len(first["numbers"]) == 9 and first["problem"] == ""
    assert len(live("another-3")[1]["numbers"]) == 9
    shown.seen(**{**troubled(), "orders": {"lag": 5}})
    eventually("the change is shown", lambda: live(first["version"])[0] == 200)
    _, found = live(first["version"])
    assert list(found["numbers"]) == ["source.orders"]
    assert found["numbers"]["source.orders"][-1] == "5 records" and found["page"] == first["page"]


# --- starting the server


def test_a_server_for_other_machines_needs_a_token(
    shown: ShownProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MZPLAN_UI_TOKEN", raising=False)
    for host in ("0.0.0.0", "::", "192.0.2.7", "example.com", "localhost.example.com"):
        assert failed(shown.folder, "ui", "--host", host, code=7)["code"] == "MZ186", host


def test_an_unsuitable_token_is_refused(shown: ShownProject, tmp_path: Path) -> None:
    for text in ("", "2short", "with a space in its middle", "not-ascii-" + "\u00e9" * 7):
        file = tmp_path / "file"
        file.write_text(text)
        ran = mzplan(shown.folder, "ui", "--token-file", str(file), "--json")
        assert (ran.code, ran.error()["code"]) == (1, "MZ186")
        assert not text or text not in ran.out.replace(str(file), "")
    missing = str(tmp_path / "none")
    assert failed(shown.folder, "ui", "--token-file", missing, code=1)["code"] == "MZ186"


def test_an_address_that_cannot_be_served_is_an_error(shown: ShownProject, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        found = failed(shown.folder, "ui", "--port", str(taken.getsockname()[1]), code=1)
        assert found["code"] == "MZ188" and "--port 0" in found["hint"]
    there = ("--host", "192.0.2.7", "--token-file", str(file))
    assert failed(shown.folder, "ui", *there, code=1)["code"] == "MZ188"
    for url in ("plan.example", "ftp://plan.example", "https://plan.example/below"):
        assert mzplan(shown.folder, "ui", "--url", url).code == 64


# --- the past hour, environments


@pytest.mark.parametrize("token", ["", TOKEN], ids=["no token", "token"])
def test_one_server_shows_each_environment_unless_it_has_a_token(tmp_path: Path, token: str) -> None:
    """A cookie chooses it. An environment that can't be read leaves the others."""
    folder = write(tmp_path / "p")
    settings = (folder / "mzplan.yaml").read_text() + "environments:\n"
    for name in ("dev", "prod", "gone"):
        place = f"state: {{backend: local, path: state/{name}}}, warehouse: ./w/{name}"
        settings += f"  {name}: {{{place}, default: {str(name == 'dev').lower()}}}\n"
    (folder / "mzplan.yaml").write_text(settings)
    for name in ("dev", "prod"):
        assert mzplan(folder, "--env", name, "apply", "--auto-approve").code == 0
    bearer = BEARER if token else {}
    with serving(folder, token=token) as found:
        for name in ("dev", "prod", "gone", "nowhere"):
            status, headers, _ = ask(found["port"], f"/environment/{name}", **bearer)
            assert (status == 303) == (not token and name != "nowhere"), (status, name)
            cookie = f"mzplan_environment={name}"
            assert not headers["Set-Cookie"] or cookie in headers["Set-Cookie"]
            status, _, body = ask(found["port"], "/queries", Cookie=cookie, **bearer)
            assert status == 200 and (b"/environment/prod" in body) == (not token)
            shown = name if not token and name != "nowhere" else "dev"
            assert f"<strong>shop ({shown})<" in body.decode()


def test_the_page_of_a_query_shows_its_measures_last_steps_and_past_hour(tmp_path: Path) -> None:
    """The samples are the runner's, so they outlive the server."""
    made, address, now = ShownProject(tmp_path / "shop"), at("source.orders"), int(time.time())
    steps = ((1042, 1_700_000_000, 12_345), (1041, None, None), *(((1, 2, 3),) * 50))
    counters = Counters(rows=1234, batches=2, restarts=1, retries=0)
    made.seen(orders={"latency_seconds": 1500.0, "counters": counters, "last_steps": steps})
    samples = [
        (now - 60 * n, float(n), None if n % 2 else n, "failed" if n < 5 else "running") for n in range(50)
    ]
    made.store.write_recent("local", {address: tuple(reversed(samples))})
    assert made.store.read_recent("local")[address][-1] == (now, 0.0, 0, "failed")
    reader = OverviewReader(open_project(str(made.folder)))
    with Follower(reader) as follower:
        overview = follower.view().overview
        assert overview is not None
        rates = follower.samples.rates(address)
        assert [value for _, value in rates[:49]] == [float(n) for n in range(49, 0, -1)]
        assert follower.samples.lags(address)[0][1] is None
        assert [one for _, one in follower.samples.conditions(address)] == ["running", "failed"]
        page = str(joined(resource_page(overview, address, follower.samples)))
    assert "Conditions of the last hour" in page and 'id="conditions"' in page
    assert "1,500.0 s" in page and "1,234 rows, 2 batches, 1 restart, 0 retries" in page
    first = '<td><time datetime="2023-11-14T22:13:20+00:00">2023-11-14 22:13:20 UTC</time></td>'
    assert f'1,042</th>{first}<td class="number">12,345</td>' in page and page.count('scope="row"') == 20


def test_a_plot_has_gaps_where_data_is_missing() -> None:
    points = [(3000.0, 1.0), (3060.0, 2.0), (3070.0, None), (3080.0, 4.0), (3500.0, 1.0)]
    drawn = plot(points, "Rows/s", now=3600.0)
    assert drawn.count("<polyline") == 3 and "Rows/s, now 1" in drawn
    assert "no data" in plot([], "Lag", now=3600.0)
    assert "nan" not in plot([(3600.0, 0.0)], "x", now=3600.0)
