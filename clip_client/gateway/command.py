"""The command ``clip-gateway``: serve the gateway with uvicorn, which would wait for slow callers forever."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar, Final

from clip_client._client import URL_VARIABLE
from clip_client._config import ClientConfig
from clip_client._endpoint import DEFAULT_URL

try:
    import uvicorn
    from pydantic import ValidationError
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from clip_client.gateway.settings import MULTIPROCESS_VARIABLE, SETTINGS_VARIABLE, Settings
except ModuleNotFoundError as missing:
    sys.exit(f"clip-gateway: {missing.name} is not installed; install it with: pip install 'clip-triton[gateway]'")

_TOKENS: Final = {"token": "CLIP_GATEWAY_TOKEN", "client_token": "CLIP_TOKEN"}
"""Variables of the environment. No option takes a token itself, which other users could read in ``ps``."""


class Connection(H11Protocol):
    """A connection that ends if it waits too long for the head of a request, or for the caller to take an answer."""

    limit_s: ClassVar[float] = 60.0
    """Seconds for each of the two; up to twice as many may pass."""
    _next_look: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to look."""
        super().connection_made(transport)
        self._look(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Look no more."""
        self._next_look.cancel()
        super().connection_lost(exc)

    def _look(self, before: object) -> None:
        """End the connection if it waited at the last look, after the same request."""
        cycle = self.cycle
        waits = cycle is None or cycle.response_complete or self.flow.write_paused
        if waits and cycle is before:
            self.transport.abort()
        else:
            self._next_look = self.loop.call_later(self.limit_s, self._look, cycle if waits else self)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``clip-gateway`` until it is told to end; return 0. Misuse exits with 2."""
    parser = _parser()
    options = vars(parser.parse_args(arguments))
    try:
        tokens = {name: _token(options[f"{name}_file"], variable) for name, variable in _TOKENS.items()}
        chosen = {name: options[name] for name in Settings.model_fields if options.get(name)}
        settings = Settings(**{"url": [os.environ.get(URL_VARIABLE) or DEFAULT_URL], **chosen, **tokens})
        ClientConfig(urls=settings.url, token=settings.client_token)
    except ValidationError as error:
        first = error.errors()[0]
        parser.error(f"--{str(first['loc'][0]).replace('_', '-')}: {first['msg']}")
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if bool(options["ssl_certfile"]) != bool(options["ssl_keyfile"]):
        parser.error("--ssl-certfile and --ssl-keyfile belong together")
    os.environ[SETTINGS_VARIABLE] = settings.model_dump_json()
    with ExitStack() as stack:
        if options["workers"] > 1:
            stack.callback(os.environ.pop, MULTIPROCESS_VARIABLE)
            os.environ[MULTIPROCESS_VARIABLE] = stack.enter_context(tempfile.TemporaryDirectory(prefix="clip-gateway-"))
        uvicorn.run(
            "clip_client.gateway.app:gateway_app",
            factory=True,
            http=Connection,
            ws="none",
            log_level="info",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(settings.timeout_s) + 1,
            **{name: options[name] for name in ("host", "port", "workers", "ssl_certfile", "ssl_keyfile")},
        )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="clip-gateway",
        description="Serve a Triton of clip-serve over HTTP as OpenAI, infinity and Immich's machine learning do.",
        epilog=f"{' and '.join(_TOKENS.values())} in the environment do what the token files do.",
    )
    add = parser.add_argument
    defaults = {
        "url": f"{URL_VARIABLE}, else {DEFAULT_URL}",
        "model": "clip",
        "immich_upstream": "none",
        "fetch_urls": "off",
    }
    for name, field in Settings.model_fields.items():
        option, text = f"--{name.replace('_', '-')}", field.description
        if name in _TOKENS:
            add(f"{option}-file", type=Path, metavar="FILE", help=f"{text} (default: none)")
        else:
            action = "store_true" if field.default is False else "append" if name in ("url", "model") else "store"
            add(option, action=action, help=f"{text} (default: {defaults.get(name, field.default)})")
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s, which is this machine only)")
    add("--port", type=int, default=8080, metavar="N", help="default: %(default)s")
    add("--workers", type=int, default=1, metavar="N", help="processes (default: %(default)s)")
    add("--ssl-certfile", type=Path, metavar="FILE", help="serve HTTPS with this certificate chain (PEM)")
    add("--ssl-keyfile", type=Path, metavar="FILE", help="private key of --ssl-certfile")
    return parser


def _token(file: Path | None, variable: str) -> str | None:
    text = os.environ.get(variable, "") if file is None else file.read_text(encoding="ascii")
    if file is not None and not text.strip():
        raise ValueError(f"{file} holds no token")
    return text.strip() or None


if __name__ == "__main__":
    sys.exit(main())
