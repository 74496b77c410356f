"""The command ``clip-gateway``, which serves the gateway with uvicorn."""

from __future__ import annotations

import argparse
import os
import ssl
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from clip_client._client import URL_VARIABLE, make_config
from clip_client._endpoint import DEFAULT_URL, Endpoint
from clip_client._errors import ModelNotReady
from clip_client.cli.options.credentials import add_credential_options, read_credentials, read_token, with_options
from preprocess_ensemble.command_line import Parser, count, port, seconds, try_port, user_path
from preprocess_ensemble.contract import DEFAULT_NAME
from preprocess_ensemble.errors import ReportedError, pip_install
from preprocess_ensemble.pem_files import check_client_files, load_pair

try:
    import uvicorn
    from starlette.applications import Starlette
    from uvicorn.config import LOGGING_CONFIG

    from clip_client.gateway.app import COUNTS_FOLDER, gateway_app
    from clip_client.gateway.service import HEALTH_S
except ModuleNotFoundError as missing:
    sys.exit(f"clip-gateway: {missing.name} is not installed; install it with: {pip_install('gateway')}")

_CALLERS_VARIABLE: Final = "CLIP_GATEWAY_TOKEN"  # the token that callers must send
_LOG: Final = {"handlers": ["default"], "level": "INFO", "propagate": False}
"""The gateway's log, which uvicorn writes to standard error among its own lines."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``clip-gateway`` until it is told to end; return 0, or 1 if it cannot start. Misuse exits with 2."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    try:
        _check_files(parsed)
        make_app = _make_app(parsed)
        for name in parsed.model or [DEFAULT_NAME]:
            make_config(parsed.url, model=name).endpoints[0].require_model()
    except ModelNotReady as error:
        sys.stderr.write(f"clip-gateway: {error.message}\n")
        return 1
    except (ValueError, ReportedError) as error:
        parser.error(with_options(str(error)))
    host = parsed.host or "0.0.0.0"  # uvicorn listens on all addresses if the host is empty
    try:
        try_port(host, parsed.port)
    except OSError as error:
        # uvicorn would say it in five lines.
        problem = f"port {parsed.port} on {host} cannot be used ({error.strerror})"
        remedy = "stop the program that uses it, or choose another with --port or --host"
        sys.stderr.write(f"clip-gateway: {problem}: {remedy}\n")
        return 1
    with ExitStack() as stack:
        if parsed.workers > 1:
            os.environ[COUNTS_FOLDER] = stack.enter_context(TemporaryDirectory(prefix="clip-gateway-"))
            stack.callback(os.environ.pop, COUNTS_FOLDER)
        uvicorn.run(
            make_app if parsed.workers == 1 else "clip_client.gateway.command:worker_app",
            factory=True,
            http="h11",
            ws="none",
            log_config={**LOGGING_CONFIG, "loggers": {**LOGGING_CONFIG["loggers"], "clip_client.gateway": _LOG}},
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(max(parsed.timeout_s, HEALTH_S)) + 1,
            **{name: getattr(parsed, name) for name in ("host", "port", "workers", "ssl_certfile", "ssl_keyfile")},
        )
    return 0


def worker_app() -> Starlette:
    """Make the application of a worker process, which has the arguments of its parent in ``sys.argv``."""
    return _make_app(_parser().parse_args())()


def _make_app(options: argparse.Namespace) -> Callable[[], Starlette]:
    limits = {"timeout_s": options.timeout_s, "max_image_bytes": options.max_body_bytes}
    config = make_config(options.url, **limits, **read_credentials(options))
    token = read_token(options.callers_token_file, "--callers-token-file", _CALLERS_VARIABLE)
    if config.token and not token and not Endpoint(host=options.host).is_loopback:
        remedy = "name the token that they must send with --callers-token-file, or listen on 127.0.0.1"
        raise ValueError(f"callers on other machines would use the token for Triton: {remedy}")
    return partial(gateway_app, config, options.model or [DEFAULT_NAME], token)


def _check_files(options: argparse.Namespace) -> None:
    """Raise ValueError or ReportedError if a file cannot be used. Otherwise uvicorn would restart workers forever."""
    if bool(options.ssl_certfile) != bool(options.ssl_keyfile):
        raise ValueError("--ssl-certfile and --ssl-keyfile belong together")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if options.ssl_certfile:
        load_pair(context, options.ssl_certfile, options.ssl_keyfile, "--ssl-certfile and --ssl-keyfile")
    check_client_files(options.ca_certificate, options.client_certificate, options.client_key)
    for path in vars(options).values():
        if options.workers > 1 and isinstance(path, Path) and path.is_fifo():
            raise ValueError(f"{path} is a pipe, which only one process can read: name a file, or omit --workers")


def _parser() -> Parser:
    parser = Parser(
        prog="clip-gateway",
        usage="%(prog)s [options]",
        description="Serve the vectors of a Triton server over HTTP, at the paths of OpenAI's and infinity's APIs.",
    )
    add = parser.add_argument
    text = "URL of a server, as for clip-client; repeat the option for several servers with the same models"
    add("--url", action="append", metavar="U", help=f"{text} (default: {URL_VARIABLE}, else {DEFAULT_URL})")
    text = "name of a model to serve; repeat the option for several models; the first answers requests without a model"
    add("--model", action="append", metavar="NAME", help=f"{text} (default: {DEFAULT_NAME})")
    text = "seconds for the vectors of one request; allow for a restart of Triton (default: %(default)s)"
    add("--timeout-s", type=seconds, default=30.0, metavar="S", help=text)
    text = "most bytes of one request (default: %(default)s)"
    add("--max-body-bytes", type=count, default=64 * 2**20, metavar="N", help=text)
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s, which is this machine only)")
    add("--port", type=port, default=8080, metavar="N", help="default: %(default)s")
    add("--workers", type=count, default=1, metavar="N", help="processes (default: %(default)s)")
    text = f"file with the token that callers must send, in one line (default: {_CALLERS_VARIABLE}, else none)"
    add("--callers-token-file", type=user_path, metavar="FILE", help=text)
    add("--ssl-certfile", type=user_path, metavar="FILE", help="serve HTTPS with this certificate chain (PEM)")
    add("--ssl-keyfile", type=user_path, metavar="FILE", help="private key of --ssl-certfile")
    add_credential_options(parser, "TLS and token towards Triton")
    parser.add_version_option()
    return parser


if __name__ == "__main__":
    sys.exit(main())
