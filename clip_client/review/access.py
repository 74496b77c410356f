"""Who may use the pages: the browser that was given the token, and no other page, host or program."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HOST: Final = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")
"""Names of this computer. With any other the browser was led here by a foreign name server (DNS rebinding)."""

_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

# A redirect that follows a click on another page would come without the cookie, because the cookie is SameSite=Strict.
_WELCOME: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Review</title>'
    '<meta http-equiv="refresh" content="0;url=/"><p><a href="/">Continue to the review</a></p></html>'
)
_NO_COOKIE: Final = "This page belongs to another browser, or its server has ended: open the address in the terminal."


class Access:
    """ASGI middleware that answers requests of strangers itself.

    A token works once. The browser that brings it gets a cookie, and the token is replaced by a new one, of which
    ``on_token`` is told. A cookie alone would not do: browsers send it to every port of this computer, so a page of
    another local server counts as the same site. The headers ``Sec-Fetch-Site`` and ``Origin`` tell it apart.
    """

    def __init__(self, app: ASGIApp, *, on_token: Callable[[str], None]) -> None:
        self._app = app
        self._on_token = on_token
        self._session = secrets.token_urlsafe(32)
        self.token = secrets.token_urlsafe(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = self._answer(scope)
        await (answer or self._app)(scope, receive, send_with_headers)

    def _answer(self, scope: Scope) -> Response | None:
        """Return the answer to a stranger, and to a browser that brings the token; None for a request to pass on."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not _HOST.fullmatch(host):
            return PlainTextResponse("Open this page as 127.0.0.1 or localhost.", 421)
        is_read = scope["method"] in ("GET", "HEAD")
        token = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if is_read and scope["path"] == "/" and token:
            return self._let_in(token, headers, port=scope["server"][1])
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return PlainTextResponse("Only pages of this server may ask for this.", 403)
        if not is_read and headers.get("origin") != f"http://{host}":
            return PlainTextResponse("Only pages of this server may change anything.", 403)
        if not self._has_cookie(headers, port=scope["server"][1]):
            return PlainTextResponse(_NO_COOKIE, 403)
        return None

    def _let_in(self, token: str, headers: Headers, *, port: int) -> Response:
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            # The address in the terminal is often opened a second time in the same browser.
            return (
                HTMLResponse(_WELCOME) if self._has_cookie(headers, port=port) else PlainTextResponse(_NO_COOKIE, 403)
            )
        self.token = secrets.token_urlsafe(32)
        self._on_token(self.token)
        response = HTMLResponse(_WELCOME)
        response.set_cookie(_cookie_name(port), self._session, httponly=True, samesite="strict")
        return response

    def _has_cookie(self, headers: Headers, *, port: int) -> bool:
        name = _cookie_name(port)
        values = (
            value
            for header in headers.getlist("cookie")
            for pair in header.split(";")
            for key, _, value in [pair.strip().partition("=")]
            if key == name
        )
        return any(hmac.compare_digest(value.encode(), self._session.encode()) for value in values)


def _cookie_name(port: int) -> str:
    # Cookies do not know ports: without it, two servers would overwrite each other's.
    return f"clip-review-{port}"
