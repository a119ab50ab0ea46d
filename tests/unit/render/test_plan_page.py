"""`plan --html`: one file that loads nothing, and in which no text of a project is markup; its layout."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from html import unescape
from pathlib import Path

import pytest

from mzplan.plan import build_plan
from mzplan.render.html import Markup, element
from mzplan.render.plan_page import render_plan_page
from tests.cases.test_cases import CASES, FOLDER, planned
from tests.unit.cli_runs import mzplan, write
from tests.unit.small_projects import commit, console, kafka, project, source


@pytest.mark.parametrize("name", CASES)
def test_every_change_is_there_and_nothing_is_loaded(name: str) -> None:
    plan, _ = planned(FOLDER / name)
    page = render_plan_page(plan)
    assert not re.search(r'(?:src|href)="(?!#)', page)
    for change in plan.changes:
        assert f'id="{change.address}"' in page
    for tag in ("style", "script"):
        (own,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = b64encode(hashlib.sha256(own.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in unescape(page)


def test_no_text_of_a_project_is_markup() -> None:
    odd = "</pre><script>alert(1)</script> \u202e\x07\n'\""
    queries = (source(description=odd), console("out", "orders"))
    plan = build_plan(project(kafka(), *queries), commit(project()))
    page = render_plan_page(plan)
    assert page.count("<script>") == 1 and "\u202e" not in page and "\x07" not in page
    assert element("a", odd, data_name=odd).count("<") == 2
    assert element("p", Markup("<b>ours</b>"), None, ["a", 1]) == "<p><b>ours</b>a1</p>"
    assert element("p", hidden=True, lang=None, class_=False) == "<p hidden></p>"


def test_a_large_plan_is_drawn_by_connections_and_listed_whole() -> None:
    """A broker of 100 sources, each with two sinks, has moved."""
    sources = [source(f"s{n}") for n in range(100)]
    sinks = [console(f"s{n}_{end}", f"s{n}") for n in range(100) for end in "ab"]
    state = commit(project(kafka(), *sources, *sinks))
    page = render_plan_page(build_plan(project(kafka(brokers=["b:9092"]), *sources, *sinks), state))
    titles = re.findall(r'class="node ([\w-]+)"[^>]*data-name="([^"]+)"', page)
    assert sorted(titles) == [
        ("restart", "100 sources of k"),
        ("running", "200 sinks of k"),
        ("update", "connection.k"),
    ]
    assert page.count('<details class="box" id=') == 101


def test_html_url_must_be_a_page_without_a_login(tmp_path: Path) -> None:
    folder = write(tmp_path)
    for url, reason in {
        "javascript:alert(1)": "is not a URL of a page",
        "https:///plan.html": "is not a URL of a page",
        "https://ci:secret@h/plan.html": "leave the login out",
        "https://h/a b": "invalid characters",
        "https://h:x/": "is not a URL",
    }.items():
        ran = mzplan(folder, "plan", "--markdown", "-", "--html-url", url)
        assert ran.code == 64 and reason in ran.err and "secret" not in ran.err, url
    assert mzplan(folder, "plan", "--html-url", "https://h/p").code == 64
    assert "(<https://h/p>)" in mzplan(folder, "plan", "--markdown", "-", "--html-url", "https://h/p").out
