"""Unpack the kit beside this file and run the study of the card: ``python3 run.py [options of benchmarks.gpu.study]``.

Needs nothing but this Python and its standard library: no pip, no network. A second run uses what the first unpacked.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

KIT = Path(__file__).resolve().parent
PROVIDER = "onnxruntime/capi/libonnxruntime_providers_cuda.so"
OPENED_LATER = ("libcudnn.so.9",)
"""What the provider opens by name when it first needs it."""
EXPORTER = (
    "torch",
    "torchvision",
    "timm",
    "onnx",
    "onnxruntime",
    "numpy",
    "PIL",
    "google",
    "grpc",
    "ml_dtypes",
)
"""Modules that an export takes and that ``export-wheels`` does not hold."""


class RunError(Exception):
    """The kit cannot be run here; the message is one sentence with the remedy."""


def check_files(kit: Path) -> None:
    """Compare every file with the manifest; raises RunError for the first that did not arrive whole."""
    for name, wanted in json.loads((kit / "MANIFEST.json").read_text()).items():
        path = kit / name
        if not path.is_file() or path.stat().st_size != wanted["bytes"]:
            raise RunError(f"{name} is missing or cut short: carry the kit again.")
        with path.open("rb") as file:
            digest = hashlib.sha256()
            while block := file.read(1 << 22):
                digest.update(block)
        if digest.hexdigest() != wanted["sha256"]:
            raise RunError(f"{name} was damaged on its way: carry it again.")


def check_python(wheels: Path) -> None:
    """Raise RunError unless the wheels are for this version of Python."""
    wanted = {
        match[1] for path in wheels.glob("onnxruntime*.whl") if (match := re.search(r"-cp(\d+)-cp\d+-", path.name))
    }
    here = f"{sys.version_info.major}{sys.version_info.minor}"
    if wanted and here not in wanted:
        raise RunError(
            f"The kit is for Python 3.{min(wanted)[1:]} and this is 3.{here[1:]}: run it with that one, or gather it "
            f"with --python 3.{here[1:]}."
        )


def make_environment(kit: Path, directory: Path) -> Path:
    """A virtual environment of the kit's wheels alone; returns its Python. One that is complete is used again."""
    python = directory / "bin" / "python"
    stamp = directory / ".complete"
    if stamp.exists():
        return python
    shutil.rmtree(directory, ignore_errors=True)
    # Without pip, which many systems do not let venv bring; the kit's own runs from its wheel.
    _run(sys.executable, "-m", "venv", "--without-pip", str(directory))
    wheels = sorted(str(path) for path in (kit / "wheels").glob("*.whl"))
    _run(str(python), *_install(kit), "--no-compile", *wheels)
    libraries = next((directory / "lib").glob("python3*")) / "site-packages"
    (libraries / "clip-tree.pth").write_text(f"{kit / 'tree'}\n")
    stamp.touch()
    return python


def _install(kit: Path) -> list[str]:
    pip = next((kit / "wheels").glob("pip-*.whl")) / "pip"
    return [str(pip), "install", "--quiet", "--no-index", "--no-deps", "--root-user-action=ignore"]


def _run(*command: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> None:
    if subprocess.run(command, check=False, env=env, cwd=cwd).returncode:
        raise RunError(f"This failed, see above: {' '.join(command[:6])} ...")


def library_folders(kit: Path) -> list[Path]:
    """Where CUDA, cuDNN and TensorRT may lie: pip packages of the Python that runs this, then the system's folders."""
    packages = {Path(sysconfig.get_path("purelib")), *map(Path, site.getsitepackages())}
    found = [kit / "libraries"]
    for folder in sorted(packages):
        found += [path.parent for path in sorted(folder.glob("nvidia/**/*.so*"))]
        found += [folder / "tensorrt_libs"]
    found += sorted(Path("/usr/local").glob("cuda*/lib64"), reverse=True)
    found += [Path("/usr/local/nvidia/lib64")]
    return list(dict.fromkeys(folder for folder in found if folder.is_dir()))


def missing_libraries(provider: Path, environment: dict[str, str]) -> list[str]:
    """What the linker would not find for ONNX Runtime's CUDA provider, and what that opens only when it runs."""
    done = subprocess.run(["ldd", str(provider)], capture_output=True, text=True, check=False, env=environment)
    missing = [line.split()[0] for line in done.stdout.splitlines() if "not found" in line]
    opened = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    for name in OPENED_LATER:
        tried = subprocess.run([sys.executable, "-c", opened, name], capture_output=True, check=False, env=environment)
        if tried.returncode:
            missing.append(name)
    return missing


def count_gpus() -> int:
    """GPUs that the driver shows; 0 without a driver."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    return 0 if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) else count.value


def check_cuda(site_packages: Path, environment: dict[str, str]) -> None:
    """Raise RunError unless ONNX Runtime's CUDA provider can start here, as far as libraries and driver tell."""
    provider = site_packages / PROVIDER
    if not provider.is_file():
        raise RunError("The kit has no onnxruntime-gpu: gather it without --onnxruntime, or say --device cpu.")
    asked = [sys.executable, str(Path(__file__).resolve()), "--count-gpus"]
    # In a process that has the folders from its start on: the linker reads them only then.
    counted = subprocess.run(asked, capture_output=True, text=True, check=False, env=environment).stdout.strip()
    if counted in ("", "0"):
        raise RunError(
            "The driver shows no NVIDIA GPU here (does nvidia-smi?): use a machine that has one, or say --device cpu "
            "--quick to try everything but the card."
        )
    built = (site_packages / "onnxruntime" / "capi" / "build_and_package_info.py").read_text()
    version = match[1] if (match := re.search(r"cuda_version = '([0-9.]+)'", built)) else "of its version"
    if lacking := missing_libraries(provider, environment):
        raise RunError(
            f"ONNX Runtime's CUDA provider lacks {', '.join(lacking)}: start run.py by a Python that has them as "
            f"packages (a PyTorch for CUDA {version.partition('.')[0]} brings most), or install CUDA {version} and "
            "cuDNN 9 and add their folder to LD_LIBRARY_PATH."
        )


def has_libpython() -> bool:
    """Whether this Python's shared library is installed, which Triton's stub links."""
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    if Path(sysconfig.get_config_var("LIBDIR") or "", name).is_file():
        return True
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def make_exports(kit: Path, target: Path, python: str, model: str, pretrained: str) -> None:
    """Export both precisions by a Python that has PyTorch, where the kit brought no models."""
    check_exporter(python)
    packages = kit / "export-site"
    stamp = packages / ".complete"
    wheels = [str(path) for path in sorted((kit / "export-wheels").glob("*.whl"))]
    if not stamp.exists():
        shutil.rmtree(packages, ignore_errors=True)
        _run(python, *_install(kit), "--target", str(packages), *wheels)
        stamp.touch()
    # Behind what that Python has itself: only what it lacks is taken from here.
    program = (
        f"import sys; sys.path.append({str(packages)!r}); "
        "from preprocess_ensemble.export.command import main; sys.exit(main())"
    )
    environment = {**os.environ, "PYTHONPATH": str(kit / "tree")}
    for precision in ("fp32", "fp16"):
        if not (target / precision / "clip_encoder" / "1" / "model.json").exists():
            options = ("--model", model, "--pretrained", pretrained, "--precision", precision)
            _run(python, "-c", program, *options, "--repository", str(target / precision), env=environment)


def check_exporter(python: str) -> None:
    """Raise RunError unless ``python`` has what an export takes and the kit does not bring."""
    asked = "import importlib.util as u, sys; print(*(name for name in sys.argv[1:] if u.find_spec(name) is None))"
    try:
        done = subprocess.run([python, "-c", asked, *EXPORTER], capture_output=True, text=True, check=False)
    except OSError as error:
        raise RunError(f"{python} cannot be started ({error.strerror}): name a Python by --export-with.") from None
    if lacking := done.stdout.split():
        raise RunError(
            f"{python} has no {', '.join(lacking)}, and the kit has no models: name a Python that has them by "
            "--export-with, or gather the kit without --without-models."
        )


def environment_with(folders: list[Path]) -> dict[str, str]:
    """This process's environment with ``folders`` before whatever the linker looks through."""
    path = [*map(str, folders), os.environ.get("LD_LIBRARY_PATH", "")]
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, path))}
    # Packages of the system's Python would stand before the kit's.
    for name in ("PYTHONPATH", "PYTHONHOME"):
        environment.pop(name, None)
    return environment


def carry_libpython(environment: dict[str, str], libpython: Path, site_packages: Path) -> None:
    """Let the kit's library of Python be found, with the modules of its build, which this Python may have built in.

    It is of another build than this Python: only for where there is none, and its modules come last, for those that are
    found nowhere else. Before them, a Python that has its own would load the other build's.
    """
    environment["LD_LIBRARY_PATH"] = os.pathsep.join((str(libpython), environment["LD_LIBRARY_PATH"]))
    (site_packages / "libpython.pth").write_text(f"{libpython / 'lib-dynload'}\n")


def main() -> int:
    """Unpack, check and run; what it does not know goes to benchmarks.gpu.study."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="All other options are those of benchmarks.gpu.study.")
    parser.add_argument("--work", type=Path, default=KIT, help="for the environment and exports (default: the kit)")
    parser.add_argument("--output", type=Path, default=Path("gpu-results"), help="for the JSON (default: %(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--export-with", default=sys.executable, metavar="PYTHON", help="one that has PyTorch and onnx")
    parser.add_argument("--model", default="ViT-B-32", help="to export, where the kit has no models")
    parser.add_argument("--pretrained", default="random:0")
    parser.add_argument("--count-gpus", action="store_true", help=argparse.SUPPRESS)
    arguments, rest = parser.parse_known_args()
    if arguments.count_gpus:
        print(count_gpus())
        return 0
    work: Path = arguments.work.resolve()
    try:
        check_files(KIT)
        check_python(KIT / "wheels")
        python = make_environment(KIT, work / "venv")
        site_packages = next((work / "venv" / "lib").glob("python3*")) / "site-packages"
        environment = environment_with(library_folders(KIT))
        if not has_libpython():
            carry_libpython(environment, KIT / "libpython", site_packages)
        if arguments.device == "cuda":
            check_cuda(site_packages, environment)
        exports = KIT / "exports"
        if not exports.is_dir():
            exports = work / "exported"
            make_exports(KIT, exports, arguments.export_with, arguments.model, arguments.pretrained)
    except (RunError, OSError) as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 1
    command = [str(python), "-m", "benchmarks.gpu.study", "--exports", str(exports), "--photos", str(KIT / "photos")]
    options = ["--output", str(arguments.output.resolve()), "--device", arguments.device, *rest]
    return subprocess.run([*command, *options], check=False, env=environment, cwd=KIT / "tree").returncode


if __name__ == "__main__":
    sys.exit(main())
