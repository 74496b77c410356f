"""Gather what a machine without a network needs for the study of its card: ``python -m benchmarks gpu_kit``.

One folder: wheels for that machine's Python, exported models, photos, this tree, two system libraries, and ``run.py``,
which unpacks and runs all of it (``docs/gpu.md``). NVIDIA's driver, CUDA and cuDNN are that machine's own.
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.gpu.photos import write_photos
from benchmarks.harness.environment import output

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT: Final = Path(__file__).parents[2]
TREE: Final = ("benchmarks", "clip_client", "preprocess_ensemble")
REQUIREMENTS: Final = (
    "anyio>=4.4",
    "grpcio>=1.62",
    # The stubs of the pip-installed Triton lose text tensors with NumPy 2.
    "numpy>=1.26,<2",
    "nvidia-ml-py>=12.560",
    "pillow>=11.3",
    "protobuf>=4.25",
    "psutil>=6",
    "rich>=13.7",
    "tritonclient[grpc]>=2.51",
)
ALONE: Final = ("nvidia-pytriton>=0.7,<0.8", "pip")
"""Without what they require: of nvidia-pytriton the server is used and not its Python."""
BUILT: Final = ("PyTurboJPEG>=1.7,<2",)
"""Pure Python that is published as source only; the wheel is made here. Its 2.x needs a newer libjpeg-turbo."""
EXPORT: Final = ("ftfy", "open_clip_torch>=2.30", "python-rapidjson", "tritonclient>=2.51", "urllib3", "wcwidth")
"""What a Python with PyTorch, torchvision, timm, onnx and gRPC lacks for an export: open_clip, and the messages of
Triton's configuration with what importing them takes."""
GLIBC: Final = range(39, 4, -1)
"""pip matches ``manylinux_2_N`` exactly; the server needs glibc 2.35."""
LIBRARIES: Final = ("libturbojpeg.so.0", "libb64.so.0d")
"""Debian's libturbojpeg0 and libb64-0d: the fast JPEG decoder, and perf_analyzer's."""


class KitError(Exception):
    """The kit cannot be gathered; the message is one sentence with the remedy."""


def download(directory: Path, python: str, requirements: Iterable[str], *options: str) -> None:
    """Let pip fetch wheels for 64-bit Linux on x86 and this version of Python. Raises KitError."""
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in GLIBC]
    platforms += ["--platform=manylinux2014_x86_64", "--platform=manylinux1_x86_64"]
    target = ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp", *platforms]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(directory), *target, *options]
    if subprocess.run([*command, *requirements], check=False, stdout=sys.stderr).returncode:
        raise KitError(f"pip cannot bring {', '.join(requirements)} for Python {python}: see above.")


def build(directory: Path, requirements: Iterable[str]) -> None:
    """Let pip make wheels of packages without compiled code. Raises KitError."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(directory)]
    if subprocess.run([*command, *requirements], check=False, stdout=sys.stderr).returncode:
        raise KitError(f"pip cannot build {', '.join(requirements)}: see above.")


def copy_tree(target: Path) -> None:
    """Copy the packages' tracked and new files without results, and note the commit."""
    listed = output("git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", *TREE)
    if listed is None:
        raise KitError(f"{ROOT} is no git checkout: gather the kit in one.")
    for name in listed.splitlines():
        source = ROOT / name
        if source.is_file() and not name.startswith("benchmarks/results/"):
            copy = target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
    commit = output("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
    (target / "COMMIT").write_text(f"{commit or 'unknown'}\n")


def copy_libraries(target: Path) -> list[str]:
    """Copy the system libraries that are installed here; return the names of those that are not."""
    known = {line.split()[0]: line.rpartition("=> ")[2] for line in (output("ldconfig", "-p") or "").splitlines()[1:]}
    target.mkdir(parents=True, exist_ok=True)
    for name in LIBRARIES:
        if name in known:
            shutil.copyfile(known[name], target / name)
    return [name for name in LIBRARIES if name not in known]


def copy_libpython(target: Path, version: str) -> bool:
    """Copy the shared library of a Python of this version, which Triton's stub links; False where none is here.

    Its own compiled modules go with it: Debian's and Ubuntu's Python has many of them built in, so the library of
    another build finds no file of them there.
    """
    asked = "import sysconfig; print(*map(sysconfig.get_config_var, ('LIBDIR', 'DESTSHARED')))"
    name = f"libpython{version}.so.1.0"
    for python in (f"python{version}", str(Path.home() / ".pyenv" / "versions" / f"{version}*" / "bin" / "python")):
        for found in sorted(glob.glob(python)) or [python]:
            folders = (output(found, "-c", asked) or "").split()
            if len(folders) == 2 and (library := Path(folders[0], name)).is_file():
                target.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(library, target / name)
                tests = shutil.ignore_patterns("_test*", "xxlimited*", "_xxtestfuzz*", "_ctypes_test*")
                shutil.copytree(folders[1], target / "lib-dynload", ignore=tests, dirs_exist_ok=True)
                return True
    return False


def write_exports(target: Path, source: Path | None, model: str, pretrained: str) -> None:
    """Copy ``source``'s repositories fp32 and fp16, or export them. Raises KitError."""
    for precision in ("fp32", "fp16"):
        if source is not None:
            shutil.copytree(source / precision, target / precision, dirs_exist_ok=True)
            continue
        command = [sys.executable, "-m", "preprocess_ensemble.export.command", "--model", model]
        options = ["--pretrained", pretrained, "--precision", precision, "--repository", str(target / precision)]
        if subprocess.run([*command, *options], check=False).returncode:
            raise KitError(f"{model} cannot be exported in {precision}: see above.")


def write_manifest(directory: Path) -> int:
    """List every file with its size and SHA-256 in ``MANIFEST.json``, which ``run.py`` checks; return all bytes."""
    files = {}
    total = 0
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.name != "MANIFEST.json":
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            size = path.stat().st_size
            files[str(path.relative_to(directory))] = {"bytes": size, "sha256": digest}
            total += size
    (directory / "MANIFEST.json").write_text(json.dumps(files, indent=1) + "\n")
    return total


def main() -> int:
    """Gather; 0, or 1 with one sentence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--python", default="3.12", help="of the machine with the card (default: %(default)s)")
    parser.add_argument("--onnxruntime", default="onnxruntime-gpu", help="or onnxruntime, to try the kit on a CPU")
    parser.add_argument("--exports", type=Path, help="folder with repositories fp32 and fp16 (default: made here)")
    parser.add_argument("--model", default="ViT-B-32")
    parser.add_argument("--pretrained", default="random:0")
    parser.add_argument(
        "--without-models", action="store_true", help="carry what an export over there needs instead: 2 MB, not 500"
    )
    arguments = parser.parse_args()
    kit: Path = arguments.output
    kit.mkdir(parents=True, exist_ok=True)
    try:
        wheels = (arguments.onnxruntime, *REQUIREMENTS)
        download(kit / "wheels", arguments.python, wheels)
        download(kit / "wheels", arguments.python, ALONE, "--no-deps")
        build(kit / "wheels", BUILT)
        if arguments.without_models:
            download(kit / "export-wheels", arguments.python, EXPORT, "--no-deps")
        else:
            write_exports(kit / "exports", arguments.exports, arguments.model, arguments.pretrained)
        write_photos(kit / "photos")
        copy_tree(kit / "tree")
        missing = copy_libraries(kit / "libraries")
        if not copy_libpython(kit / "libpython", arguments.python):
            missing.append(f"libpython{arguments.python}.so.1.0")
        shutil.copyfile(ROOT / "benchmarks" / "gpu" / "run.py", kit / "run.py")
    except (KitError, OSError) as error:
        print(f"gpu_kit: {error}", file=sys.stderr)
        return 1
    if missing:
        print(
            f"not here, so not carried: {', '.join(missing)} (apt-get install libturbojpeg0 libb64-0d)", file=sys.stderr
        )
    print(f"{kit}: {write_manifest(kit) / 1e6:.0f} MB; over there: python3 {kit.name}/run.py")
    return 0


if __name__ == "__main__":
    sys.exit(main())
