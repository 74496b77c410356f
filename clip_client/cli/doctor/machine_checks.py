"""Checks of this machine and of the installed packages, for ``clip-client doctor``."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Final

from clip_client.cli.doctor.check import CLIENT, Check, Level, known_holes
from clip_client.cli.parser import DISTRIBUTION
from preprocess_ensemble.cores import usable_cores
from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.model_repository.location import default_repository, has_model
from preprocess_ensemble.runtimes.choices import Choices
from preprocess_ensemble.runtimes.processor import has_bf16
from preprocess_ensemble.tritonserver import find_triton, missing_libraries

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
"""Distributions of which one is enough, what needs them, and the extra that installs them."""

_SHARED_MEMORY: Final = Path("/dev/shm")
_SHARED_MEMORY_BYTES: Final = 256 * 2**20
"""A batch of 32 rows of pixels takes 5 MB, and one large request up to hundreds; Docker gives 64 MiB."""

_NVIDIA_DEVICE: Final = Path("/dev/nvidiactl")
"""It exists if the driver of a GPU is loaded."""

_PORTS: Final = (("gRPC", 8001), ("metrics", 8002))
"""The default ports of clip-serve and tritonserver."""


def check_machine(*, server_answers: bool) -> Iterator[Check]:
    """Check this process's environment and, if no server answers, what would start one here."""
    yield from _packages()
    yield _decoder()
    yield from _processor()
    yield from _shared_memory()
    yield from _server_parts(server_answers)
    yield _ports(server_answers)


def _check(name: str, value: str, remedy: str = "") -> Check:
    """Return a check that is a hint if it has a remedy."""
    return Check(CLIENT, name, value, Level.HINT if remedy else Level.OK, remedy)


def _packages() -> Iterator[Check]:
    yield _check(DISTRIBUTION, _version(DISTRIBUTION) or "not installed, run from its source")
    system = f"{platform.python_implementation()} {platform.python_version()}, {platform.system()}"
    too_new = sys.version_info >= (3, 13)
    yield _check("Python", system, "a server on this machine needs Python 3.11 or 3.12" if too_new else "")
    for name in _NEEDED:
        if (version := _version(name)) is None:
            yield Check(CLIENT, name, "not installed", Level.PROBLEM, f"install it with: pip install {DISTRIBUTION}")
        else:
            yield _check(name, version)
    for names, purpose, extra in _OPTIONAL:
        installed = [(name, version) for name in names.split() if (version := _version(name))]
        missing = (names.split()[0], "not installed", f"{purpose}; {_install(extra)}")
        yield _check(*next(iter(installed), missing))


def _install(extra: str) -> str:
    return f"install it with: pip install '{DISTRIBUTION}[{extra}]'"


def _processor() -> Iterator[Check]:
    with_bf16 = has_bf16()
    yield _check("CPU", f"{usable_cores()} cores, {platform.machine()}, with{'' if with_bf16 else 'out'} bf16")
    if with_bf16:
        version = _version("openvino")
        remedy = f"this processor may embed up to three times as fast with: pip install '{DISTRIBUTION}[local]'"
        yield _check("openvino", version or "not installed", "" if version else remedy)
    choices = Choices()
    for choice in choices.on_this_processor():
        yield _check("precision auto", f"{choice}; to time again, delete {choices.folder}")


def _decoder() -> Check:
    """Check the JPEG decoder, which a server in this environment and embedding without a server use."""
    from PIL import features

    turbo = features.version("libjpeg_turbo")
    pillow = f"Pillow with libjpeg-turbo {turbo}" if turbo else "Pillow without libjpeg-turbo"
    try:
        from turbojpeg import TurboJPEG

        TurboJPEG()
    except Exception as error:
        # The package or its library is missing or has another version: Pillow decodes instead.
        is_missing = isinstance(error, ImportError)
        reason = "PyTurboJPEG is not installed" if is_missing else "PyTurboJPEG has no libturbojpeg"
        package = f"pip install '{DISTRIBUTION}[server]' and " if is_missing else ""
        remedy = (
            f"a server in this environment decodes large photos faster with: {package}the library libturbojpeg "
            "(on Debian and Ubuntu: apt-get install libturbojpeg0)"
        )
        return _check("JPEG decoder", f"{pillow}; {reason}", remedy)
    return _check("JPEG decoder", f"PyTurboJPEG {_version('PyTurboJPEG')}, and {pillow}")


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
            yield from known_holes(CLIENT, triton.version)
    if server_answers:
        return
    repository, start = default_repository(), "start it with: clip-serve"
    if has_model(repository):
        yield _check("model repository", f"{repository}, with a model", start)
    else:
        remedy = f"only a server on this machine needs it; make it with: clip-export; then {start}"
        yield _check("model repository", f"no model in {repository}", remedy)


def _ports(server_answers: bool) -> Check:
    taken = [f"{port} ({name})" for name, port in _PORTS if not _is_free(port)]
    if not taken:
        return _check("ports", f"{', '.join(str(port) for _name, port in _PORTS)} are free")
    remedy = "something else listens there; choose others with: clip-serve --grpc-port, --metrics-port"
    return _check("ports", f"in use: {', '.join(taken)}", "" if server_answers else remedy)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        if os.name == "posix":
            # A connection that has just ended does not keep the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return True
    return False


def _version(distribution: str) -> str | None:
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(distribution)
    return None
