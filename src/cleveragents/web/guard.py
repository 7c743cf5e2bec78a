"""Access to the page: only for the browser that got its address, from the page itself.

Every program on this machine, and every site in a browser on it, can reach a port on loopback. So
a request needs the cookie that the one-time token was exchanged for, the right Host (another name
that leads here is a site's trick), and, to change something, the page's own Origin.
"""

import secrets
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "agents"
ENTER = "/enter"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not `no-referrer`: browsers then hide the Origin of the page's own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Keys:
    """The address's one-time token, and the cookie that it is exchanged for."""

    def __init__(self) -> None:
        self._token: str | None = secrets.token_urlsafe(24)
        self._cookie = secrets.token_urlsafe(32)
        self.form: str = secrets.token_urlsafe(16)
        """In every form of the page."""

    @property
    def token(self) -> str:
        return self._token or ""

    def exchanged(self, token: str) -> str | None:
        """The cookie, for the token; never again."""
        if self._token is None or not secrets.compare_digest(token.encode(), self._token.encode()):
            return None
        self._token = None
        return self._cookie

    def fits(self, cookie: str) -> bool:
        return secrets.compare_digest(cookie.encode(), self._cookie.encode())


class Guard:
    """Around the whole application: refuses, lets in, and puts the headers on every answer."""

    def __init__(self, app: ASGIApp, keys: Keys, port: int) -> None:
        self._app = app
        self._keys = keys
        self._hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        refused = self._refused(scope)
        await (refused or self._app)(scope, receive, _with_headers(send))

    def _refused(self, scope: Scope) -> Response | None:
        """The refusal of a request, or the answer to the token."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if host not in self._hosts:
            return _no("this is not the page's address", 421)
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return _no("the page knows GET and POST", 405)
        if scope["path"] == ENTER and scope["method"] == "GET":
            return self._entered(scope)
        if not self._keys.fits(_cookie(headers)):
            return _no("open the address that `agents web` printed in this browser", 403)
        if scope["method"] == "POST" and not _is_own(headers, host):
            return _no("only the page itself may change something", 403)
        return None

    def _entered(self, scope: Scope) -> Response:
        query: dict[str, list[str]] = parse_qs(scope["query_string"].decode("latin-1"))
        cookie = self._keys.exchanged(query.get("token", [""])[0])
        if cookie is None:
            return _no("this address was used before: run `agents web` again", 403)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(COOKIE, cookie, httponly=True, samesite="strict", path="/")
        return answer


def _is_own(headers: Headers, host: str) -> bool:
    site = headers.get("sec-fetch-site", "same-origin")
    return headers.get("origin") == f"http://{host}" and site == "same-origin"


def _cookie(headers: Headers) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return found.value if found else ""


def _no(why: str, status: int) -> Response:
    return PlainTextResponse(f"{why}\n", status)


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers: Any = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
        await send(message)

    return sent
