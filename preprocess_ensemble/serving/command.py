"""The command ``clip-serve``: run Triton on a model repository and keep it serving."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.model_repository.location import default_repository
from preprocess_ensemble.runtimes.precision import PRECISION_VARIABLE, PRECISIONS
from preprocess_ensemble.serving.config import ServeConfig
from preprocess_ensemble.serving.first_export import Stopped, export_if_missing, stop_signals
from preprocess_ensemble.serving.health_endpoint import serve_health
from preprocess_ensemble.serving.logs import JsonFormatter, append_output_to, print_line
from preprocess_ensemble.serving.preflight import check_ports, check_repository
from preprocess_ensemble.serving.supervisor import Supervisor
from preprocess_ensemble.serving.tensorrt import PRECISIONS as TENSORRT_PRECISIONS
from preprocess_ensemble.serving.tensorrt import check_tensorrt, default_cache
from preprocess_ensemble.serving.tls import ServerTls
from preprocess_ensemble.serving.triton_backend import Probe, TritonBackend
from preprocess_ensemble.tritonserver import TRITON_VARIABLE, find_triton

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``clip-serve``; return 0 after a requested stop and 1 after a failure. Misuse exits with 2."""
    parser = _parser()
    options = vars(parser.parse_args(arguments))
    if triton := options.pop("triton"):
        os.environ[TRITON_VARIABLE] = str(triton)  # for the launcher, too
    tls = ServerTls(**{field.name: options.pop(field.name) for field in fields(ServerTls)})
    options["only"] = tuple(options["only"])
    config = ServeConfig(**options, tls=tls if tls.certificate else None)
    if mistake := _mistake(config, tls):
        parser.error(mistake)
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(JsonFormatter() if config.log_json else logging.Formatter("clip-serve: %(message)s"))
    logging.basicConfig(handlers=[output], level=logging.WARNING)
    try:
        if find_triton().cpp_backend and config.precision == "bf16":
            parser.error(
                "--precision bf16 needs the Triton that pip installs: this one has the C++ ONNX Runtime backend"
            )
        check_ports(config.addresses)
        if config.tensorrt:
            check_tensorrt()
        with append_output_to(config.log_file) if config.log_file else contextlib.nullcontext():
            export_if_missing(config)
            check_repository(config.repository, config.only)
            asyncio.run(_serve(config))
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
    add = parser.add_argument
    tls = parser.add_argument_group("TLS on gRPC (PEM files)")

    def add_file(option: str, dest: str, text: str) -> None:
        tls.add_argument(option, dest=dest, type=Path, metavar="FILE", help=text)

    def add_port(option: str, default: int | None, text: str = "default: %(default)s") -> None:
        add(option, type=_port, default=default, metavar="N", help=text)

    def add_seconds(option: str, default: float, text: str) -> None:
        add(option, type=_seconds, default=default, metavar="S", help=f"{text} (default: %(default)s)")

    repository = "default: CLIP_MODEL, else triton_models in this folder, else your data folder; now %(default)s"
    add("--repository", type=Path, default=default_repository(), metavar="DIR", help=repository)
    model = "export this model with clip-export first, unless the repository has it; the weights are downloaded"
    add("--model", metavar="M", help=model)
    add("--pretrained", metavar="TAG|PATH|random[:SEED]", help="weights of --model (default: those of clip-export)")
    only = "serve only the model that was exported with this --name; may be given several times (default: all)"
    add("--only", action="append", default=[], metavar="NAME", help=only)
    triton = f"an unpacked /opt/tritonserver of NVIDIA to run (default: {TRITON_VARIABLE}, else an installed one)"
    add("--triton", type=Path, metavar="DIR", help=triton)
    host = "address to listen on (default: %(default)s, which is this machine only)"
    add("--host", default=ServeConfig.host, help=host)
    http_host = "address for --http-port; --host does not change it (default: %(default)s)"
    add("--http-host", default=ServeConfig.http_host, metavar="HOST", help=http_host)
    add_file("--tls-certificate", "certificate", "the server's certificate or certificate chain")
    add_file("--tls-key", "key", "private key of --tls-certificate")
    add_file("--tls-client-ca", "client_ca", "require a client certificate from this authority")
    own = "client certificate of clip-serve's own requests (default: the server's)"
    add_file("--canary-certificate", "canary_certificate", own)
    add_file("--canary-key", "canary_key", "private key of --canary-certificate")
    add_port("--grpc-port", ServeConfig.grpc_port)
    http = "also serve Triton's HTTP on this port; it has no TLS and no size limits (default: no HTTP)"
    add_port("--http-port", None, http)
    add_port("--metrics-port", ServeConfig.metrics_port)
    health = "answer GET /healthz on this port: 200 while images can be embedded, else 503 and the step that fails"
    add_port("--health-port", None, f"{health} (default: no health port)")
    add(
        "--precision",
        choices=PRECISIONS,
        help="precision of the model on a CPU; auto takes what is fastest of fp32 and bf16 when it is first timed, if "
        f"its vectors agree with fp32 (default: {PRECISION_VARIABLE} of the environment, else the parameter "
        "precision in clip_encoder/config.pbtxt, else auto)",
    )
    add(
        "--tensorrt",
        nargs="?",
        const=TENSORRT_PRECISIONS[0],
        choices=TENSORRT_PRECISIONS,
        help="run the image tower on TensorRT, in fp16 by default; clients use it as before. The first start builds "
        "an engine, which takes minutes (see --start-timeout-s)",
    )
    cache = "directory for TensorRT's engines and timings (default: %(default)s)"
    add("--tensorrt-cache", type=Path, default=default_cache(), metavar="DIR", help=cache)
    statistics = "let every client read how much each model is used; perf_analyzer needs it"
    add("--open-statistics", action="store_true", help=statistics)
    add("--log-file", type=Path, metavar="FILE", help="append all output of Triton to this file")
    add("--log-json", action="store_true", help="log one JSON object per line")
    add_seconds("--canary-interval-s", ServeConfig.canary_interval_s, "pause between two canaries")
    overloaded = "after this time without an answer the server counts as overloaded or frozen"
    add_seconds("--canary-timeout-s", ServeConfig.canary_timeout_s, overloaded)
    frozen = (
        "restart a server that finishes no request and does not compute for this long, or that computes without "
        "finishing a request for fifteen times as long"
    )
    add_seconds("--frozen-after-s", ServeConfig.frozen_after_s, frozen)
    add_seconds("--start-timeout-s", ServeConfig.start_timeout_s, "time limit for loading the models")
    add("extra", nargs="*", metavar="-- ARGUMENT", help=argparse.SUPPRESS)
    return parser


def _mistake(config: ServeConfig, tls: ServerTls) -> str:
    """Return one sentence about options that contradict each other, else an empty text."""
    opens_http = config.http_port is not None or any(
        argument.startswith(("--http-port", "--allow-http")) for argument in config.extra
    )
    checks = (
        (
            config.extra and not config.extra[0].startswith("-"),
            f"unknown argument {' '.join(config.extra[:1])!r}: put arguments for tritonserver after --",
        ),
        (config.pretrained and not config.model, "--pretrained needs --model"),
        (bool(tls.certificate) != bool(tls.key), "--tls-certificate and --tls-key belong together"),
        (
            bool(tls.canary_certificate) != bool(tls.canary_key),
            "--canary-certificate and --canary-key belong together",
        ),
        (tls.client_ca and not tls.certificate, "--tls-client-ca needs --tls-certificate and --tls-key"),
        (tls.canary_certificate and not tls.client_ca, "--canary-certificate needs --tls-client-ca"),
        (config.http_host != ServeConfig.http_host and not config.http_port, "--http-host needs --http-port"),
        (
            tls.client_ca and opens_http,
            "--http-port would let clients in without the certificate that --tls-client-ca requires",
        ),
        (
            config.precision and config.tensorrt,
            f"--precision is for CPUs: use --tensorrt {' or --tensorrt '.join(TENSORRT_PRECISIONS)}",
        ),
    )
    return next((sentence for applies, sentence in checks if applies), "")


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port: use a number from 1 to 65535")
    return int(text)


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(text)) < float("inf"):
            return seconds
    raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")


async def _serve(config: ServeConfig) -> None:
    _call_without_proxy(config.client_host.strip("[]"))

    def reload() -> None:
        """Reload if the repository and the certificates are usable; otherwise the present model keeps serving."""
        try:
            check_repository(config.repository, config.only)
            if config.tls is not None:
                config.tls.check()
        except (ReportedError, OSError) as error:
            logger.error("reload rejected; the present model keeps serving: %s", error)
        else:
            supervisor.reload()

    def announce(probe: Probe) -> None:
        http = "" if config.http_port is None else f"http {config.http_host}:{config.http_port}, "
        host = config.client_host
        grpc, metrics = f"{host}:{config.grpc_port}", f"{host}:{config.metrics_port}"
        print_line(f"ready: grpc {grpc}, {http}metrics {metrics}, model {probe.model_id}\n")

    async with contextlib.AsyncExitStack() as stack:
        backend = await stack.enter_async_context(contextlib.aclosing(TritonBackend(config)))
        supervisor = Supervisor(backend, config)
        loop = asyncio.get_running_loop()
        for number in stop_signals():
            loop.add_signal_handler(number, supervisor.stop)
        loop.add_signal_handler(signal.SIGUSR1, reload)
        if config.health_port is not None:
            await stack.enter_async_context(serve_health(config.host, config.health_port, supervisor.report))
        await supervisor.run(announce)


def _call_without_proxy(host: str) -> None:
    """Exempt ``host`` from the environment's proxy, which gRPC would use even for calls to loopback."""
    for name in ("no_proxy", "no_grpc_proxy"):  # if the second is set, gRPC reads only that
        value = os.environ.get(name) or os.environ.get(name.upper())
        if value or name == "no_proxy":
            os.environ[name] = ",".join(filter(None, (value, host)))


if __name__ == "__main__":
    sys.exit(main())
