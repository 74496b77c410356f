"""The command ``clip-gateway``: serve the gateway with uvicorn."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from clip_client._client import URL_VARIABLE
from clip_client._config import ClientConfig
from clip_client._endpoint import DEFAULT_URL

try:
    import uvicorn
    from pydantic import ValidationError

    from clip_client.gateway.settings import MULTIPROCESS_VARIABLE, Settings
except ModuleNotFoundError as missing:
    sys.exit(f"clip-gateway: {missing.name} is not installed; install it with: pip install 'clip-triton[gateway]'")

TOKEN_VARIABLE: Final = "CLIP_GATEWAY_TOKEN"
CLIENT_TOKEN_VARIABLE: Final = "CLIP_TOKEN"
"""Tokens come from the environment or a file: other users could read an option in ``ps``."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``clip-gateway`` until it is told to end; return 0. Misuse exits with 2."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        settings = Settings(
            urls=tuple(options.url or [os.environ.get(URL_VARIABLE) or DEFAULT_URL]),
            models=tuple(options.model or Settings.model_fields["models"].default),
            token=_token(options.token_file, TOKEN_VARIABLE),
            client_token=_token(options.client_token_file, CLIENT_TOKEN_VARIABLE),
            **{name: getattr(options, name) for name in _LIMITS},
            fetch_urls=options.fetch_urls,
            immich_upstream=options.immich_upstream,
        )
        ClientConfig(urls=settings.urls, token=settings.client_token)
    except ValidationError as error:
        first = error.errors()[0]
        parser.error(f"--{str(first['loc'][0]).replace('_', '-')}: {first['msg']}")
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if bool(options.ssl_certfile) != bool(options.ssl_keyfile):
        parser.error("--ssl-certfile and --ssl-keyfile belong together")
    settings.to_environment()
    with ExitStack() as stack:
        if options.workers > 1:
            stack.callback(os.environ.pop, MULTIPROCESS_VARIABLE)
            os.environ[MULTIPROCESS_VARIABLE] = stack.enter_context(tempfile.TemporaryDirectory(prefix="clip-gateway-"))
        uvicorn.run(
            "clip_client.gateway.app:app_from_environment",
            factory=True,
            host=options.host,
            port=options.port,
            workers=options.workers,
            ssl_certfile=options.ssl_certfile,
            ssl_keyfile=options.ssl_keyfile,
            ws="none",
            log_level="info",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(settings.timeout_s) + 1,
        )
    return 0


_LIMITS: Final = {
    "timeout_s": (float, "S", "seconds for the vectors of one request; Triton may restart meanwhile"),
    "max_body_bytes": (int, "N", "size of one request"),
    "max_held_bytes": (int, "N", "size of all requests that a process holds at a time; others get 503"),
    "max_items": (int, "N", "images and texts in one request"),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="clip-gateway",
        description="Serve a Triton of clip-serve over HTTP as OpenAI, infinity and Immich's machine learning do.",
        epilog=f"{TOKEN_VARIABLE} and {CLIENT_TOKEN_VARIABLE} in the environment do what the token files do.",
    )
    add = parser.add_argument
    url = f"a server, as for clip-client; repeat it for several (default: {URL_VARIABLE}, else {DEFAULT_URL})"
    add("--url", action="append", metavar="U", help=url)
    add("--model", action="append", metavar="NAME", help="a model to serve; repeat it for several (default: clip)")
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s, which is this machine only)")
    add("--port", type=int, default=8080, metavar="N", help="default: %(default)s")
    add("--workers", type=int, default=1, metavar="N", help="processes (default: %(default)s)")
    add("--token-file", type=Path, metavar="FILE", help="bearer token that callers must send (default: none)")
    add("--client-token-file", type=Path, metavar="FILE", help="bearer token for Triton (default: none)")
    add("--ssl-certfile", type=Path, metavar="FILE", help="serve HTTPS with this certificate chain (PEM)")
    add("--ssl-keyfile", type=Path, metavar="FILE", help="private key of --ssl-certfile")
    add("--fetch-urls", action="store_true", help="fetch images from http(s) URLs, of the public Internet only")
    upstream = (
        "Immich's own machine-learning service, for what is not CLIP, such as http://immich-machine-learning:3003"
    )
    add("--immich-upstream", metavar="URL", help=upstream)
    for name, (kind, metavar, text) in _LIMITS.items():
        default = Settings.model_fields[name].default
        add(
            f"--{name.replace('_', '-')}",
            type=kind,
            default=default,
            metavar=metavar,
            help=f"{text} (default: {default})",
        )
    return parser


def _token(file: Path | None, variable: str) -> str | None:
    text = os.environ.get(variable, "") if file is None else file.read_text(encoding="ascii")
    if file is not None and not text.strip():
        raise ValueError(f"{file} holds no token")
    return text.strip() or None


if __name__ == "__main__":
    sys.exit(main())
