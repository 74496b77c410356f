"""Unpack the offline bundle beside this file and measure the card: ``python3 run.py [options of benchmarks gpu]``.

It needs only this Python and its standard library: no pip, no network. A second run uses what the first one unpacked.
"""

from __future__ import annotations

import argparse
import os
import shutil
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

BUNDLE = Path(__file__).resolve().parent
PROVIDER = "onnxruntime/capi/libonnxruntime_providers_cuda.so"
OPENED_LATER = ("libcudnn.so.9",)
"""Libraries that the provider opens by name when it first needs them."""
LIBPYTHON = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"


class RunError(Exception):
    """The bundle cannot be run here; the message is one sentence with the remedy."""


def check_files(bundle: Path) -> None:
    """Compare every file with its checksum; raise RunError if one is missing, incomplete or damaged."""
    command = ("sha256sum", "--check", "--quiet", "SHA256SUMS")
    if subprocess.run(command, cwd=bundle, check=False, stdout=sys.stderr).returncode:
        raise RunError("A file is missing or damaged, see above: copy the bundle again.")


def make_environment(bundle: Path, directory: Path) -> Path:
    """Make a virtual environment of the bundle's wheels; return its Python. A complete one is used again."""
    python = directory / "bin" / "python"
    stamp = directory / ".complete"
    if stamp.exists():
        return python
    shutil.rmtree(directory, ignore_errors=True)
    # Without pip, which venv cannot install on many systems; the bundle's pip runs from its wheel.
    _run(sys.executable, "-m", "venv", "--without-pip", str(directory))
    wheels = sorted(str(path) for path in (bundle / "wheels").glob("*.whl"))
    pip = str(next((bundle / "wheels").glob("pip-*.whl")) / "pip")
    install = (pip, "install", "--quiet", "--no-index", "--no-deps", "--root-user-action=ignore", "--no-compile")
    _run(str(python), *install, *wheels)
    libraries = next((directory / "lib").glob("python3*")) / "site-packages"
    (libraries / "clip-tree.pth").write_text(f"{bundle / 'tree'}\n")
    stamp.touch()
    return python


def _run(*command: str) -> None:
    if subprocess.run(command, check=False).returncode:
        raise RunError(f"This failed, see above: {' '.join(command[:6])} ...")


def library_folders(bundle: Path) -> list[Path]:
    """Folders that may hold CUDA, cuDNN and TensorRT: packages of the Python that runs this, then the system's."""
    packages = {Path(sysconfig.get_path("purelib")), *map(Path, site.getsitepackages())}
    found = [bundle / "libraries"]
    for folder in sorted(packages):
        found += [path.parent for path in sorted(folder.glob("nvidia/**/*.so*"))]
        found += [folder / "tensorrt_libs"]
    found += sorted(Path("/usr/local").glob("cuda*/lib64"), reverse=True)
    found += [Path("/usr/local/nvidia/lib64")]
    return list(dict.fromkeys(folder for folder in found if folder.is_dir()))


def environment_with(folders: list[Path]) -> dict[str, str]:
    """This process's environment with ``folders`` first in the linker's path."""
    path = [*map(str, folders), os.environ.get("LD_LIBRARY_PATH", "")]
    # Packages of the system's Python would take precedence over the bundle's.
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return {**kept, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, path))}


def use_bundled_libpython(environment: dict[str, str], libpython: Path, site_packages: Path) -> None:
    """Let Triton's stub find the bundle's libpython if this Python has no shared library.

    It is another build than this Python, so its modules come last: this Python loads its own first.
    """
    if Path(sysconfig.get_config_var("LIBDIR") or "", LIBPYTHON).is_file() or is_found(LIBPYTHON, environment):
        return
    environment["LD_LIBRARY_PATH"] = os.pathsep.join((str(libpython), environment["LD_LIBRARY_PATH"]))
    (site_packages / "libpython.pth").write_text(f"{libpython / 'lib-dynload'}\n")


def is_found(library: str, environment: dict[str, str]) -> bool:
    """Whether the linker finds a library. A new process tries, because the path is read only when one starts."""
    opened = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    tried = subprocess.run([sys.executable, "-c", opened, library], env=environment, capture_output=True, check=False)
    return tried.returncode == 0


def missing_libraries(
    provider: Path, environment: dict[str, str], opened_later: tuple[str, ...] = OPENED_LATER
) -> list[str]:
    """Libraries of ONNX Runtime's CUDA provider that the linker cannot find, including those that it opens later."""
    done = subprocess.run(["ldd", str(provider)], capture_output=True, text=True, check=False, env=environment)
    missing = [line.split()[0] for line in done.stdout.splitlines() if "not found" in line]
    return missing + [name for name in opened_later if not is_found(name, environment)]


def check_cuda(python: str | Path, site_packages: Path, environment: dict[str, str]) -> None:
    """Raise RunError if the driver or a library that ONNX Runtime's CUDA provider needs is missing.

    ``python`` has the bundle's packages.
    """
    provider = site_packages / PROVIDER
    if not provider.is_file():
        raise RunError("The bundle has no onnxruntime-gpu: gather it again, or add --device cpu.")
    asked = "import sys; from preprocess_ensemble.serving.tensorrt import usable_gpus; sys.exit(not usable_gpus())"
    if subprocess.run([python, "-c", asked], check=False, env=environment).returncode:
        raise RunError(
            "The driver shows no NVIDIA GPU here (does nvidia-smi?): use a machine that has one, or add --device "
            "cpu --quick to try everything except the card."
        )
    if lacking := missing_libraries(provider, environment):
        raise RunError(
            f"ONNX Runtime's CUDA provider lacks {', '.join(lacking)}: start run.py with a Python that has them as "
            "packages (a PyTorch for the same CUDA contains most), or install this CUDA and cuDNN 9 and add their "
            "folder to LD_LIBRARY_PATH."
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, epilog="All other options are passed on to benchmarks gpu.")
    parser.add_argument("--work", type=Path, default=BUNDLE, help="for the environment (default: the bundle)")
    parser.add_argument("--output", type=Path, default=Path("gpu-results"), help="for the JSON (default: %(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments, rest = parser.parse_known_args()
    directory = arguments.work.resolve() / "venv"
    try:
        check_files(BUNDLE)
        python = make_environment(BUNDLE, directory)
        site_packages = next((directory / "lib").glob("python3*")) / "site-packages"
        environment = environment_with(library_folders(BUNDLE))
        use_bundled_libpython(environment, BUNDLE / "libpython", site_packages)
        if arguments.device == "cuda":
            check_cuda(python, site_packages, environment)
    except (RunError, OSError) as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 1
    paths = {"exports": BUNDLE / "exports", "photos": BUNDLE / "photos", "output": arguments.output.resolve()}
    options = [f"--{name}={path}" for name, path in paths.items()] + [f"--device={arguments.device}", *rest]
    command = [str(python), "-m", "benchmarks.gpu.command", *options]
    return subprocess.run(command, check=False, env=environment, cwd=BUNDLE / "tree").returncode


if __name__ == "__main__":
    sys.exit(main())
