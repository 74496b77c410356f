"""The command ``clip-serve``: run Triton on a model repository and keep it serving."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.model_repository.location import default_repository
from preprocess_ensemble.runtimes.precision import PRECISION_VARIABLE, PRECISIONS
from preprocess_ensemble.serving.first_export import Stopped, export_if_missing
from preprocess_ensemble.serving.health_endpoint import serve_health
from preprocess_ensemble.serving.launcher import NVIDIA_SERVER, check_packages
from preprocess_ensemble.serving.logs import JsonFormatter, print_line
from preprocess_ensemble.serving.preflight import check_log_file, check_ports, check_repository
from preprocess_ensemble.serving.supervisor import Supervisor, SupervisorConfig
from preprocess_ensemble.serving.tensorrt import PRECISIONS as TENSORRT_PRECISIONS
from preprocess_ensemble.serving.tensorrt import StagedRepository, check_tensorrt, default_cache
from preprocess_ensemble.serving.tls import ServerTls
from preprocess_ensemble.serving.triton_backend import TritonBackend
from preprocess_ensemble.serving.triton_process import ServeConfig

if TYPE_CHECKING:
    from preprocess_ensemble.serving.probe import Probe

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``clip-serve``; return 0 after a requested stop and 1 after a failure. Misuse exits with 2."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.triton_arguments and not options.triton_arguments[0].startswith("-"):
        parser.error(f"unknown argument {options.triton_arguments[0]!r}: put arguments for tritonserver after --")
    if options.pretrained is not None and options.model is None:
        parser.error("--pretrained needs --model")
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(JsonFormatter() if options.log_json else logging.Formatter("clip-serve: %(message)s"))
    logging.basicConfig(handlers=[output], level=logging.WARNING)
    tls = _tls(parser, options)
    _check_http(parser, options)
    _check_precision(parser, options)
    config = ServeConfig(
        repository=options.repository,
        host=options.host,
        grpc_port=options.grpc_port,
        http_port=options.http_port,
        metrics_port=options.metrics_port,
        http_host=options.http_host or ServeConfig.http_host,
        tls=tls,
        open_statistics=options.open_statistics,
        canary_timeout_s=options.canary_timeout_s,
        log_file=options.log_file,
        extra=tuple(options.triton_arguments),
        precision=options.precision,
    )
    stage = options.tensorrt and partial(
        StagedRepository, config.repository, cache=options.tensorrt_cache, precision=options.tensorrt
    )
    supervision = SupervisorConfig(
        interval_s=options.canary_interval_s,
        frozen_after_s=options.frozen_after_s,
        start_timeout_s=options.start_timeout_s,
    )
    try:
        check_packages()
        check_ports(_addresses(config, options.health_port))
        if config.log_file is not None:
            check_log_file(config.log_file)
        if stage:
            check_tensorrt()
        if options.model is not None:
            export_if_missing(config.repository, options.model, options.pretrained, log_lines=options.log_json)
        check_repository(config.repository)
        asyncio.run(_serve(config, supervision, options.health_port, stage))
    except Stopped:
        sys.stderr.write("clip-serve: stopped before the model was complete; the next start continues\n")
    except (ReportedError, OSError) as error:
        sys.stderr.write(f"clip-serve: {error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="clip-serve",
        description="Run Triton on a model repository and keep it serving: clip-serve embeds a known image every few "
        "seconds and restarts Triton if that fails.",
        epilog="Arguments after -- go to tritonserver unchanged. SIGUSR1 drains Triton and restarts it with the "
        "present contents of the repository.",
    )
    parser.add_argument(
        "--repository",
        type=Path,
        default=default_repository(),
        metavar="DIR",
        help="default: triton_models in this folder if it is there, else a folder of yours; now %(default)s",
    )
    parser.add_argument(
        "--model",
        metavar="M",
        help="export this model with clip-export first, unless the repository has it; the weights are downloaded",
    )
    parser.add_argument(
        "--pretrained", metavar="TAG|PATH|random[:SEED]", help="weights of --model (default: those of clip-export)"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s, which is this machine only)"
    )
    parser.add_argument(
        "--http-host", metavar="HOST", help="address for --http-port; --host does not change it (default: 127.0.0.1)"
    )
    tls = parser.add_argument_group("TLS on gRPC (PEM files)")
    for option, text in (
        ("--tls-certificate", "the server's certificate or certificate chain"),
        ("--tls-key", "private key of --tls-certificate"),
        ("--tls-client-ca", "require a client certificate from this authority"),
        ("--canary-certificate", "client certificate of clip-serve's own requests (default: the server's)"),
        ("--canary-key", "private key of --canary-certificate"),
    ):
        tls.add_argument(option, type=Path, metavar="FILE", help=text)
    parser.add_argument("--grpc-port", type=_port, default=8001, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--http-port",
        type=_port,
        metavar="N",
        help="also serve Triton's HTTP on this port; it has no TLS and no size limits (default: no HTTP)",
    )
    parser.add_argument("--metrics-port", type=_port, default=8002, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--health-port",
        type=_port,
        metavar="N",
        help="answer GET /healthz on this port: 200 while images can be embedded, otherwise 503 and the step that "
        "fails (default: no health port)",
    )
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="precision of the model on a CPU; auto takes what is fastest of fp32 and bf16 when it is first timed, if "
        f"its vectors agree with fp32 (default: {PRECISION_VARIABLE} of the environment, else the parameter "
        "precision in clip_encoder/config.pbtxt, else auto)",
    )
    parser.add_argument(
        "--tensorrt",
        nargs="?",
        const=TENSORRT_PRECISIONS[0],
        choices=TENSORRT_PRECISIONS,
        help="run the model on TensorRT, in fp16 by default; clients use it as before. The first start builds an "
        "engine, which takes minutes (see --start-timeout-s)",
    )
    parser.add_argument(
        "--tensorrt-cache",
        type=Path,
        default=default_cache(),
        metavar="DIR",
        help="directory for TensorRT's engines and timings (default: %(default)s)",
    )
    parser.add_argument(
        "--open-statistics",
        action="store_true",
        help="let every client read how much each model is used; perf_analyzer needs it",
    )
    parser.add_argument("--log-file", type=Path, metavar="FILE", help="append all output of Triton to this file")
    parser.add_argument("--log-json", action="store_true", help="log one JSON object per line")

    def add_duration(option: str, default: float, text: str) -> None:
        parser.add_argument(option, type=_seconds, default=default, metavar="S", help=f"{text} (default: %(default)s)")

    add_duration("--canary-interval-s", SupervisorConfig.interval_s, "pause between two canaries")
    add_duration(
        "--canary-timeout-s",
        ServeConfig.canary_timeout_s,
        "after this time without an answer the server counts as overloaded or frozen",
    )
    add_duration(
        "--frozen-after-s",
        SupervisorConfig.frozen_after_s,
        "restart a server that finishes no request and does not compute for this long, or that computes without "
        "finishing a request for fifteen times as long",
    )
    add_duration("--start-timeout-s", SupervisorConfig.start_timeout_s, "time limit for loading the models")
    parser.add_argument("triton_arguments", nargs="*", metavar="-- ARGUMENT", help=argparse.SUPPRESS)
    return parser


def _tls(parser: argparse.ArgumentParser, options: argparse.Namespace) -> ServerTls | None:
    if (options.tls_certificate is None) != (options.tls_key is None):
        parser.error("--tls-certificate and --tls-key belong together")
    if (options.canary_certificate is None) != (options.canary_key is None):
        parser.error("--canary-certificate and --canary-key belong together")
    if options.tls_client_ca is not None and options.tls_certificate is None:
        parser.error("--tls-client-ca needs --tls-certificate and --tls-key")
    if options.canary_certificate is not None and options.tls_client_ca is None:
        parser.error("--canary-certificate needs --tls-client-ca")
    if options.tls_certificate is None:
        return None
    return ServerTls(
        certificate=options.tls_certificate,
        key=options.tls_key,
        client_ca=options.tls_client_ca,
        canary_certificate=options.canary_certificate,
        canary_key=options.canary_key,
    )


def _check_http(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.http_host is not None and options.http_port is None:
        parser.error("--http-host needs --http-port")
    opens_http = options.http_port is not None or any(
        argument.startswith(("--http-port", "--allow-http")) for argument in options.triton_arguments
    )
    if opens_http and options.tls_client_ca is not None:
        parser.error("--http-port would let clients in without the certificate that --tls-client-ca requires")


def _check_precision(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.precision is not None and options.tensorrt is not None:
        parser.error(f"--precision is for CPUs: use --tensorrt {' or --tensorrt '.join(TENSORRT_PRECISIONS)}")
    if options.precision == "bf16" and NVIDIA_SERVER.is_file():
        parser.error("--precision bf16 needs the Triton that pip installs: this one has the C++ ONNX Runtime backend")


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port: use a number from 1 to 65535")
    return int(text)


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(text)) < float("inf"):
            return seconds
    raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")


def _addresses(config: ServeConfig, health_port: int | None) -> dict[str, tuple[str, int]]:
    addresses = {"grpc": (config.host, config.grpc_port), "metrics": (config.host, config.metrics_port)}
    if config.http_port is not None:
        addresses["http"] = (config.http_host, config.http_port)
    if health_port is not None:
        addresses["health"] = (config.host, health_port)
    return addresses


async def _serve(
    config: ServeConfig,
    supervision: SupervisorConfig,
    health_port: int | None,
    stage: Callable[[Path], StagedRepository] | None,
) -> None:
    repository = config.repository
    _call_without_proxy(config.client_host.strip("[]"))
    async with contextlib.AsyncExitStack() as stack:
        staged = None
        if stage is not None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="clip-serve-")))
            staged = stage(directory)
            config = replace(config, repository=directory)
        backend = await stack.enter_async_context(contextlib.aclosing(TritonBackend(config, staged)))
        supervisor = Supervisor(backend, supervision)
        loop = asyncio.get_running_loop()
        stops = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
            stops.append(signal.SIGHUP)
        for name in stops:
            loop.add_signal_handler(name, supervisor.stop)
        loop.add_signal_handler(signal.SIGUSR1, _reload, supervisor, repository, config.tls)
        if health_port is not None:
            await stack.enter_async_context(serve_health(config.host, health_port, supervisor.report))

        def announce(probe: Probe) -> None:
            host = config.client_host
            http = "" if config.http_port is None else f"http {config.http_host}:{config.http_port}, "
            print_line(
                f"ready: grpc {host}:{config.grpc_port}, {http}metrics {host}:{config.metrics_port}, "
                f"model {probe.model_id}\n"
            )

        await supervisor.run(announce)


def _reload(supervisor: Supervisor, repository: Path, tls: ServerTls | None) -> None:
    """Reload if the repository and the certificates are usable; otherwise the present model keeps serving."""
    try:
        check_repository(repository)
        if tls is not None:
            tls.check()
    except (ReportedError, OSError) as error:
        logger.error("reload rejected; the present model keeps serving: %s", error)
        return
    supervisor.reload()


def _call_without_proxy(host: str) -> None:
    """Exempt ``host`` from the environment's proxy, which gRPC would use even for calls to loopback."""
    for name in ("no_proxy", "no_grpc_proxy"):  # if the second is set, gRPC reads only that
        value = os.environ.get(name) or os.environ.get(name.upper())
        if value or name == "no_proxy":
            os.environ[name] = ",".join(filter(None, (value, host)))


if __name__ == "__main__":
    sys.exit(main())
