"""The frame of all pages: navigation, the store's problem, and the part that updates.

Also the page of an error code: its title, cause and fix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from mzplan.features.ui.follower import View
from mzplan.model.messages import section
from mzplan.render.diagnostics import render_diagnostics
from mzplan.render.html import Content, Markup, element

PAGES = {"graph": "/", "queries": "/queries", "history": "/history", "open": "/open"}


def page(title: str, view: View, boot: str, *content: Content, current: str = "", refresh: int = 0) -> str:
    """Return a page. `current`: the page's entry in PAGES; `refresh`: seconds until a forced update."""
    project = _title(view)
    links = [
        element("a", name.capitalize(), _open(name, view), href=href, aria_current=name == current and "page")
        for name, href in PAGES.items()
    ]
    header = element(
        "header",
        element("a", "Skip to the content", href="#main", class_="skip"),
        element("strong", project),
        element("nav", links, aria_label="Pages"),
        _environments(view),
        element("span", _serial(view), class_="quiet serial"),
    )
    problem = render_diagnostics(view.problem, False)
    banner = element(
        "div",
        element("pre", f"{problem}\n\nThis page shows the content of {_read_at(view)}." if problem else ""),
        id="problem",
        role="alert",
        hidden=not problem,
    )
    main = element(
        "main",
        content,
        id="main",
        tabindex=-1,
        data_version=f"{boot}-{view.version}",
        data_page=f"{boot}-{view.page}",
        data_refresh=refresh or None,
    )
    message = "mzplan ui doesn't answer. This page continues when it does."
    unreachable = element("div", message, id="away", role="alert", hidden=True)
    body = element("body", header, banner, unreachable, main)
    return document(f"{title} · {project}", ("search.js", "live.js"), body)


def environment_links(names: Iterable[str], current: str) -> Markup:
    """Return links to the pages of each of the project's environments."""
    links = [
        element("a", name, href=f"/environment/{name}", aria_current=name == current and "true")
        for name in names
    ]
    return element("nav", element("span", "Environment", class_="quiet"), links, aria_label="Environments")


def _environments(view: View) -> Markup | None:
    if view.overview is None or len(view.overview.environments) < 2:
        return None
    return environment_links(view.overview.environments, view.overview.status.environment)


def document(title: str, scripts: Iterable[str], body: Markup) -> str:
    """Return the whole HTML document. `scripts`: their names in /static."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("link", rel="stylesheet", href="/static/graph.css"),
        element("link", rel="stylesheet", href="/static/pages.css"),
        element("link", rel="icon", href="/static/icon.svg", type="image/svg+xml"),
        [element("script", src=f"/static/{name}", defer=True) for name in scripts],
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def chip(text: str, look: str) -> Markup:
    """Return a word in the colour of its look, such as a condition."""
    return element("span", text, class_=f"chip look-{look}")


def moment(seconds: float | None) -> Markup:
    """Return a time in UTC, to the second. Unlike an age, it stays right while a page is open."""
    if seconds is None:
        return element("span", "-")
    try:
        at = datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):  # a store may contain any number
        return element("span", "-")
    return element("time", at.strftime("%Y-%m-%d %H:%M:%S UTC"), datetime=at.isoformat(timespec="seconds"))


def facts(values: Iterable[tuple[str, Content]]) -> Markup:
    """Return names and values side by side."""
    pairs = [element("div", element("dt", name), element("dd", content)) for name, content in values]
    return element("dl", pairs, class_="facts")


def scrolled(content: Content, label: str) -> Markup:
    """Return content that may be wider than the page. The keyboard can also scroll it."""
    return element("div", content, class_="scroll", tabindex=0, role="region", aria_label=label)


def _title(view: View) -> str:
    if view.overview is None:
        return "mzplan"
    project, environment = view.overview.state.project, view.overview.status.environment
    return f"{project} ({environment})" if environment else project


def _serial(view: View) -> str:
    return f"serial {view.overview.state.serial}" if view.overview is not None else ""


def _read_at(view: View) -> str:
    if view.overview is None:
        return "nothing yet"
    return datetime.fromtimestamp(view.overview.read_at, UTC).strftime("%H:%M:%S UTC")


def _open(name: str, view: View) -> str:
    """Return the number of open items, to show beside the name of that page."""
    if name != "open" or view.overview is None:
        return ""
    number = len({str(p.address) for p in view.overview.pending} | {d.address for d in view.overview.drift})
    return f" ({number:,})" if number else ""


_CODE = re.compile(r"MZ\d{3}")


def code_link(code: str) -> Markup:
    """Return a code with a link to its page; only the text if the code isn't one of mzplan's."""
    return element("a", code, href=f"/errors/{code}") if _CODE.fullmatch(code) else element("span", code)


def linked(text: str) -> Content:
    """Return a text in which each code links to its page."""
    parts = re.split(rf"\b({_CODE.pattern})\b", text)
    return [code_link(part) if number % 2 else part for number, part in enumerate(parts)]


def error_page(code: str) -> Content | None:
    """Return the page of a code; None if mzplan doesn't have this code."""
    row = section(code).get(code) if _CODE.fullmatch(code) else None
    if row is None:
        return None
    text = f"Cause. {row['cause']}\n\nFix. {row['fix']}"
    paragraphs = [element("p", linked(paragraph)) for paragraph in text.split("\n\n")]
    return [element("h1", f"{code}: {row['title']}"), *paragraphs]
