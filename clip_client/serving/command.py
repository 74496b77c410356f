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
from functools import partial
from pathlib import Path

from clip_client.serving.config import ServeConfig
from clip_client.serving.first_export import Stopped, export_if_missing, stop_signals
from clip_client.serving.health_endpoint import serve_health, serve_metrics
from clip_client.serving.logs import JsonFormatter, append_output_to, print_line
from clip_client.serving.preflight import check_ports, check_repository
from clip_client.serving.probed_triton import Probe, ProbedTriton
from clip_client.serving.supervisor import Supervisor
from clip_client.serving.tensorrt import check_gpu
from clip_client.serving.tls import ServerTls
from clip_client.serving.triton_process import reap_adopted
from preprocess_ensemble.command_line import Parser, port, seconds
from preprocess_ensemble.contract import PRECISIONS
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.model_repository.config import installed_passport
from preprocess_ensemble.model_repository.location import (
    MODEL_VARIABLE,
    PRETRAINED_VARIABLE,
    MisnamedModel,
    default_repository,
    model_to_export,
)
from preprocess_ensemble.runtimes.model import PRECISION_VARIABLE
from preprocess_ensemble.tritonserver.installation import TRITON_VARIABLE, Triton, find_triton

logger = logging.getLogger(__name__)
logger.setLevel(logging.INFO)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``clip-serve``; return 0 after a requested stop and 1 after a failure. Misuse exits with 2."""
    try:
        _run(_parser(), arguments)
    except MisnamedModel as error:
        sys.stderr.write(f"clip-serve: {error}\n")
        return 2
    except Stopped:
        sys.stderr.write("clip-serve: stopped before the model was complete; the next start continues\n")
    except (ReportedError, OSError) as error:
        sys.stderr.write(f"clip-serve: {error}\n")
        return 1
    return 0


def _run(parser: Parser, arguments: Sequence[str] | None) -> None:
    options = vars(parser.parse_args(arguments))
    model, weights = model_to_export()
    if options["model"] is None and model is not None:
        options |= {"model": model, "pretrained": options["pretrained"] or weights}
    if triton := options.pop("triton"):
        os.environ[TRITON_VARIABLE] = str(triton)  # for the launcher, too
    tls = ServerTls(**{field.name: options.pop(field.name) for field in fields(ServerTls)})
    options["only"] = tuple(options["only"])
    options["repository"] = options["repository"] or default_repository()
    config = ServeConfig(**options, tls=tls if tls.certificate else None)
    if mistake := _mistake(config, tls):
        parser.error(mistake)
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(JsonFormatter() if config.log_json else logging.Formatter("clip-serve: %(message)s"))
    logging.basicConfig(handlers=[output], level=logging.WARNING)
    triton = find_triton()  # or say at once how to get one, not after an export
    check_ports(config.addresses)
    with append_output_to(config.log_file) if config.log_file else contextlib.nullcontext():
        export_if_missing(config)
        _check_models(config, triton)
        asyncio.run(_serve(config, triton))


def _parser() -> Parser:
    parser = Parser(
        prog="clip-serve",
        usage="%(prog)s [options] [-- ARGUMENT_OF_TRITONSERVER ...]",
        description="Run Triton on a model repository and keep it serving: clip-serve embeds a known image every few "
        "seconds and restarts Triton if that fails.",
        epilog="Arguments after -- go to tritonserver unchanged. SIGUSR1 loads the current contents of the repository "
        "beside the running model, checks them, and switches.",
    )
    add = parser.add_argument
    tls = parser.add_argument_group("TLS on gRPC (PEM files)")

    def add_file(option: str, dest: str, text: str) -> None:
        tls.add_argument(option, dest=dest, type=Path, metavar="FILE", help=text)

    def add_port(option: str, default: int | None, text: str = "default: %(default)s") -> None:
        add(option, type=port, default=default, metavar="N", help=text)

    repository = "default: CLIP_REPOSITORY, else triton_models in this folder, else your data folder"
    add("--repository", type=Path, metavar="DIR", help=repository)
    model = (
        "export this model with clip-export first, unless the repository has it; the weights are downloaded (default: "
        f"the environment variable {MODEL_VARIABLE}, else none)"
    )
    add("--model", metavar="M", help=model)
    weights = f"weights of the model (default: {PRETRAINED_VARIABLE} if --model is not given, else clip-export's)"
    add("--pretrained", metavar="TAG|PATH|random[:SEED]", help=weights)
    only = "serve only the model that was exported with this --name; may be given several times (default: all)"
    add("--only", action="append", default=[], metavar="NAME", help=only)
    triton = f"an unpacked /opt/tritonserver of NVIDIA to run (default: {TRITON_VARIABLE}, else an installed one)"
    add("--triton", type=Path, metavar="DIR", help=triton)
    add("--host", default=ServeConfig.host, help="address to listen on (default: %(default)s, this machine only)")
    http_host = "address for --http-port; --host does not change it (default: %(default)s)"
    add("--http-host", default=ServeConfig.http_host, metavar="HOST", help=http_host)
    add_file("--tls-certificate", "certificate", "the server's certificate or certificate chain")
    add_file("--tls-key", "key", "private key of --tls-certificate")
    add_file("--tls-client-ca", "client_ca", "require a client certificate from this authority")
    certificate = "client certificate of clip-serve's own requests (default: the server's)"
    add_file("--canary-certificate", "canary_certificate", certificate)
    add_file("--canary-key", "canary_key", "private key of --canary-certificate")
    add_port("--grpc-port", ServeConfig.grpc_port)
    http = "also serve Triton's HTTP on this port; it has no TLS and no size limits (default: no HTTP)"
    add_port("--http-port", None, http)
    add_port("--metrics-port", ServeConfig.metrics_port)
    health = "answer GET /healthz on this port: 200 while images can be embedded, else 503 and the step that fails"
    add_port("--health-port", None, f"{health} (default: no health port)")
    add(
        "--precision",
        dest="compute_precision",
        choices=PRECISIONS,
        help="precision of the model on a CPU; auto takes the fastest on this processor (clip-client doctor names it) "
        "if its vectors agree with fp32. On a GPU the export decides, and fp32 means without TF32 (default: "
        f"{PRECISION_VARIABLE} of the environment, else precision in clip_encoder/config.pbtxt, else auto)",
    )
    statistics = "let every client read how much each model is used; perf_analyzer needs it"
    add("--open-statistics", action="store_true", help=statistics)
    add("--log-file", type=Path, metavar="FILE", help="append all output of Triton to this file")
    add("--log-json", action="store_true", help="log one JSON object per line")
    # Hidden, for tests and measurements: ServeConfig has the reasons for the values.
    for name in ("canary_interval_s", "canary_timeout_s", "frozen_after_s"):
        add(f"--{name.replace('_', '-')}", type=seconds, default=getattr(ServeConfig, name), help=argparse.SUPPRESS)
    start = "time limit for loading the models (default: %(default)s)"
    add("--start-timeout-s", type=seconds, default=ServeConfig.start_timeout_s, metavar="S", help=start)
    add("extra", nargs="*", metavar="-- ARGUMENT", help=argparse.SUPPRESS)
    parser.add_version_option()
    return parser


def _mistake(config: ServeConfig, tls: ServerTls) -> str:
    opens_http = any(argument.startswith(("--http-port", "--allow-http")) for argument in config.extra)
    if config.extra and not config.extra[0].startswith("-"):
        return f"unknown argument {config.extra[0]!r}: put arguments for tritonserver after --"
    if config.pretrained and not config.model:
        return "--pretrained needs --model"
    if bool(tls.certificate) != bool(tls.key):
        return "--tls-certificate and --tls-key belong together"
    if bool(tls.canary_certificate) != bool(tls.canary_key):
        return "--canary-certificate and --canary-key belong together"
    if tls.client_ca and not tls.certificate:
        return "--tls-client-ca needs --tls-certificate and --tls-key"
    if tls.canary_certificate and not tls.client_ca:
        return "--canary-certificate needs --tls-client-ca"
    if config.http_host != ServeConfig.http_host and not config.http_port:
        return "--http-host needs --http-port"
    if tls.client_ca and (config.http_port or opens_http):
        return "--http-port would let clients in without the certificate that --tls-client-ca requires"
    return ""


def _check_models(config: ServeConfig, triton: Triton) -> None:
    check_repository(config.repository, config.only)
    check_gpu(config, triton)
    for names in config.names:
        passport = installed_passport(config.repository, names)
        if passport is not None and passport.pretrained.startswith("random"):
            logger.warning(
                "the weights of %s are random: its similarities mean nothing; export a trained model with clip-export",
                passport.model,
            )


async def _serve(config: ServeConfig, triton: Triton) -> None:
    # Exempt this machine from the environment's proxy, which would be used even for calls to loopback.
    for name in ("no_proxy", "no_grpc_proxy"):  # if the second is set, gRPC reads only that
        value = os.environ.get(name) or os.environ.get(name.upper())
        if value or name == "no_proxy":
            hosts = (value, "127.0.0.1", config.client_host.strip("[]"))
            os.environ[name] = ",".join(filter(None, hosts))

    def reload() -> None:
        try:
            _check_models(config, triton)
            if config.tls is not None:
                config.tls.check()
        except (ReportedError, OSError) as error:
            logger.error("reload rejected; the current model keeps serving: %s", error)
        else:
            supervisor.reload()

    def announce(probe: Probe) -> None:
        hosts = {name: f"[{host}]" if ":" in host else host for name, (host, _) in config.addresses.items()}
        ports = ", ".join(f"{name} {hosts[name]}:{port}" for name, (_, port) in config.addresses.items())
        ready = f"ready: {ports}, model {probe.model_id}"
        if config.log_json:
            logger.info("%s", ready)
        else:
            print_line(f"{ready}\n")

    async with contextlib.AsyncExitStack() as stack:
        supervisor = Supervisor(partial(ProbedTriton.start, config), config)
        loop = asyncio.get_running_loop()
        for number in stop_signals():
            loop.add_signal_handler(number, supervisor.stop)
        loop.add_signal_handler(signal.SIGUSR1, reload)
        if os.getpid() == 1:
            loop.add_signal_handler(signal.SIGCHLD, reap_adopted)
        if config.health_port is not None:
            await stack.enter_async_context(serve_health(config.families, config.health_port, supervisor.report))
        metrics = serve_metrics(config.families, config.metrics_port, lambda: supervisor.metrics_url)
        await stack.enter_async_context(metrics)
        await supervisor.run(announce)


if __name__ == "__main__":
    sys.exit(main())
