"""Access to the pages: read-only methods, valid host names, and a token if others can reach them."""

from __future__ import annotations

import hashlib
import hmac
import time
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mzplan.host.network import names_host

COOKIE = "mzplan_ui"
SESSION = 12 * 3600  # seconds
OPEN_PATHS = ("/login", "/session", "/static/")  # open to everyone; /session checks the token itself
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The rules for access.

    - `token`: the required token, or "".
    - `host`: the host name at which a proxy serves the pages, or "".
    - `is_secure`: whether the proxy uses https.
    """

    token: str = field(default="", repr=False)
    host: str = ""
    is_secure: bool = False

    def is_ours(self, host: str) -> bool:
        """Whether a request's Host header names this server."""
        return names_host(host, self.host, by_address=bool(self.token))

    def is_token(self, text: str) -> bool:
        """Whether this is the token. Takes constant time, which reveals nothing about the token."""
        return bool(self.token) and hmac.compare_digest(text.encode(), self.token.encode())

    def session(self) -> str:
        """Return a cookie's value that gives access for twelve hours."""
        until = str(int(time.time()) + SESSION)
        return f"{until}.{self._sign(until)}"

    def is_session(self, cookie: str) -> bool:
        until, _, signature = cookie.partition(".")
        if not hmac.compare_digest(signature.encode(), self._sign(until).encode()):
            return False
        return until.isdecimal() and int(until) > time.time()

    def has_token(self, headers: Headers) -> bool:
        """Whether a request carries the token itself."""
        kind, _, text = headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and self.is_token(text.strip())

    def lets_in(self, headers: Headers) -> bool:
        """Whether a request carries the token or a session cookie for it, or needs none."""
        return (
            not self.token
            or self.has_token(headers)
            or self.is_session(cookie_parser(headers.get("cookie", "")).get(COOKIE, ""))
        )

    def _sign(self, until: str) -> str:
        return hmac.new(self.token.encode(), f"mzplan ui {until}".encode(), hashlib.sha256).hexdigest()


class AccessGuard:
    """Guards the pages: refuses requests, and adds security headers to every answer."""

    def __init__(self, app: ASGIApp, access: Access):
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, path = Headers(scope=scope), scope["path"]
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("These pages are read-only.\n", 405, {"Allow": "GET, HEAD"})
        if not self._access.is_ours(headers.get("host", "")):
            return PlainTextResponse(
                "This is not the address of these pages. Behind a proxy, start mzplan ui with --url.\n", 421
            )
        if path.startswith(OPEN_PATHS) or self._access.lets_in(headers):
            return None
        if "text/html" in headers.get("accept", "") and path != "/live":
            return RedirectResponse("/login", 303)
        return PlainTextResponse("A token is required.\n", 401, {"WWW-Authenticate": "Bearer"})
