"""Unpack the kit beside this file and run the study of the card: ``python3 run.py [options of benchmarks.gpu]``.

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
    _run(str(python), _pip(kit), "install", "--quiet", "--no-index", "--no-deps", "--no-compile", *wheels)
    libraries = next((directory / "lib").glob("python3*")) / "site-packages"
    (libraries / "clip-tree.pth").write_text(f"{kit / 'tree'}\n")
    stamp.touch()
    return python


def _pip(kit: Path) -> str:
    return str(next((kit / "wheels").glob("pip-*.whl")) / "pip")


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
    """What the linker would not find for ONNX Runtime's CUDA provider."""
    done = subprocess.run(["ldd", str(provider)], capture_output=True, text=True, check=False, env=environment)
    return [line.split()[0] for line in done.stdout.splitlines() if "not found" in line]


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
    packages = kit / "export-site"
    wheels = [str(path) for path in sorted((kit / "export-wheels").glob("*.whl"))]
    # For the messages of its configuration, which that Python may lack.
    wheels += [str(path) for path in (kit / "wheels").glob("tritonclient-*.whl")]
    if not packages.exists():
        _run(python, _pip(kit), "install", "--quiet", "--no-index", "--no-deps", "--target", str(packages), *wheels)
    # Behind what that Python has itself: only what it lacks is taken from here.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(kit / "tree"), str(packages)))}
    for precision in ("fp32", "fp16"):
        if not (target / precision / "clip_encoder" / "1" / "model.json").exists():
            options = ("--model", model, "--pretrained", pretrained, "--precision", precision)
            command = (python, "-m", "preprocess_ensemble.export_command", *options)
            _run(*command, "--repository", str(target / precision), env=environment)


def main() -> int:
    """Unpack, check and run; what it does not know goes to benchmarks.gpu."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="All other options are those of benchmarks.gpu.")
    parser.add_argument("--work", type=Path, default=KIT, help="for the environment and exports (default: the kit)")
    parser.add_argument("--output", type=Path, default=Path("gpu-results"), help="for the JSON (default: %(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--export-with", default=sys.executable, metavar="PYTHON", help="one that has PyTorch and onnx")
    parser.add_argument("--model", default="ViT-B-32", help="to export, where the kit has no models")
    parser.add_argument("--pretrained", default="random:0")
    arguments, rest = parser.parse_known_args()
    work: Path = arguments.work.resolve()
    try:
        check_files(KIT)
        check_python(KIT / "wheels")
        python = make_environment(KIT, work / "venv")
        exports = KIT / "exports"
        if not exports.is_dir():
            exports = work / "exports"
            make_exports(KIT, exports, arguments.export_with, arguments.model, arguments.pretrained)
        # The one that was carried is of another build: only where there is none.
        extra = [] if has_libpython() else [str(KIT / "libpython")]
        folders = [*extra, *map(str, library_folders(KIT)), os.environ.get("LD_LIBRARY_PATH", "")]
        environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders))}
        environment.pop("PYTHONPATH", None)
        if arguments.device == "cuda":
            provider = next(work.glob(f"venv/lib/python3*/site-packages/{PROVIDER}"), None)
            if provider is None:
                raise RunError("The kit has no onnxruntime-gpu: gather it without --onnxruntime, or say --device cpu.")
            if lacking := missing_libraries(provider, environment):
                raise RunError(
                    f"ONNX Runtime's CUDA provider lacks {', '.join(lacking)}: install the CUDA that it is built for, "
                    "or add its folder to LD_LIBRARY_PATH."
                )
    except (RunError, OSError) as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 1
    command = [str(python), "-m", "benchmarks.gpu", "--exports", str(exports), "--photos", str(KIT / "photos")]
    options = ["--output", str(arguments.output.resolve()), "--device", arguments.device, *rest]
    return subprocess.run([*command, *options], check=False, env=environment, cwd=KIT / "tree").returncode


if __name__ == "__main__":
    sys.exit(main())
