"""`mzplan ui` and `plan --html` in a real browser: live, by keyboard, narrow, dark, the store gone and back.

`python -m pytest tests/browser/test_ui.py --update-images` writes the pictures of the documentation anew.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import missing
from tests.browser.pages import NARROW, WIDE, Browser
from tests.browser.shown_project import HOSTILE, PIPELINE, ShownProject, troubled, troubled_project
from tests.programs import skip_without
from tests.unit.cli_runs import mzplan

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
NEVER_WIDER = "document.documentElement.scrollWidth <= innerWidth"


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    skip_without(missing())
    opened = Browser(tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> ShownProject:
    return troubled_project(tmp_path_factory.mktemp("shop") / "shop")


@pytest.fixture(scope="module")
def served(shop: ShownProject) -> Iterator[str]:
    """The address of the pages, by a process of its own, as a person starts it."""
    command = [sys.executable, "-m", "mzplan", "-C", str(shop.folder), "ui", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert line.startswith("shop is shown at http://127.0.0.1:"), line + process.stderr.read()
        yield line.split()[4].rstrip("/")
        process.terminate()
        assert process.wait(30) == 0, process.stderr.read()


@pytest.fixture
def page(chromium: Browser, shop: ShownProject, served: str) -> Iterator[Browser]:
    """The browser as it begins; afterwards nothing has gone wrong in it, and nothing else was asked for."""
    shop.seen(**troubled())
    chromium.resize(WIDE)
    chromium.scheme("light")
    chromium.open(f"{served}/open")
    chromium.until("document.querySelector('main').innerText.includes('source.payments failed-query')")
    chromium.problems.clear()
    chromium.requested.clear()
    yield chromium
    assert chromium.problems == []
    assert [url for _, url in chromium.requested if not url.startswith((served, "file:", "data:"))] == []


@pytest.mark.smoke
def test_the_graph_is_live(page: Browser, shop: ShownProject, served: str) -> None:
    page.open(f"{served}/")
    node = "document.querySelector('a.node[data-name=\"source.payments\"]')"
    assert page.run(f"{node}.classList.contains('failed')")
    assert "doesn't answer" in page.run("document.querySelector('.node.fault').textContent")
    shop.seen()
    page.until(f"{node}.classList.contains('running')")
    assert page.run("document.querySelectorAll('svg.graph .failed, svg.graph .fault').length") == 0


def test_numbers_are_live_and_what_was_typed_stays(page: Browser, shop: ShownProject, served: str) -> None:
    page.open(f"{served}/queries")
    page.key("/")
    page.type("payments")
    row = "document.querySelector('[data-query=\"source.payments\"]')"
    assert page.run("document.getElementById('found').textContent") == "2 of 9"
    shop.seen(**{**troubled(), "payments": {**troubled()["payments"], "lag": 4711}})
    page.until(f"{row}.textContent.includes('4,711 records')")
    shop.seen(payments={"lag": 4712})
    page.until(f"{row}.textContent.includes('running') && {row}.textContent.includes('4,712')")
    assert page.run("document.activeElement.value") == "payments"
    assert page.run("document.querySelector('[data-query=\"source.orders\"]').hidden")


def test_the_keyboard_alone_leads_to_a_query_and_its_declaration(page: Browser, served: str) -> None:
    page.open(f"{served}/")
    page.tab_to("it.textContent === 'Skip to the content'")
    page.key("Enter")
    page.tab_to("it.dataset?.name === 'source.payments'")
    page.key("Enter")
    page.until("document.querySelector('h1')?.textContent.startsWith('source.payments')")
    text = page.run("document.querySelector('main').innerText")
    assert "[MZ050] The topic payments is not there. Fix: create it" in text
    assert "would restart 1 query; 1 query downstream would keep running" in text
    assert "topic: payments" in text and "Rows/s, now 0" in text
    page.tab_to("it.tagName === 'SUMMARY'")
    page.key("Enter")
    page.tab_to("it.textContent === 'sink.payments_pg'")


def test_what_others_have_written_is_only_text(page: Browser, served: str) -> None:
    for path in ("/resources/sink.orders_pg", "/open", "/queries"):
        page.open(f"{served}{path}")
        assert page.run("document.title") != "run"
        assert page.run("document.querySelectorAll('main img, main script').length") == 0
    page.open(f"{served}/resources/sink.orders_pg")
    text = page.run("document.querySelector('pre.told').textContent")
    assert HOSTILE.replace("\u202e", "\\u202e")[:60] in text and "\\u202e" in text
    assert 'Fix: if it has moved: mzplan alter "ALTER CONNECTION shop_pg' in text
    page.open(f"{served}/resources/connection.shop_pg")
    assert "${env:SHOP_PG_PASSWORD}" in page.run("document.body.innerText")


def test_history_and_any_two_serials(page: Browser, served: str) -> None:
    page.open(f"{served}/history")
    page.run("document.querySelector('form').requestSubmit()")
    page.until("location.pathname === '/history/1..2'")
    page.until("document.querySelector('main')?.innerText.includes('brokers[0]: a:9092 → b:9092')")
    assert page.run("document.querySelectorAll('svg.graph .restart').length") == 3


def test_open_says_what_is_not_as_committed(page: Browser, served: str) -> None:
    page.open(f"{served}/open")
    text = page.run("document.querySelector('main').innerText")
    assert "source.payments failed-query" in text and "Committed, but not converged: 2" in text


@pytest.mark.parametrize("path", ["/", "/queries", "/resources/source.payments", "/history/2", "/open"])
def test_narrow_and_dark(path: str, page: Browser, served: str) -> None:
    page.resize(NARROW)
    page.scheme("dark")
    page.open(f"{served}{path}")
    assert page.run(NEVER_WIDER), page.run("document.documentElement.scrollWidth")
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 29)"


def test_the_store_is_gone_and_comes_back(page: Browser, shop: ShownProject, served: str) -> None:
    page.open(f"{served}/")
    away = shop.folder / "elsewhere"
    (shop.folder / "state").rename(away)
    try:
        page.until("document.getElementById('problem').innerText.includes('MZ030')")
        assert page.run("document.querySelectorAll('svg.graph .node').length") == 12  # as it was read last
    finally:
        away.rename(shop.folder / "state")
    page.until("document.getElementById('problem').hidden")
    page.open(f"{served}/queries")
    assert page.run("document.getElementById('problem').hidden")


def test_a_plan_is_one_file(page: Browser, shop: ShownProject, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    shutil.copytree(shop.folder, folder)
    changed = (PIPELINE % "c").replace(
        "  clicks_log: {type: console, from: clicks, paused: true, ", "  more: {type: console, from: clicks, "
    )
    (folder / "pipeline.yaml").write_text(changed)
    file = tmp_path / "plan.html"
    assert mzplan(folder, "plan", "--html", str(file)).code == 0
    page.open(file.as_uri())
    assert [url for of, url in page.requested if of == file.as_uri()] == [file.as_uri()]
    looks = {
        look: page.run(f"document.querySelectorAll('svg.graph .{look}').length")
        for look in ("update", "restart", "running", "create", "delete", "kept")
    }
    assert looks == {"update": 1, "restart": 3, "running": 4, "create": 1, "delete": 1, "kept": 1}
    page.key("/")
    page.type("clicks")
    shown = "[...document.querySelectorAll('%s')].filter(one => !one.hidden).length"
    assert page.run(shown % "details[data-name]") == 2
    assert page.run(shown % "details.warned") == 3, "what is warned of stays, whatever is searched for"
    assert page.run("document.querySelectorAll('.node.faded').length") > 0
    page.resize(NARROW)
    assert page.run(NEVER_WIDER)


PICTURES = {
    "ui-graph.png": ("/", "light", 560),
    "ui-query.png": ("/resources/source.payments", "dark", 760),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_of_the_documentation(
    name: str, page: Browser, served: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path, scheme, height = PICTURES[name]
    page.resize((1000, 700))
    page.scheme(scheme)
    page.open(f"{served}{path}")
    made = tmp_path / name
    page.picture(made, height)
    assert 10_000 < made.stat().st_size < 100_000
    if request.config.getoption("--update-images"):
        IMAGES.mkdir(exist_ok=True)
        shutil.copy(made, IMAGES / name)
    assert (IMAGES / name).read_bytes()[:4] == b"\x89PNG"
