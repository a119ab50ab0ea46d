"""Serves several environments of a project at one address. A cookie names a browser's environment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mzplan.features.ui.frame import document, environment_links
from mzplan.model.diagnostics import MzplanError
from mzplan.render.diagnostics import render_diagnostics
from mzplan.render.html import element

COOKIE = "mzplan_environment"
_PATH = "/environment/"


class Environments:
    """The pages of each environment in `names`. `open_app` opens an environment's pages on first use.

    Without a valid cookie, the environment is `first`. Runs behind the AccessGuard: the cookie only selects
    an environment, and permits nothing."""

    def __init__(self, first: str, names: Sequence[str], open_app: Callable[[str], ASGIApp]):
        self._first, self._names, self._open_app = first, names, open_app
        self._apps: dict[str, ASGIApp] = {}
        self._opening = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope["path"])
        chosen = path.removeprefix(_PATH) if path.startswith(_PATH) else ""
        if chosen in self._names:
            answer: Response = RedirectResponse("/", 303)
            answer.set_cookie(COOKIE, chosen, httponly=True, samesite="strict")
            return await answer(scope, receive, send)
        name = cookie_parser(Headers(scope=scope).get("cookie", "")).get(COOKIE, "")
        app = await run_in_threadpool(self._app, name if name in self._names else self._first)
        return await app(scope, receive, send)

    def _app(self, name: str) -> ASGIApp:
        with self._opening:
            if name not in self._apps:
                try:
                    self._apps[name] = self._open_app(name)
                except MzplanError as problem:  # the next request tries again
                    report = element("pre", render_diagnostics(problem.diagnostics, False), class_="box told")
                    links = environment_links(self._names, name)
                    body = element("body", element("header", links), element("main", report))
                    return HTMLResponse(document("Problem", (), body), 503)
            return self._apps[name]
