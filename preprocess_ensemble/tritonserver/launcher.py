"""Starts ``tritonserver``: NVIDIA's if ``CLIP_TRITON`` names one or it is installed, else the one that pip installs.

Outside of NVIDIA's container the binary does not run by itself. It needs its libraries, a backend directory with the
Python backend and the stub for the running Python, and this environment's ``python3`` first on ``PATH``, because the
stub embeds that Python. The launcher, which pip installs as the command ``tritonserver``, arranges this and then
becomes the server, with the same PID and arguments.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import site
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from platformdirs import user_cache_path

from preprocess_ensemble.errors import ReportedError
from preprocess_ensemble.tritonserver.cleanup import (
    TEMPORARY,
    die_with_parent,
    region_prefix,
    remove_leftovers,
    start_guardian,
)
from preprocess_ensemble.tritonserver.installation import Triton, find_triton, library_path
from preprocess_ensemble.tritonserver.links import Links

PACKAGE_ROOT: Final = Path(__file__).resolve().parents[2]  # the folder that Python must search for this package
PARENT_VARIABLE: Final = "CLIP_TRITON_PARENT_PID"  # PID of the supervisor; if it ends, the kernel kills the server

_ONNXRUNTIME_MODEL: Final = '''\
"""Found by Triton for models with ``backend: "onnxruntime"`` if no C++ backend of that name is installed."""

from preprocess_ensemble.backends.onnxruntime.model import TritonPythonModel

__all__ = ("TritonPythonModel",)
'''


def backend_directory(triton: Triton) -> Path:
    """Return a directory with the server's Python backend and this package's ``onnxruntime``; create it on first use.

    Its name holds a digest of Triton's version and files, so each installation has its own. It is in the environment,
    or in the user's cache if the environment is read-only. Raises ``ReportedError`` if neither can be written.
    """
    sources = (triton.stub, triton.server / "backends" / "python" / "libtriton_python.so")
    versions = (f"{source} {source.stat().st_size}" for source in sources)
    recipe = "\n".join((triton.version, *versions, _ONNXRUNTIME_MODEL))
    name = f"backends-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}"
    places = [Path(sys.prefix, "lib", "clip-triton")]
    with contextlib.suppress(RuntimeError):  # a user without a home
        places.append(user_cache_path("clip-triton", appauthor=False))
    failures = []
    # A directory that exists is complete.
    for directory in sorted((place / name for place in places), key=os.path.isdir, reverse=True):
        try:
            return directory if os.path.isdir(directory) else _build(triton, directory)
        except OSError as error:
            failures.append(f"{directory.parent} ({error.strerror or error})")
    failed = ", ".join(failures)
    raise ReportedError(f"Triton's backend directory could not be written; make one of these writable: {failed}.")


def _build(triton: Triton, directory: Path) -> Path:
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".backends-", dir=directory.parent, ignore_cleanup_errors=True) as folder:
        work = Path(folder, "backends")
        # Copies: Triton rejects a Python-based backend whose library is a link out of its directory, and pip does not
        # guarantee the executable bit that the stub needs.
        python = work / "python"
        shutil.copytree(triton.server / "backends" / "python", python, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copyfile(triton.stub, python / triton.stub.name).chmod(0o755)
        (work / "onnxruntime").mkdir()
        (work / "onnxruntime" / "model.py").write_text(_ONNXRUNTIME_MODEL, encoding="utf-8")
        try:
            work.rename(directory)
        except OSError:
            if not directory.is_dir():  # another start may have created it first
                raise
    return directory


def server_command(
    arguments: Sequence[str], environment: Mapping[str, str], *, pid: int, only_models: bool = False
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command that starts Triton with these arguments, and its environment, for the process ``pid``.

    The command begins with the path of the server. A backend directory, a cache directory and a shared-memory prefix
    are added only if ``arguments`` has none. With ``only_models``, Triton sees of a repository only the folders that
    have a ``config.pbtxt``. Raises ``ReportedError``.
    """

    def is_given(text: str) -> bool:
        return any(text in argument for argument in arguments)

    if not os.access(TEMPORARY, os.W_OK):
        raise ReportedError(f"Triton's Python backend cannot write to {TEMPORARY}: in a container, add --tmpfs /tmp.")
    links = Links(pid)
    arguments = links.repositories(arguments, only_models=only_models)
    # Triton starts its stubs through the bash on PATH, and waits without limit for a stub that cannot start.
    env = {"PATH": os.defpath, **environment}
    if shutil.which("bash", path=env["PATH"]) is None:
        raise ReportedError(
            f"Triton needs bash, which is in no folder of PATH ({env['PATH']}): install it or add its folder."
        )
    # The stub runs the first python3 on PATH. Not resolved: that would lead out of a virtual environment.
    programs = Path(sys.executable).parent
    _prepend(env, "PATH", links.plain(programs.parent) / programs.name)
    if PACKAGE_ROOT not in (Path(folder).resolve() for folder in site.getsitepackages()):
        env = with_package(env)
    extra = []
    triton = find_triton(env)
    if triton.libraries is not None:
        env["LD_LIBRARY_PATH"] = library_path(triton, env.get("LD_LIBRARY_PATH", ""))
        if not is_given("--backend-directory"):
            backends = triton.server / "backends" if triton.cpp_backend else backend_directory(triton)
            extra.append(f"--backend-directory={links.plain(backends)}")
        if not is_given("--cache-directory"):
            extra.append(f"--cache-directory={triton.server / 'caches'}")
    if not is_given("shm-region-prefix-name="):
        extra.append(f"--backend-config=python,shm-region-prefix-name={region_prefix(pid)}")
    return (str(triton.binary), *extra, *arguments), env


def with_package(environment: Mapping[str, str]) -> dict[str, str]:
    env = dict(environment)
    _prepend(env, "PYTHONPATH", PACKAGE_ROOT)
    return env


def _prepend(environment: dict[str, str], name: str, folder: Path) -> None:
    environment[name] = os.pathsep.join(filter(None, (str(folder), environment.get(name))))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        environment = dict(os.environ)
        parent = environment.pop(PARENT_VARIABLE, None)
        # SIGKILL, because no process is left then that could follow up a SIGTERM.
        if parent is not None and not die_with_parent(signal.SIGKILL, int(parent)):
            raise ReportedError("The supervisor ended before its server had started.")
        remove_leftovers()
        start_guardian(with_package(environment), owns_group=parent is not None)
        command, environment = server_command(arguments, environment, pid=os.getpid(), only_models=parent is not None)
        os.execve(command[0], command, environment)
    except (ReportedError, OSError) as error:
        sys.stderr.write(f"tritonserver: {error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
