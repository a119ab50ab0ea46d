"""The pages of `mzplan ui`: who may see them, what they answer, what they keep of the past."""

from __future__ import annotations

import contextlib
import html
import http.client
import json
import math
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
from mzplan.features.ui.error_page import error_page
from mzplan.features.ui.follower import Follower
from mzplan.features.ui.overview import OverviewReader, origin_of
from mzplan.features.ui.resource_page import last_steps, measures, plot, resource_page
from mzplan.features.ui.samples import Samples
from mzplan.model.observed import Counters
from mzplan.model.state import QueryStatus
from mzplan.operations.project import open_project
from mzplan.render.html import joined
from tests.browser.shown_project import HOSTILE, ShownProject, troubled, troubled_project
from tests.unit.cli_runs import mzplan, write
from tests.unit.small_projects import at, commit, observe, shop

ROOT = Path(__file__).parents[4]
TOKEN = "0123456789abcdef-token"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> ShownProject:
    return troubled_project(tmp_path_factory.mktemp("ui") / "shop")


@pytest.fixture(scope="module")
def port(shown: ShownProject) -> Iterator[int]:
    """Of a server that demands a token, and says that a proxy serves it at https://plan.example."""
    command = [sys.executable, "-m", "mzplan", "-C", str(shown.folder), "ui", "--port", "0", "--json"]
    environment = {**os.environ, "MZPLAN_UI_TOKEN": TOKEN}
    command += ["--url", "https://plan.example"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        assert process.stdout is not None
        document = "".join(iter(process.stdout.readline, "}\n")) + "}"
        found = json.loads(document)
        assert (found["url"], found["token"]) == ("https://plan.example", True)
        yield found["port"]
        process.terminate()
        assert process.wait(30) == 0


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, Any, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_but_reading(method: str, port: int) -> None:
    for path in ("/", "/session", "/nowhere"):
        assert ask(port, path, method, **BEARER)[0] == 405


def test_a_token_is_demanded_and_a_cookie_given_for_it(port: int) -> None:
    assert ask(port, "/")[0] == 401
    assert ask(port, "/live", Accept="text/html")[0] == 401
    status, headers, _ = ask(port, "/queries", Accept="text/html,*/*")
    assert (status, headers["Location"]) == (303, "/login")
    assert ask(port, "/session", Authorization="Bearer wrong")[0] == 401
    assert ask(port, "/", Authorization=f"Basic {TOKEN}")[0] == 401
    status, headers, _ = ask(port, "/session", **BEARER)
    cookie = headers["Set-Cookie"]
    assert status == 204 and TOKEN not in cookie
    assert {"HttpOnly", "SameSite=strict", "Secure"} <= set(cookie.split("; "))
    value = cookie.partition(";")[0]
    assert ask(port, "/", Cookie=value)[0] == 200
    assert ask(port, "/", Cookie=value[:-1] + ("0" if value[-1] != "0" else "1"))[0] == 401
    until, _, signature = value.partition("=")[2].partition(".")
    assert ask(port, "/", Cookie=f"{COOKIE}={int(until) + 1}.{signature}")[0] == 401
    assert ask(port, "/", Cookie=f"{COOKIE}=\u00e9.x".encode().decode("latin-1"))[0] == 401


@pytest.mark.parametrize("path", ["/static/x", "/login/x", "/session/x", "/loginx"])
def test_what_is_open_to_all_says_nothing_of_the_project(port: int, path: str) -> None:
    status, _, text = ask(port, path)
    assert status in (401, 404) and b"shop" not in text and b"serial" not in text, text


def test_a_cookie_makes_no_cookie(port: int) -> None:
    """A session ends: only the token begins one."""
    value = ask(port, "/session", **BEARER)[1]["Set-Cookie"].partition(";")[0]
    assert ask(port, "/", Cookie=value)[0] == 200
    status, headers, _ = ask(port, "/session", Cookie=value)
    assert status == 401 and headers["Set-Cookie"] is None
    assert ask(port, "/session", Cookie=value, **BEARER)[0] == 204


def test_numbers_of_any_length_are_no_defect(port: int) -> None:
    long = "9" * 5000
    for path in (
        f"/history?before={long}&after={long}",
        f"/queries?condition={long}",
        f"/live?since=x-{long}",
    ):
        assert ask(port, path, **BEARER)[0] == 200, path[:40]


def test_half_requests_take_nobodys_place(port: int) -> None:
    """Without credentials, from one address: whoever asks is answered, and they are closed in time."""
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


def test_only_its_own_names(port: int) -> None:
    for host, status in (
        ("plan.example", 200),
        ("PLAN.example:8470", 200),
        ("localhost:1", 200),
        ("[::1]:1", 200),
        ("192.0.2.7", 200),
        ("evil.example", 421),
        ("plan.example.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 421),
    ):
        assert ask(port, "/queries", Host=host, **BEARER)[0] == status, host
    assert not Access().is_ours("192.0.2.7") and Access().is_ours("127.0.0.1:8470")


def test_every_answer_has_the_headers(port: int) -> None:
    for path in ("/", "/login", "/static/live.js", "/nowhere", "/resources/source.nowhere"):
        _, headers, _ = ask(port, path, **BEARER)
        assert {name: headers[name] for name in HEADERS} == HEADERS
        assert "unsafe" not in headers["Content-Security-Policy"] and "Server" not in headers


def test_what_there_is_not(port: int) -> None:
    for path in (
        "/nowhere",
        "/resources/source.nowhere",
        "/resources/%2e%2e%2fetc",
        "/resources/source.<script>",
        "/static/..%2f..%2fapp.py",
        "/static/app.py",
        "/?connection=nowhere",
        "/history/99",
        "/history/1..99",
        f"/history/{10**30}",
        *(f"/history/{'9' * 5000}{more}" for more in ("", "..1", "..x", ".." + "9" * 5000)),
        f"/history/1..{'9' * 5000}",
        "/history/-1",
        f"/resources/source.{'a' * 5000}",
    ):
        status, _, body = ask(port, path, **BEARER)
        assert status == 404, (path, status)
        assert b"<script>" not in body


def test_pages_escape_what_the_store_says(port: int) -> None:
    for path in ("/resources/sink.orders_pg", "/open", "/resources/sink.clicks_log"):
        status, _, body = ask(port, path, **BEARER)
        text = body.decode()
        assert status == 200
        assert HOSTILE[:20] not in text and "<b>odd" not in text and "\u202e" not in text
    assert ask(port, "/", "HEAD", **BEARER)[2] == b""


def test_the_page_of_a_query_lists_its_last_steps(port: int, shown: ShownProject) -> None:
    """Also what nobody knows, and what only a store that others write can say."""
    address, state = at("source.orders"), shown.store.read_state()
    steps = ((1042, 1_700_000_000, 12_345), (1041, None, None), (1040, 10**15, 0), *(((1, 2, 3),) * 50))
    seen = observe(state, orders={"last_steps": steps})["local"]
    record = state.resources[address]
    page = str(last_steps(QueryStatus(resource=record, observation=seen.observations[address])))
    first = '<td><time datetime="2023-11-14T22:13:20+00:00">2023-11-14 22:13:20 UTC</time></td>'
    assert f'1,042</th>{first}<td class="number">12,345</td>' in page
    assert page.count("<tr>") == 21 and "mzplan steps source.orders" in page
    body = ask(port, "/resources/source.customers", **BEARER)[2].decode()
    assert "The last steps" in body and body.count('scope="row"') == 3


def test_the_page_of_a_query_has_what_its_runner_measures(shown: ShownProject) -> None:
    counted = {"rows": 1234, "batches": 2, "restarts": 1, "retries": 0}
    state = {"state_rows": 1234, "state_bytes": 2048, "watermark_timestamp_seconds": 1.5, "late_rows": 0}
    fields = {"batch_seconds": 0.25, "latency_seconds": 1500.0, "counters": Counters(**counted), **state}
    seen = observe(shown.store.read_state(), orders=fields)["local"].observations[at("source.orders")]
    assert measures(seen) == [
        ("Batch duration", "0.2 s"),
        ("Latency", "1,500.0 s"),
        ("State rows", "1,234"),
        ("State size", "2.0 KiB"),
        ("Watermark", "1970-01-01T00:00:01.500Z"),
        ("Late rows", "0"),
        ("Since its runner became the leader", "1,234 rows, 2 batches, 1 restart, 0 retries"),
    ]


def text_of(port: int, path: str) -> str:
    status, _, body = ask(port, path, **BEARER)
    assert status == 200, path
    return html.unescape(re.sub(r"<[^>]+>", " ", body.decode()))


def test_queries_by_condition_and_connection(port: int) -> None:
    """A form without a script; a sink on its own counts for what it reads from."""

    def listed(path: str) -> set[str]:
        return set(re.findall(r'data-query="([^"]+)"', ask(port, path, **BEARER)[2].decode()))

    assert listed("/queries?condition=failed&connection=") == {"source.payments"}
    assert listed("/queries?connection=web_kafka") == {"source.clicks", "sink.clicks_log"}
    assert listed("/queries?condition=running&connection=shop_pg") == {
        "sink.customers_pg",
        "sink.payments_pg",
    }
    assert len(listed("/queries?condition=&connection=")) == 9
    page = ask(port, "/queries?condition=failed", **BEARER)[2].decode()
    assert '<form action="/queries" method="get"' in page and '<option value="failed" selected>' in page
    assert '<a href="/errors/MZ050">MZ050</a> The topic payments is not there.' in page
    assert "4 attempts" in page and "Latency" in page
    assert ask(port, "/queries?connection=nowhere", **BEARER)[0] == 404


def test_the_graph_shows_rates_lag_and_connections(port: int) -> None:
    text = text_of(port, "/")
    assert "shop_kafka · 87.5 rows/s · lag 42 records" in text and "shop_pg · 62.5 rows/s" in text


def test_a_code_leads_to_what_it_means(port: int) -> None:
    text = text_of(port, "/errors/MZ050")
    assert "MZ050: A server can't be reached" in text and "Check the address, port, network" in text
    for path in ("/errors/MZ999", "/errors/mz050", "/errors/..%2fx", "/errors/" + "9" * 5000):
        assert ask(port, path, **BEARER)[0] == 404
    known = set(re.findall(r"^### (MZ\d{3}):", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE))
    assert known == {code for code in known if error_page(code) is not None} and len(known) > 100


def test_what_the_runner_has_logged_of_a_query(port: int, shown: ShownProject) -> None:
    said = "2026-01-31T10:00:00.123Z ERROR mzplan.runner: {0}: failed <b> \u202e [MZ050]\n  more of it\n"
    assert "MZ155" in text_of(port, "/resources/source.payments/logs")
    log = shown.folder / ".mzplan" / "local.log"
    log.parent.mkdir(exist_ok=True)
    try:
        log.write_text(said.format("source.payments") + said.format("source.orders") * 300)
        page = ask(port, "/resources/source.payments/logs", **BEARER)[2].decode()
        assert 'failed &lt;b&gt; \\u202e [<a href="/errors/MZ050">MZ050</a>]\n  more of it' in page
        assert page.count("source.orders: failed") == 0
        assert text_of(port, "/resources/source.orders/logs").count("source.orders: failed") == 200
        assert "has logged nothing" in text_of(port, "/resources/source.clicks/logs")
    finally:
        log.unlink()
    assert "/resources/source.payments/logs" in ask(port, "/resources/source.payments", **BEARER)[2].decode()


def test_live_says_only_what_has_changed(port: int, shown: ShownProject) -> None:
    def live(since: str = "") -> tuple[int, Any]:
        status, _, body = ask(port, f"/live?since={since}", **BEARER)
        return status, json.loads(body or b"{}")

    _, first = live()
    assert len(first["numbers"]) == 9 and first["problem"] == ""
    assert live(first["version"])[0] == 204
    assert len(live("another-3")[1]["numbers"]) == 9
    shown.seen(**{**troubled(), "orders": {"lag": 5}})
    until = time.monotonic() + 60
    while (found := live(first["version"]))[0] == 204 and time.monotonic() < until:
        time.sleep(0.05)
    assert list(found[1]["numbers"]) == ["source.orders"]
    assert found[1]["numbers"]["source.orders"][-1] == "5 records"
    assert found[1]["page"] == first["page"]


# --- how it begins


def test_others_are_let_in_with_a_token_alone(shown: ShownProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MZPLAN_UI_TOKEN", raising=False)
    for host in ("0.0.0.0", "::", "192.0.2.7", "example.com", "localhost.example.com"):
        ran = mzplan(shown.folder, "ui", "--host", host, "--json")
        assert (ran.code, ran.error()["code"]) == (7, "MZ186"), host


@pytest.mark.parametrize(
    "text",
    ["", "2short", "with a space in its middle", "not-ascii-\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9"],
)
def test_what_is_no_token(text: str, shown: ShownProject, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    ran = mzplan(shown.folder, "ui", "--token-file", str(file), "--json")
    assert (ran.code, ran.error()["code"]) == (1, "MZ186")
    assert not text or text not in ran.out.replace(str(file), "")
    ran = mzplan(shown.folder, "ui", "--token-file", str(tmp_path / "none"), "--json")
    assert (ran.code, ran.error()["code"]) == (1, "MZ186")


def test_where_it_can_not_be_served(shown: ShownProject, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = str(taken.getsockname()[1])
        ran = mzplan(shown.folder, "ui", "--port", number, "--json")
        assert (ran.code, ran.error()["code"]) == (1, "MZ188") and "--port 0" in ran.error()["hint"]
    ran = mzplan(shown.folder, "ui", "--host", "192.0.2.7", "--token-file", str(file), "--json")
    assert (ran.code, ran.error()["code"]) == (1, "MZ188")
    for url in ("plan.example", "ftp://plan.example", "https://plan.example/below"):
        assert mzplan(shown.folder, "ui", "--url", url).code == 64


# --- what it reads and keeps


def test_the_overview_is_made_again_only_for_something_new(tmp_path: Path) -> None:
    made = ShownProject(tmp_path / "shop")
    reader = OverviewReader(open_project(str(made.folder)))
    first = reader.read()
    assert reader.read() is first
    made.seen(**troubled())
    second = reader.read()
    assert second is not first and second.state is first.state
    assert {str(one.address) for one in second.pending} == {"source.payments", "sink.orders_pg"}
    assert {one.kind for one in second.drift} == {"failed-query", "target-behind"}


def test_where_a_resource_comes_from(shown: ShownProject) -> None:
    state = shown.store.read_state()
    assert state.serial == 2
    serials = {
        name: found.serial
        for name in ("connection.shop_kafka", "source.orders", "source.clicks", "sink.orders_pg")
        if (found := origin_of(shown.store, state, at(name))) is not None
    }
    assert serials == {
        "connection.shop_kafka": 2,
        "source.orders": 2,
        "source.clicks": 1,
        "sink.orders_pg": 1,
    }


def test_samples_are_a_ring() -> None:
    state = commit(shop())
    samples, address = Samples(size=3), at("source.orders")
    for number in range(5):
        seen = observe(state, orders={"input_rows_per_second": float(number), "lag": None})
        record = state.resources[address]
        query = QueryStatus(resource=record, observation=seen["local"].observations[address])
        samples.add([query], now=100.0 + number)
        samples.started(address, f"run-{number // 4}", 100.0 + number)
    assert samples.rates(address) == [(102.0, 2.0), (103.0, 3.0), (104.0, 4.0)]
    assert [value for _, value in samples.lags(address)] == [None, None, None]
    assert samples.runs(address) == [100.0, 104.0]
    samples.add([], now=105.0)
    assert samples.rates(address) == [] and samples.runs(address) == []


def test_one_server_shows_each_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a cookie; one that can't be read leaves the others. With a token there is no switch."""
    monkeypatch.delenv("MZPLAN_UI_TOKEN", raising=False)
    folder = write(tmp_path / "p")
    settings = (folder / "mzplan.yaml").read_text()
    for name in ("dev", "prod", "gone"):
        settings += "environments:\n" if name == "dev" else ""
        settings += f"  {name}: {{state: {{backend: local, path: state/{name}}}, warehouse: ./w/{name}"
        settings += ", default: true}\n" if name == "dev" else "}\n"
    (folder / "mzplan.yaml").write_text(settings)
    for name in ("dev", "prod"):
        assert mzplan(folder, "--env", name, "apply", "--auto-approve").code == 0
    command = [sys.executable, "-m", "mzplan", "-C", str(folder), "ui", "--port", "0", "--json"]
    for token in ("", TOKEN):
        environment = {**os.environ, **({"MZPLAN_UI_TOKEN": token} if token else {})}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
            assert process.stdout is not None
            port = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")["port"]
            bearer = BEARER if token else {}
            titles = {}
            for name in ("dev", "prod", "gone", "nowhere"):
                status, headers, _ = ask(port, f"/environment/{name}", **bearer)
                assert (status == 303) == (not token and name != "nowhere"), (status, name)
                cookie = f"mzplan_environment={name}"
                assert not headers["Set-Cookie"] or cookie in headers["Set-Cookie"]
                status, _, body = ask(port, "/queries", Cookie=cookie, **bearer)
                assert status == 200 and ("/environment/prod" in body.decode()) == (not token)
                titles[name] = body.decode().partition("<strong>")[2].partition("<")[0]
            seen = ("prod", "gone") if not token else ("dev", "dev")
            assert titles == {
                "dev": "shop (dev)",
                "nowhere": "shop (dev)",
                **{name: f"shop ({one})" for name, one in zip(("prod", "gone"), seen, strict=True)},
            }
            process.terminate()
            assert process.wait(30) == 0


def test_what_the_runner_has_recorded_outlives_the_pages(tmp_path: Path) -> None:
    """Also where the store holds what no runner writes."""
    made, address, now = ShownProject(tmp_path / "shop"), at("source.orders"), int(time.time())
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
    (made.folder / "state" / "status" / "local.recent.json").write_text('{"source.orders": [[1, "x"]]}')
    with Follower(OverviewReader(open_project(str(made.folder)))) as follower:
        assert follower.view().problem == ()
        assert len(follower.samples.rates(address)) == 1


def test_a_plot_interrupts_its_line_where_nothing_is_known() -> None:
    points = [(3000.0, 1.0), (3060.0, 2.0), (3070.0, None), (3080.0, 4.0), (3500.0, 1.0)]
    drawn = plot(points, "Rows/s", now=3600.0)
    assert drawn.count("<polyline") == 3 and "Rows/s, now 1" in drawn
    assert "no data" in plot([], "Lag", now=3600.0)
    assert not math.isnan(
        float(plot([(3600.0, 0.0)], "x", now=3600.0).partition('points="')[2].partition(",")[0])
    )
