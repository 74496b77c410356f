"""The checks of ``clip-client doctor``: this machine, its packages and a server. Also the table of the results."""

from __future__ import annotations

import platform
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from clip_client import ClientConfig, ClipError, ModelInfo
from clip_client._deadline import Deadline
from clip_client._endpoint import EndpointKind
from clip_client._health import run_health_checks
from clip_client._transports.factory import resolve_auto, transport_factory
from clip_client.dedup.text import counted
from preprocess_ensemble.command_line import DISTRIBUTION, try_port
from preprocess_ensemble.contract import ModelNames
from preprocess_ensemble.cores import usable_cores
from preprocess_ensemble.errors import ReportedError, pip_install
from preprocess_ensemble.model_repository.location import default_repository, has_model
from preprocess_ensemble.runtimes.model import PRECISION_VARIABLE
from preprocess_ensemble.runtimes.processor import OPENVINO, OPENVINO_BF16, Processor, row_of
from preprocess_ensemble.tritonserver.installation import find_triton, missing_libraries, open_vulnerabilities


class Level(StrEnum):
    OK = "ok"
    HINT = "hint"  # a part that only some commands need, or that is slow
    PROBLEM = "problem"  # a defect that keeps photos from being embedded


SERVER: Final = "server"
CLIENT: Final = "client"

_TITLES: Final = {SERVER: "The server, or the model in this process", CLIENT: "This machine"}
_MARKS: Final = {Level.OK: " ", Level.HINT: "-", Level.PROBLEM: "!"}
_COLOURS: Final = {Level.OK: "", Level.HINT: "\x1b[33m", Level.PROBLEM: "\x1b[1;31m"}
_PLAIN: Final = "\x1b[0m"


@dataclass(frozen=True, slots=True)
class Check:
    """One check; the fields are the keys of the JSON form."""

    about: str
    name: str
    value: str
    level: Level = Level.OK
    remedy: str = ""


def known_vulnerabilities(about: str, triton_version: str) -> Iterator[Check]:
    if vulnerabilities := open_vulnerabilities(triton_version):
        remedy = (
            "trust all who can connect, put Envoy in front, or run a newer release with: clip-serve --triton; see "
            "docs/security.md"
        )
        yield Check(about, "known holes", "; ".join(vulnerabilities), Level.HINT, remedy)


def table_lines(checks: Sequence[Check], *, width: int, colour: bool) -> Iterator[str]:
    """Yield the checks as lines for people, then a summary. Lines have at most ``width`` characters (at least 40)."""
    names = 2 + max(len(check.name) for check in checks)
    values = textwrap.TextWrapper(width=max(40, width), subsequent_indent=" " * (names + 2), break_on_hyphens=False)
    for about, title in _TITLES.items():
        yield title
        for check in checks:
            if check.about == about:
                line = values.fill(f"{_MARKS[check.level]} {check.name:{names}}{check.value}")
                yield f"{_COLOURS[check.level]}{line}{_PLAIN}" if colour and _COLOURS[check.level] else line
                if check.remedy:
                    yield values.fill(" " * (names + 2) + check.remedy)
        yield ""
    problems = sum(check.level is Level.PROBLEM for check in checks)
    hints = sum(check.level is Level.HINT for check in checks)
    if problems:
        yield f"! {counted(problems, 'problem')} to fix before photos can be embedded"
    if hints:
        yield f"- {counted(hints, 'hint')}"
    if not problems and not hints:
        yield "no problems found"


# The server.

_KINDS: Final = {"KIND_CPU": "CPU", "KIND_GPU": "GPU", "KIND_AUTO": "a GPU if the server has one, else the CPU"}
_LOAD_S: Final = 120.0  # seconds, at least, for the model in this process, which is loaded first


async def check_server(config: ClientConfig, *, origin: str, timeout_s: float) -> tuple[list[Check], bool]:
    """Check all servers; return the checks, and whether any answered. ``origin`` says where the URLs come from."""
    try:
        connect = transport_factory(config)
    except ImportError as error:
        remedy = f"install what this client needs with: {pip_install()}"
        lacking = Check(SERVER, "address", f"not asked, since gRPC does not import ({error})", Level.PROBLEM, remedy)
        return [lacking], False
    checks: list[Check] = []
    answered = False
    for endpoint in config.endpoints:
        if endpoint.kind is EndpointKind.AUTO:
            endpoint = await resolve_auto(endpoint, connect)
        checks.append(Check(SERVER, "address", f"{endpoint} ({origin})"))
        is_local, transport = endpoint.kind is EndpointKind.LOCAL, connect(endpoint, None)
        try:
            limit_s = max(timeout_s, _LOAD_S) if is_local else timeout_s
            report = await run_health_checks(transport, str(endpoint), Deadline(limit_s))
            if report.steps[0].ok and not is_local:
                answered = True
                checks += await _description(transport, endpoint.names, timeout_s)
        except ClipError as error:
            if report.ok:
                checks.append(Check(SERVER, "description", "incomplete", Level.PROBLEM, str(error)))
        finally:
            await transport.close()
        checks += [] if report.model is None else _model(report.model)
        failed = report.failed
        problem = (f"{failed.name}: failed", Level.PROBLEM, failed.message) if failed else (report.steps[-1].message,)
        checks.append(Check(SERVER, "health", *problem))
    return checks, answered


async def _description(transport: Any, names: ModelNames, timeout_s: float) -> list[Check]:
    server = await transport.ask("ServerMetadata", timeout_s)
    encoder = (await transport.ask("ModelConfig", timeout_s, name=names.encoder)).config
    preprocessor = (await transport.ask("ModelConfig", timeout_s, name=names.preprocess)).config
    kinds = [group.Kind.Name(group.kind) for group in encoder.instance_group]
    where = ", ".join(_KINDS.get(kind, kind) for kind in kinds) or "not said"
    hints = encoder.optimization.execution_accelerators
    accelerators = [one.name for one in (*hints.gpu_execution_accelerator, *hints.cpu_execution_accelerator)]
    accelerated = f" with {', '.join(accelerators)}" if accelerators else ""
    checks = [
        Check(SERVER, "Triton", f"{server.version} ({server.name})"),
        *known_vulnerabilities(SERVER, server.version),
        Check(SERVER, "provider", f"{encoder.backend or 'not said'}{accelerated}, on {where}"),
    ]
    if encoder.backend == "onnxruntime" and not accelerators:
        asked = "auto, by default"
        if "precision" in encoder.parameters:
            asked = f"{encoder.parameters['precision'].string_value}, by config.pbtxt"
        precision = (
            f"{asked}; --precision of clip-serve, or {PRECISION_VARIABLE} there, overrides it. "
            'Its log says what a model "runs on"'
        )
        checks.append(Check(SERVER, "precision", precision))
    return [
        *checks,
        Check(SERVER, "encoder threads", _threads(encoder, "intra_op_thread_count", "one for each core of the server")),
        Check(SERVER, "decoder threads", _threads(preprocessor, "decode_threads", "one for each core of the server")),
    ]


def _model(model: ModelInfo) -> Iterator[Check]:
    remedy = (
        "its weights are random and can only tell copies from other photos; export a trained model with: clip-export"
    )
    yield Check(SERVER, "model", model.id, *((Level.HINT, remedy) if model.is_random else ()))
    vectors = f"{model.dimension} numbers, {model.weights_dtype}, up to {model.max_batch_size} photos a request"
    yield Check(SERVER, "vectors", vectors)
    if model.runtime:
        yield Check(SERVER, "runs on", model.runtime)
    yield Check(SERVER, "preprocessing", model.preprocess_id)
    text = "none, so it embeds no texts" if model.text is None else f"up to {model.text.context_length} tokens"
    yield Check(SERVER, "text tower", text)
    yield Check(SERVER, "fingerprint", "{} {}".format(*model.fingerprint))


def _threads(config: Any, parameter: str, otherwise: str) -> str:
    threads: str = config.parameters[parameter].string_value if parameter in config.parameters else "0"
    return otherwise if threads in ("", "0") else threads


# This machine.

_NEEDED: Final = ("anyio", "grpcio", "numpy", "pillow", "protobuf", "tritonclient")

_OPTIONAL: Final = (
    ("rich", "embed, search and dedup need it", "cli"),
    ("pyarrow", "Parquet files need it", "cli"),
    ("jinja2", "the page of dedup needs it", "cli"),
    (
        "opencv-python-headless opencv-python opencv-contrib-python-headless opencv-contrib-python",
        "proving copies by alignment needs it",
        "dedup",
    ),
    ("faiss-cpu faiss-gpu", "finding similar photos needs it", "dedup"),
    ("onnxruntime onnxruntime-gpu onnxruntime-openvino", "embedding without a server needs it", "local"),
    ("pillow-heif", "HEIC photos need it", "phone"),
    ("pillow-jxl-plugin", "JPEG XL images need it", "phone"),
)
"""(alternative distributions, of which one is enough; what needs them; the extra that installs one)."""

_SHARED_MEMORY: Final = Path("/dev/shm")
_SHARED_MEMORY_BYTES: Final = 256 * 2**20
"""A batch of 32 rows of pixels takes 5 MB, and a large request hundreds. Docker gives 64 MiB."""

_NVIDIA_DEVICE: Final = Path("/dev/nvidiactl")  # file that exists if the driver of a GPU is loaded
_PORTS: Final = (("gRPC", 8001), ("metrics", 8002))  # default ports of clip-serve and tritonserver


def check_machine(*, server_answers: bool) -> Iterator[Check]:
    yield from _packages()
    yield _decoder()
    yield from _processor()
    yield from _shared_memory()
    yield from _server_parts(server_answers)
    yield _ports(server_answers)


def _check(name: str, value: str, remedy: str = "") -> Check:
    return Check(CLIENT, name, value, Level.HINT if remedy else Level.OK, remedy)


def _packages() -> Iterator[Check]:
    yield _check(DISTRIBUTION, _version(DISTRIBUTION) or "not installed, run from its source")
    system = f"{platform.python_implementation()} {platform.python_version()}, {platform.system()}"
    too_new = sys.version_info >= (3, 13)
    yield _check("Python", system, "a server on this machine needs Python 3.11 or 3.12" if too_new else "")
    for name in _NEEDED:
        if (version := _version(name)) is None:
            yield Check(CLIENT, name, "not installed", Level.PROBLEM, f"install it with: {pip_install()}")
        else:
            yield _check(name, version)
    for names, purpose, extra in _OPTIONAL:
        installed = [(name, version) for name in names.split() if (version := _version(name))]
        missing = (names.split()[0], "not installed", f"{purpose}; install it with: {pip_install(extra)}")
        yield _check(*next(iter(installed), missing))


def _processor() -> Iterator[Check]:
    processor = Processor.here()
    with_bf16 = "with" if processor.has_bf16 else "without"
    yield _check("CPU", f"{usable_cores()} cores, {platform.machine()}, {with_bf16} bf16")
    row = row_of(processor)
    if row is None:
        measure = "python -m benchmarks runtimes, in a clone of the source, measures it"
        yield _check("precision auto", f"ONNX Runtime fp32: no such processor was measured; {measure}")
        return
    if {row.images, row.texts} & {OPENVINO, OPENVINO_BF16}:
        version = _version("openvino")
        remedy = f"it is the fastest on this processor; install it with: {pip_install('local')}"
        yield _check("openvino", version or "not installed", "" if version else remedy)
    yield _check("precision auto", f"{row.images} for images, {row.texts} for texts, as measured on {row}")


def _decoder() -> Check:
    from PIL import features

    from preprocess_ensemble.imaging import turbojpeg_decoder

    turbo = features.version("libjpeg_turbo")
    pillow = f"Pillow with libjpeg-turbo {turbo}" if turbo else "Pillow without libjpeg-turbo"
    version = _version("PyTurboJPEG")
    if turbojpeg_decoder.installed() is None:
        lacks = "libturbojpeg is not installed" if version else "PyTurboJPEG is not installed"
        package = "" if version else f"{pip_install('server')}, and "
        remedy = (
            f"a server in this environment decodes large photos faster with: {package}the library libturbojpeg "
            "(on Debian and Ubuntu: apt-get install libturbojpeg0)"
        )
        return _check("JPEG decoder", f"{pillow}; {lacks}", remedy)
    return _check("JPEG decoder", f"libturbojpeg by PyTurboJPEG {version}, and {pillow}")


def _shared_memory() -> Iterator[Check]:
    if not _SHARED_MEMORY.is_dir():
        return
    usage = shutil.disk_usage(_SHARED_MEMORY)
    remedy = (
        f"a server here needs {_SHARED_MEMORY_BYTES // 2**20} MiB between its processes; in a container: "
        "docker run --shm-size=1g"
    )
    value = f"{usage.free / 2**20:,.0f} of {usage.total / 2**20:,.0f} MiB free"
    yield _check(str(_SHARED_MEMORY), value, remedy if usage.free < _SHARED_MEMORY_BYTES else "")


def _server_parts(server_answers: bool) -> Iterator[Check]:
    try:
        triton = find_triton()
    except ReportedError as error:
        yield _check("tritonserver", "none that can run here", f"only a server on this machine needs it. {error}")
    else:
        lacking = []
        if triton.libraries and triton.cpp_backend and _NVIDIA_DEVICE.exists():
            lacking = missing_libraries(triton, [triton.cpp_backend / "libonnxruntime_providers_cuda.so"])
        remedy = f"the GPU needs {', '.join(lacking)}: copy them from the image into {triton.libraries}"
        value = f"{triton.version or 'of an unknown version'}, {triton.origin}"
        yield _check("tritonserver", value, remedy if lacking else "")
        if not server_answers:
            yield from known_vulnerabilities(CLIENT, triton.version)
    if server_answers:
        return
    repository, start = default_repository(), "start it with: clip-serve"
    if has_model(repository):
        yield _check("model repository", f"{repository}, with a model", start)
    else:
        remedy = f"only a server on this machine needs it; make it with: clip-export; then {start}"
        yield _check("model repository", f"no model in {repository}", remedy)


def _ports(server_answers: bool) -> Check:
    taken = []
    for name, port in _PORTS:
        try:
            try_port("127.0.0.1", port)
        except OSError:
            taken.append(f"{port} ({name})")
    if not taken:
        return _check("ports", f"{', '.join(str(port) for _name, port in _PORTS)} are free")
    remedy = "something else listens there; choose others with: clip-serve --grpc-port, --metrics-port"
    return _check("ports", f"in use: {', '.join(taken)}", "" if server_answers else remedy)


def _version(distribution: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(distribution)
    return None
