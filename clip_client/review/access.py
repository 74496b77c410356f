"""Access to the pages: only browsers that were given the secret address get in, not other pages, hosts or programs."""

from __future__ import annotations

import hmac
import re
import secrets
from typing import Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HOST: Final = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")
"""Names of this computer. Any other name comes from a foreign name server (DNS rebinding)."""

_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'self'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

_PAGE: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    "<title>Review</title><h1>{}</h1><p>{}</p></html>"
)
_INCOMPLETE: Final = _PAGE.format(
    "This address is not complete",
    "Open the whole address that <code>clip-client review</code> shows in the terminal. The address changes each time "
    "the command starts, so a bookmark of an earlier address leads here, too.",
)
_USED: Final = _PAGE.format(
    "This address has been used",
    "It works only once. Open the address that <code>clip-client review</code> shows in the terminal; that address "
    "works until the command ends. If your browser has not shown the review, another program on this computer may have "
    "used this address: end the command with Ctrl-C, and start it with <code>--no-browser</code>.",
)


class Access:
    """ASGI middleware that passes on only requests whose paths begin with the secret, and answers all others.

    A cookie would be unsafe: browsers send a host's cookies to all its ports, so another user's server would receive
    them. A ticket works only once, because it is on the browser's command line, which other users can read.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._secret = secrets.token_urlsafe(32)
        self._ticket = secrets.token_urlsafe(32)
        self.path = f"/{self._secret}/"
        self.path_for_once = f"/?ticket={self._ticket}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        inner = {**scope, "root_path": self.path.rstrip("/")}
        await (self._answer(scope) or self._app)(inner, receive, send_with_headers)

    def _answer(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not _HOST.fullmatch(host):
            return PlainTextResponse("Open this page as 127.0.0.1 or localhost.", 421)
        is_read = scope["method"] in ("GET", "HEAD")
        ticket = parse_qs(scope["query_string"].decode("latin-1")).get("ticket", [""])[0]
        if is_read and scope["path"] == "/" and ticket:
            if not hmac.compare_digest(ticket.encode(), self._ticket.encode()):
                return HTMLResponse(_USED, 403)
            self._ticket = secrets.token_urlsafe(32)
            return RedirectResponse(self.path, 303)
        secret, slash, _ = scope["path"].removeprefix("/").partition("/")
        if not hmac.compare_digest(secret.encode(errors="replace"), self._secret.encode()):
            return HTMLResponse(_INCOMPLETE, 403)
        # Let links in: the secret address may be on a page of another server, such as one that shows a terminal.
        is_link = (
            is_read and headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
        )
        if not is_link and headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return PlainTextResponse("Only pages of this server may ask for this.", 403)
        if not is_read and headers.get("origin") != f"http://{host}":
            return PlainTextResponse("Only pages of this server may change anything.", 403)
        return None if slash else RedirectResponse(self.path, 303)
