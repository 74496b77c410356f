"""Join the parts of the kit in this folder and measure the card: ``python3 run.py [options of benchmarks gpu]``.

It needs a Python with PyTorch, but no pip and no network. A second run uses what the first one unpacked and made.
"""

from __future__ import annotations

import argparse
import os
import shutil
import site
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

KIT = Path(__file__).resolve().parent
PROVIDER = "onnxruntime/capi/libonnxruntime_providers_cuda.so"
OPENED_LATER = ("libcudnn.so.9",)
"""Libraries that the provider opens by name when it first needs them."""
DEFAULTS = ("--minutes=9", "--runs", "vectors", "load", "one_caller", "graphs", "tensorrt")
"""The runs that need no Triton. A rented machine may end a command after ten minutes, of which unpacking takes one."""


class RunError(Exception):
    """The kit cannot be run here; the message is one sentence with the remedy."""


def unpack(kit: Path, target: Path) -> None:
    """Compare each part with its checksum, join them and unpack them into ``target``, unless that is done already.

    Raises RunError if a part is missing, incomplete or damaged.
    """
    stamp = target / ".complete"
    if stamp.exists():
        return
    command = ("sha256sum", "--check", "--quiet", "SHA256SUMS")
    if subprocess.run(command, cwd=kit, check=False, stdout=sys.stderr).returncode:
        raise RunError("A part is missing or damaged, see above: copy it again.")
    shutil.rmtree(target, ignore_errors=True)
    joined = kit / "joined.tar.gz"
    with joined.open("wb") as file:
        for line in (kit / "SHA256SUMS").read_text().splitlines():
            file.write((kit / line.split()[-1]).read_bytes())
    with tarfile.open(joined) as archive:
        archive.extractall(target, filter="data")
    joined.unlink()
    stamp.touch()


def library_folders() -> list[Path]:
    """Folders that may hold CUDA, cuDNN and TensorRT: packages of the Python that runs this, then the system's."""
    packages = {Path(sysconfig.get_path("purelib")), *map(Path, site.getsitepackages())}
    found = []
    for folder in sorted(packages):
        found += [path.parent for path in sorted(folder.glob("nvidia/**/*.so*"))]
        found += [folder / "tensorrt_libs"]
    found += sorted(Path("/usr/local").glob("cuda*/lib64"), reverse=True)
    found += [Path("/usr/local/nvidia/lib64")]
    return list(dict.fromkeys(folder for folder in found if folder.is_dir()))


def environment_with(folders: list[Path], tree: Path) -> dict[str, str]:
    """This process's environment with ``folders`` first in the linker's path, and ``tree`` in Python's."""
    paths = {"LD_LIBRARY_PATH": folders, "PYTHONPATH": [tree]}
    joined = {name: [*map(str, first), os.environ.get(name, "")] for name, first in paths.items()}
    return {**os.environ, **{name: os.pathsep.join(filter(None, words)) for name, words in joined.items()}}


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


def check_cuda(tree: Path, environment: dict[str, str]) -> None:
    """Raise RunError if the driver or a library that ONNX Runtime's CUDA provider in ``tree`` needs is missing."""
    provider = tree / PROVIDER
    if not provider.is_file():
        raise RunError("The kit has no onnxruntime-gpu: gather it again, or add --device cpu.")
    asked = "import sys; from clip_client.serving.tensorrt import usable_gpus; sys.exit(not usable_gpus())"
    if subprocess.run([sys.executable, "-c", asked], check=False, env=environment).returncode:
        raise RunError(
            "The driver shows no NVIDIA GPU here (does nvidia-smi?): use a machine that has one, or add --device "
            "cpu --quick to try everything except the card."
        )
    if lacking := missing_libraries(provider, environment):
        raise RunError(
            f"ONNX Runtime's CUDA provider lacks {', '.join(lacking)}. Start run.py with a Python that has them as "
            "packages (a PyTorch for the same CUDA contains most), or install this CUDA and cuDNN 9 and add their "
            "folder to LD_LIBRARY_PATH."
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, epilog="All other options are passed on to benchmarks gpu.")
    parser.add_argument("--work", type=Path, default=KIT, help="for what is unpacked and made (default: the kit)")
    parser.add_argument("--output", type=Path, default=Path("gpu-results"), help="for the JSON (default: %(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    arguments, rest = parser.parse_known_args()
    work = arguments.work.resolve()
    tree = work / "unpacked"
    environment = environment_with(library_folders(), tree)
    try:
        unpack(KIT, tree)
        if arguments.device == "cuda":
            check_cuda(tree, environment)
    except (RunError, OSError) as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 1
    paths = {"exports": work / "exports", "photos": tree / "photos", "output": arguments.output.resolve()}
    options = [f"--{name}={path}" for name, path in paths.items()]
    options += [f"--device={arguments.device}", *DEFAULTS, *rest]
    command = [sys.executable, "-m", "benchmarks.gpu.command", *options]
    return subprocess.run(command, check=False, env=environment, cwd=tree).returncode


if __name__ == "__main__":
    sys.exit(main())
