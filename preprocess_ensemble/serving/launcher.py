"""Starts ``tritonserver``: NVIDIA's if it is installed, otherwise the one in the ``nvidia-pytriton`` wheel.

The wheel's binary does not run by itself. It needs the wheel's libraries, a backend directory with the Python backend
and the stub for the running Python, and this environment's ``python3`` first on ``PATH``, because the stub embeds that
one. The launcher arranges this and then becomes the server: same PID, all arguments passed on.

pip installs this module as the command ``tritonserver``.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import signal
import site
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from platformdirs import user_cache_path

from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.serving.cleanup import end_orphaned_stubs, region_prefix, remove_stale_regions

NVIDIA_SERVER: Final = Path("/opt/tritonserver/bin/tritonserver")
"""The server in NVIDIA's container."""

PACKAGE_ROOT: Final = Path(__file__).resolve().parents[2]
"""The folder that Python must search for this package."""

PARENT_VARIABLE: Final = "CLIP_TRITON_PARENT_PID"
"""Environment variable with the PID of the server's parent; the kernel kills the server when that process ends."""

_PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
_LAST_PYTHON: Final = (3, 12)
"""The extra ``server`` leaves the wheel out for later ones: it pins NumPy 1, which has no wheels for them."""

_MIN_GLIBC: Final = (2, 35)
"""From the wheel's tag, ``manylinux_2_35_x86_64``."""

_PR_SET_PDEATHSIG: Final = 1
"""From ``linux/prctl.h``."""

_ONNXRUNTIME_MODEL: Final = '''\
"""Found by Triton for models with ``backend: "onnxruntime"`` if no C++ backend of that name is installed."""

from preprocess_ensemble.backends.onnxruntime.model import TritonPythonModel

__all__ = ("TritonPythonModel",)
'''


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """An installed ``nvidia-pytriton``: ``server`` is its tritonserver folder, ``libraries`` has its shared objects."""

    version: str
    server: Path
    libraries: Path

    @property
    def binary(self) -> Path:
        """The server itself."""
        return self.server / "bin" / "tritonserver"

    @property
    def stub(self) -> Path:
        """The stub process for the running version of Python."""
        return self.server / "python_backend_stubs" / _PYTHON / "triton_python_backend_stub"


def check_packages() -> None:
    """Raise ``ReportedError`` if a Python package is missing that the server needs on every machine."""
    if importlib.util.find_spec("psutil") is None:
        raise ReportedError("The server needs psutil, which is not installed: run `pip install 'clip-triton[server]'`.")


def find_wheel() -> Wheel:
    """Locate the pip-installed server for this version of Python.

    Raises ``ReportedError`` if it cannot run on this machine, or if the wheel is missing or incomplete.
    """
    _check_platform()
    # Importing pytriton would take a second.
    spec = importlib.util.find_spec("pytriton")
    if spec is None or not spec.submodule_search_locations:
        if sys.version_info[:2] > _LAST_PYTHON:
            raise ReportedError(
                f"The tritonserver that pip installs needs Python 3.11 or 3.12, and this is Python "
                f"{platform.python_version()}, for which `pip install 'clip-triton[server]'` leaves it out: create the "
                "environment with one of those, or use NVIDIA's Triton container."
            )
        raise ReportedError(
            "No tritonserver is installed: run `pip install 'clip-triton[server]'`, or use NVIDIA's Triton container."
        )
    package = Path(spec.submodule_search_locations[0]).resolve()
    version = importlib.metadata.version("nvidia-pytriton")
    wheel = Wheel(version=version, server=package / "tritonserver", libraries=package.parent / "nvidia_pytriton.libs")
    if not wheel.binary.is_file() or not wheel.stub.is_file():
        raise ReportedError(
            f"nvidia-pytriton {version} has no tritonserver, or no Python backend stub for Python {_PYTHON}: run "
            "`pip install --force-reinstall 'nvidia-pytriton>=0.7,<0.8'` with Python 3.11 or 3.12."
        )
    return wheel


def _check_platform() -> None:
    """Raise ``ReportedError`` unless the wheel's binary runs on this machine."""
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64"):
        raise ReportedError(
            f"The pip-installed tritonserver runs on Linux x86-64 only, not on {system} {machine}: "
            "use NVIDIA's Triton container or a server on another machine."
        )
    name, version = platform.libc_ver()
    if name != "glibc" or tuple(int(part) for part in version.split(".")[:2]) < _MIN_GLIBC:
        found = f"glibc {version}" if name == "glibc" else "another C library"
        raise ReportedError(
            f"The pip-installed tritonserver needs glibc 2.35 or newer and this system has {found}: "
            "use Debian 12, Ubuntu 22.04 or newer, or NVIDIA's Triton container."
        )


def backend_directory(wheel: Wheel) -> Path:
    """Return the backend directory for this wheel and this Python; create it on first use.

    Its name holds a digest of its contents, so each wheel and Python has its own directory. It is in the environment,
    or in the user's cache if the environment is read-only. Raises ``ReportedError`` if neither can be written.
    """
    sources = (wheel.stub, wheel.server / "backends" / "python" / "libtriton_python.so")
    versions = (f"{source} {source.stat().st_size}" for source in sources)
    recipe = "\n".join((wheel.version, *versions, _ONNXRUNTIME_MODEL))
    name = f"backends-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}"
    places = (Path(sys.prefix, "lib", "clip-triton"), user_cache_path("clip-triton", appauthor=False))
    failures = []
    for directory in sorted(
        (place / name for place in places), key=Path.is_dir, reverse=True
    ):  # one that exists is complete
        try:
            return directory if directory.is_dir() else _build(wheel, directory)
        except OSError as error:
            failures.append(f"{directory.parent} ({error.strerror or error})")
    raise ReportedError(f"Triton's backend directory could not be written: make one of these writable: {failures}.")


def _build(wheel: Wheel, directory: Path) -> Path:
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".backends-", dir=directory.parent, ignore_cleanup_errors=True) as folder:
        work = Path(folder, "backends")
        # Copies: Triton rejects a Python-based backend whose library is a link out of its directory, and pip does not
        # guarantee the executable bit that the stub needs.
        python = work / "python"
        shutil.copytree(wheel.server / "backends" / "python", python, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copyfile(wheel.stub, python / wheel.stub.name).chmod(0o755)
        (work / "onnxruntime").mkdir()
        (work / "onnxruntime" / "model.py").write_text(_ONNXRUNTIME_MODEL, encoding="utf-8")
        try:
            work.rename(directory)
        except OSError:
            if not directory.is_dir():  # it is if another start was faster, and created the same
                raise
    return directory


def server_command(
    arguments: Sequence[str], environment: Mapping[str, str], *, pid: int
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command that starts Triton with these arguments, and its environment; ``pid`` is to execute it.

    The first part of the command is the path of the server. A backend directory, a cache directory and a shared-memory
    prefix are added only if ``arguments`` has none. Raises ``ReportedError``.
    """

    def is_given(text: str) -> bool:
        return any(text in argument for argument in arguments)

    # Triton starts its stubs through the bash on PATH, and waits without limit for a stub that cannot start.
    env = {"PATH": os.defpath, **environment}
    # The stub runs the first python3 on PATH. Not resolved: that would lead out of a virtual environment.
    _prepend(env, "PATH", Path(sys.executable).parent)
    if PACKAGE_ROOT not in (Path(folder).resolve() for folder in site.getsitepackages()):
        env = with_package(env)
    extra = []
    binary = NVIDIA_SERVER
    if not binary.is_file():
        wheel = find_wheel()
        binary = wheel.binary
        if (folder := libpython_folder(env.get("LD_LIBRARY_PATH", ""))) is not None:
            _prepend(env, "LD_LIBRARY_PATH", folder)
        _prepend(env, "LD_LIBRARY_PATH", wheel.libraries)
        if not is_given("--backend-directory"):
            extra.append(f"--backend-directory={backend_directory(wheel)}")
        if not is_given("--cache-directory"):
            extra.append(f"--cache-directory={wheel.server / 'caches'}")
    if not is_given("shm-region-prefix-name="):
        extra.append(f"--backend-config=python,shm-region-prefix-name={region_prefix(pid)}")
    return (str(binary), *extra, *arguments), env


def libpython_folder(search_path: str) -> Path | None:
    """Return the folder of the running Python's shared library, which the stub links; None if the linker finds it.

    ``search_path`` is the value of ``LD_LIBRARY_PATH``. Raises ``ReportedError`` if the library is not installed:
    Triton would wait for its stub without limit.
    """
    name = f"libpython{_PYTHON}.so.1.0"
    own = Path(sysconfig.get_config_var("LIBDIR") or "")
    if (own / name).is_file():
        # pyenv, uv and conda install it beside their Python, where the linker does not search.
        return own
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


def with_package(environment: Mapping[str, str]) -> dict[str, str]:
    """Return ``environment`` with a PYTHONPATH that begins with PACKAGE_ROOT."""
    env = dict(environment)
    _prepend(env, "PYTHONPATH", PACKAGE_ROOT)
    return env


def _prepend(environment: dict[str, str], name: str, folder: Path) -> None:
    environment[name] = os.pathsep.join(filter(None, (str(folder), environment.get(name))))


def _die_with(parent: int) -> None:
    """Let the kernel kill this process, also after ``exec``, when its parent ends.

    SIGKILL, because no process is left then that could follow up a SIGTERM. The stubs notice the end of their server
    within about two seconds and end by themselves, with rare exceptions (:mod:`preprocess_ensemble.serving.cleanup`).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise ReportedError(
            f"The kernel does not link the server to its supervisor: {os.strerror(ctypes.get_errno())}."
        )
    # The parent may have ended before prctl took effect; then the signal would never come.
    if os.getppid() != parent:
        raise ReportedError("The supervisor ended before its server had started.")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Become ``tritonserver`` with ``arguments`` (default: those of the command line)."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        environment = dict(os.environ)
        parent = environment.pop(PARENT_VARIABLE, None)
        if parent is not None:
            _die_with(int(parent))
        check_packages()
        end_orphaned_stubs()
        remove_stale_regions()
        command, environment = server_command(arguments, environment, pid=os.getpid())
        os.execve(command[0], command, environment)
    except (ReportedError, OSError) as error:
        sys.stderr.write(f"tritonserver: {error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
