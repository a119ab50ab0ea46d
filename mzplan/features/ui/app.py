"""The pages by their addresses."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from mzplan.features.ui.access import COOKIE, SESSION, Access
from mzplan.features.ui.follower import Follower, View
from mzplan.features.ui.frame import document, error_page, page
from mzplan.features.ui.graph_page import CONDITIONS, graph_page
from mzplan.features.ui.history_page import difference_page, history_page, origin, serial_page
from mzplan.features.ui.overview import Overview, origin_of
from mzplan.features.ui.queries_page import open_page, queries_page
from mzplan.features.ui.resource_page import logs_page, resource_page
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError
from mzplan.model.history import HistoryEntry
from mzplan.operations.events import latest_events
from mzplan.operations.project import Project
from mzplan.render.diagnostics import render_diagnostics
from mzplan.render.html import Content, element, static_text

EVENTS_SHOWN = 20  # of a query; `mzplan events` lists all
EVENTS_SECONDS = 7 * 86_400.0  # seconds
_STATIC = {
    "graph.css": ("mzplan.render", "text/css"),
    "search.js": ("mzplan.render", "text/javascript"),
    "pages.css": ("mzplan.features.ui", "text/css"),
    "live.js": ("mzplan.features.ui", "text/javascript"),
    "login.js": ("mzplan.features.ui", "text/javascript"),
    "icon.svg": ("mzplan.features.ui", "image/svg+xml"),
}


def make_app(project: Project, follower: Follower, access: Access) -> ASGIApp:
    """Return the app with a project's pages. It must run behind an AccessGuard.

    Starlette runs blocking handlers in threads."""
    pages = Pages(project, follower, access)
    routes = [
        Route("/", pages.graph),
        Route("/queries", pages.queries),
        Route("/resources/{address}", pages.resource),
        Route("/resources/{address}/logs", pages.logs),
        Route("/history", pages.history),
        Route("/history/{before}..{after}", pages.difference),
        Route("/history/{serial}", pages.serial),
        Route("/open", pages.open),
        Route("/errors/{code}", pages.error),
        Route("/live", pages.live),
        Route("/login", pages.login),
        Route("/session", pages.session),
        Route("/static/{name}", pages.static),
    ]
    handlers: dict[Any, Any] = {
        HTTPException: pages.missing,
        MzplanError: pages.failed,
        Exception: pages.broken,
    }
    return Starlette(routes=routes, exception_handlers=handlers)


class Pages:
    """The answers of each address. A request changes nothing."""

    def __init__(self, project: Project, follower: Follower, access: Access):
        self._project = project
        self._follower = follower
        self._access = access
        self._origins: dict[tuple[int, Address], HistoryEntry | None] = {}  # for one serial

    def graph(self, request: Request) -> Response:
        def content(overview: Overview) -> Content:
            name = request.query_params.get("connection")
            connection = _committed(overview, f"connection.{name}") if name is not None else None
            return graph_page(overview, connection, ungrouped="all" in request.query_params)

        return self._page("Graph", content, "graph", refresh=10)

    def queries(self, request: Request) -> Response:
        condition, name = (request.query_params.get(key, "") for key in ("condition", "connection"))
        view = self._follower.view()

        def content(overview: Overview) -> Content:
            connection = _committed(overview, f"connection.{name}").name if name else ""
            return queries_page(view, condition if condition in CONDITIONS else "", connection)

        return self._page("Queries", content, "queries", view)

    def resource(self, request: Request) -> Response:
        text = request.path_params["address"]

        def content(overview: Overview) -> Content:
            address = _committed(overview, text)
            key = (overview.state.serial, address)
            if key not in self._origins:
                if self._origins and next(iter(self._origins))[0] != key[0]:
                    self._origins.clear()
                self._origins[key] = origin_of(self._project.store, overview.state, address)
            store = self._project.store
            events = latest_events(store, address, EVENTS_SHOWN, time.time() - EVENTS_SECONDS)
            origin_ = origin(self._origins[key])
            return resource_page(overview, address, self._follower.samples, origin_, events)

        return self._page(text[:140], content, "graph", refresh=10)

    def logs(self, request: Request) -> Response:
        text = request.path_params["address"]
        content = lambda overview: logs_page(self._project, overview, _committed(overview, text))  # noqa: E731
        return self._page(f"Logs of {text[:140]}", content, "queries", refresh=10)

    def history(self, request: Request) -> Response:
        first, second = (request.query_params.get(name, "") for name in ("before", "after"))
        if (before := _number(first)) is not None and (after := _number(second)) is not None:
            return RedirectResponse(f"/history/{before}..{after}", 303)
        return self._page("History", lambda _: history_page(self._project.store), "history")

    def serial(self, request: Request) -> Response:
        serial = _serial(request, "serial")
        return self._page(f"Serial {serial}", lambda _: serial_page(self._project.store, serial), "history")

    def difference(self, request: Request) -> Response:
        before, after = _serial(request, "before"), _serial(request, "after")
        content = lambda _: difference_page(self._project.store, before, after)  # noqa: E731
        return self._page(f"Serial {before} to {after}", content, "history")

    def open(self, request: Request) -> Response:
        return self._page("Open", open_page, "open")

    def error(self, request: Request) -> Response:
        code = request.path_params["code"]
        content = error_page(code)
        if content is None:
            raise HTTPException(404)
        return self._page(code, lambda _: content, "")

    async def live(self, request: Request) -> Response:
        """Wait for changes since the version that a page has, and return them; 204 if there are none."""
        boot, _, number = request.query_params.get("since", "").partition("-")
        since = _number(number) if boot == self._follower.boot else None
        since = -1 if since is None else since
        view = await self._follower.view_after(since)
        if since == view.version:
            return Response(status_code=204)
        numbers = {
            str(address): cells for address, cells in view.numbers.items() if view.changed_in[address] > since
        }
        document = {
            "version": f"{self._follower.boot}-{view.version}",
            "page": f"{self._follower.boot}-{view.page}",
            "problem": render_diagnostics(view.problem, False),
            "numbers": numbers,
        }
        return Response(json.dumps(document), media_type="application/json")

    def login(self, request: Request) -> Response:
        field = element(
            "input", type="password", id="token", autocomplete="off", aria_label="Token", autofocus=True
        )
        form = element("form", field, " ", element("button", "Sign in", type="submit"))
        status = element("p", id="said", role="status")
        hint = element("p", "Use the token that mzplan ui was started with.", class_="quiet")
        main = element("main", element("h1", "mzplan"), form, status, hint, id="login")
        return HTMLResponse(document("Sign in", ("login.js",), element("body", main)))

    def session(self, request: Request) -> Response:
        """Exchange the token in the header Authorization for a cookie.

        A cookie isn't accepted here, because a session must end."""
        if not self._access.has_token(request.headers):
            return PlainTextResponse("That is not the token.\n", 401, {"WWW-Authenticate": "Bearer"})
        answer = Response(status_code=204)
        answer.set_cookie(
            COOKIE,
            self._access.session(),
            max_age=SESSION,
            httponly=True,
            samesite="strict",
            secure=self._access.is_secure,
        )
        return answer

    def static(self, request: Request) -> Response:
        asset = _STATIC.get(request.path_params["name"])
        if asset is None:
            raise HTTPException(404)
        return Response(static_text(asset[0], request.path_params["name"]), media_type=asset[1])

    def missing(self, request: Request, problem: HTTPException) -> Response:
        text = (
            problem.detail
            if problem.status_code == 404 and " " in problem.detail
            else "There is no such page."
        )
        if not self._access.lets_in(request.headers):  # reveal nothing about the project
            return PlainTextResponse("There is no such page.\n", problem.status_code)
        body = page("Not found", self._follower.view(), self._follower.boot, element("h1", text))
        return HTMLResponse(body, problem.status_code)

    def failed(self, request: Request, problem: MzplanError) -> Response:
        """Return a page that shows a problem's messages.

        Only visitors whom Access lets in see such a page: the pages of OPEN_PATHS read no project, so they
        raise no MzplanError.
        """
        text = render_diagnostics(problem.diagnostics, False)
        content = [element("h1", "This can't be shown"), element("pre", text, class_="box told")]
        is_missing_serial = any(diagnostic.kind == "no-such-serial" for diagnostic in problem.diagnostics)
        body = page("Problem", self._follower.view(), self._follower.boot, *content)
        return HTMLResponse(body, 404 if is_missing_serial else 503)

    def broken(self, request: Request, problem: Exception) -> Response:
        """Report a defect. Only the log has its details."""
        content = [
            element("h1", "This can't be shown"),
            element("p", "The log of `mzplan ui` has the reason."),
        ]
        return HTMLResponse(page("Problem", self._follower.view(), self._follower.boot, *content), 500)

    def _page(
        self,
        title: str,
        content: Callable[[Overview], Content],
        current: str,
        view: View | None = None,
        refresh: int = 0,
    ) -> Response:
        view = view or self._follower.view()
        body = (
            content(view.overview)
            if view.overview is not None
            else element("p", "The store couldn't be read yet.")
        )
        html = page(title, view, self._follower.boot, body, current=current, refresh=refresh)
        return HTMLResponse(html)


def _committed(overview: Overview, text: str) -> Address:
    """Return the address of a committed resource; otherwise raise 404."""
    try:
        address = Address.parse(text)
    except ValueError:
        raise HTTPException(404) from None
    if address not in overview.state.resources:
        raise HTTPException(404, f"There is no {address} in serial {overview.state.serial}.")
    return address


def _number(text: str) -> int | None:
    """Return a number of at most 15 digits; None for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else None


def _serial(request: Request, name: str) -> int:
    """Return a serial from the path; otherwise raise 404."""
    serial = _number(request.path_params[name])
    if serial is None:
        raise HTTPException(404)
    return serial
