"""The ``tritonserver`` of this machine, checked before it starts: it waits for ever for a backend that cannot run."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from preprocess_ensemble.errors import ReportedError, pip_install

TRITON_VARIABLE: Final = "CLIP_TRITON"  # the folder of an unpacked ``/opt/tritonserver``
CONTAINER: Final = Path("/opt/tritonserver")  # NVIDIA's, where the linker and Triton find all parts by themselves
_PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"

_VULNERABILITIES: Final = (
    ("chunked bodies or deeply nested JSON overflow the stack, only with --http-port", (2, 59, 1)),
    ("errors name a shared-memory region, which clients of clip-serve cannot register", (2, 59, 1)),
    ("a classification of a text output ends the server", (2, 59, 1)),
    ("very large requests take memory without limit (see NVIDIA's bulletin for CVE-2025-33201)", None),
)
"""(published vulnerability of 2.51.0, first version that fixes it or None if that is unknown here). 2.59.1 is release
25.07. ``docs/security.md`` has the details."""

_FIRST_WITH_NUMPY_2: Final = (2, 52)
"""Release 24.11, the first whose Python backend is built with pybind11 2.12, which can read the arrays of NumPy 2."""


@dataclass(frozen=True, kw_only=True)
class Triton:
    version: str  # such as ``2.51.0``; empty if the folder does not tell
    origin: str
    server: Path
    libraries: Path | None  # folder of the shared objects; None in NVIDIA's container
    stub: Path  # program in which the Python backend runs a model; it links one version of Python

    @property
    def binary(self) -> Path:
        return self.server / "bin" / "tritonserver"

    @property
    def cpp_backend(self) -> Path | None:
        """Folder of the C++ ONNX Runtime backend; None if this package's own backend runs the model."""
        backend = self.server / "backends" / "onnxruntime"
        return backend if (backend / "libtriton_onnxruntime.so").is_file() else None


def find_triton(environment: Mapping[str, str] = os.environ) -> Triton:
    named = environment.get(TRITON_VARIABLE)
    if not named and not (CONTAINER / "bin" / "tritonserver").is_file():
        triton = _find_wheel()
    else:
        triton = _find_nvidias(Path(named).absolute() if named else CONTAINER, environment)
    numpy, release = importlib.metadata.version("numpy"), _release(triton.version)
    if release is not None and release < _FIRST_WITH_NUMPY_2 and int(numpy.partition(".")[0]) >= 2:
        raise ReportedError(
            f"Triton {triton.version} returns nothing but empty tensors with NumPy {numpy}: run `pip install 'numpy<2'`"
            f", or name Triton 2.52 (release 24.11) or newer with --triton or {TRITON_VARIABLE}."
        )
    return triton


def _find_nvidias(folder: Path, environment: Mapping[str, str]) -> Triton:
    version = folder / "TRITON_VERSION"
    in_container = folder == CONTAINER
    triton = Triton(
        version=version.read_text(encoding="utf-8").strip() if version.is_file() else "",
        origin=f"NVIDIA's, in {folder}" + ("" if in_container else f" ({TRITON_VARIABLE})"),
        server=folder,
        libraries=None if in_container else folder / "lib",
        stub=folder / "backends" / "python" / "triton_python_backend_stub",
    )
    if not in_container:
        _check_unpacked(triton, environment)
    return triton


def library_path(triton: Triton, given: str) -> str:
    """Return the ``LD_LIBRARY_PATH`` for a server outside its container. Raises ``ReportedError`` without libpython."""
    return os.pathsep.join(str(folder) for folder in (triton.libraries, _libpython_folder(given), given) if folder)


def missing_libraries(triton: Triton, files: Iterable[Path], environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the libraries, and versions such as ``GLIBC_2.38``, that ``files`` need and this system lacks."""
    paths = {"LD_LIBRARY_PATH": library_path(triton, environment.get("LD_LIBRARY_PATH", ""))}
    try:
        done = subprocess.run(
            ["ldd", *files], env={**environment, **paths}, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return []
    found = re.findall(r"(\S+) => not found|version `(\S+)' not found", done.stdout + done.stderr)
    return sorted({library or version for library, version in found})


def open_vulnerabilities(version: str) -> list[str]:
    """Return the vulnerabilities of 2.51.0 that ``version`` is not known to fix; empty if it is not a version."""
    release = _release(version)
    if release is None:
        return []
    return [sentence for sentence, closed_in in _VULNERABILITIES if closed_in is None or release < closed_in]


def _release(version: str) -> tuple[int, ...] | None:
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    return None if numbers is None else tuple(map(int, numbers.groups()))


def _check_unpacked(triton: Triton, environment: Mapping[str, str]) -> None:
    server = triton.server
    for part in (triton.binary, triton.stub):
        if not part.is_file():
            raise ReportedError(
                f"{server} is not an unpacked /opt/tritonserver: it has no {part.relative_to(server)}. "
                f"Name another folder with --triton or {TRITON_VARIABLE}."
            )
    built_for = re.search(rb"libpython(\d+\.\d+)\.so", triton.stub.read_bytes())
    if built_for is not None and (wanted := built_for[1].decode()) != _PYTHON:
        raise ReportedError(
            f"The Python backend of {server} was built for Python {wanted}, and this is Python {_PYTHON}: install "
            f"clip-triton in an environment with Python {wanted}."
        )
    backend = triton.cpp_backend
    files = (triton.binary, triton.stub, *([] if backend is None else [backend / "libtriton_onnxruntime.so"]))
    if missing := missing_libraries(triton, files, environment):
        raise ReportedError(
            f"{triton.binary} cannot run here, because this system has no {', '.join(missing)}: use the distribution "
            "of its image (Ubuntu 24.04 since release 24.11) or a newer one, and copy other libraries from the image "
            f"into {triton.libraries}."
        )


def _find_wheel() -> Triton:
    # Find the folder without an import, which would take a second.
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        raise ReportedError(
            f"No tritonserver is installed: {pip_install('server')} brings one for Python 3.11 and 3.12 on "
            f"Linux x86-64 with glibc 2.35 or newer, and this is Python {platform.python_version()} on "
            f"{platform.system()} {platform.machine()}{' '.join(['', *platform.libc_ver()]).rstrip()}. Elsewhere, use "
            "NVIDIA's Triton container, or a server on another machine."
        )
    package = Path(spec.submodule_search_locations[0]).resolve()
    wheel = importlib.metadata.version("nvidia-pytriton")
    server = package / "tritonserver"
    triton = Triton(
        version="2.51.0",  # of the Triton in nvidia-pytriton 0.7
        origin=f"from nvidia-pytriton {wheel}",
        server=server,
        libraries=package.parent / "nvidia_pytriton.libs",
        stub=server / "python_backend_stubs" / _PYTHON / "triton_python_backend_stub",
    )
    if not triton.binary.is_file() or not triton.stub.is_file():
        raise ReportedError(
            f"nvidia-pytriton {wheel} has no tritonserver, or no Python backend stub for Python {_PYTHON}: run "
            "`pip install --force-reinstall 'nvidia-pytriton>=0.7,<0.8'` with Python 3.11 or 3.12."
        )
    return triton


def _libpython_folder(search_path: str) -> Path | None:
    """Return the folder of the running Python's shared library, which the stub links; None if the linker finds that.

    Raises ``ReportedError`` if the library is not installed: Triton would wait for its stub without limit.
    """
    name = f"libpython{_PYTHON}.so.1.0"
    beside_python = Path(sysconfig.get_config_var("LIBDIR") or "")
    if (beside_python / name).is_file():
        # pyenv, uv and conda install the library beside their Python, where the linker does not search.
        return beside_python
    if any((Path(folder) / name).is_file() for folder in search_path.split(os.pathsep) if folder):
        return None
    try:
        ctypes.CDLL(name)
    except OSError:
        raise ReportedError(
            f"Triton's Python backend needs {name}, which is not part of this Python: install it (Debian and Ubuntu: "
            f"`apt-get install libpython{_PYTHON}`), or use a Python built with --enable-shared."
        ) from None
    return None
