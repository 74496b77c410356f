"""What does the experiment gpu need on a machine without a network? Gathers it in an offline bundle.

The bundle is one folder: wheels for that machine's Python, exported models, photos, this source tree, two system
libraries, and ``run.py``, which unpacks and runs them (``docs/gpu.md``). NVIDIA's driver, CUDA and cuDNN are not in it.
"""

from __future__ import annotations

import argparse
import configparser
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from PIL import Image, ImageOps

from benchmarks.fixtures.sample_photos import write_originals, write_thumbnails
from benchmarks.harness.results import output

ROOT: Final = Path(__file__).parents[2]
TREE: Final = ("benchmarks", "clip_client", "preprocess_ensemble")
ADDED: Final = ("nvidia-ml-py>=12.560", "onnx>=1.17", "psutil>=6", "rich>=13.7")
"""What the experiments need and a server does not."""
LIMITED: Final = {"numpy": "numpy>=1.26,<2"}
"""The Python stubs of nvidia-pytriton's Triton corrupt text tensors with NumPy 2."""
ALONE: Final = ("nvidia-pytriton>=0.7,<0.8", "pip")
"""Downloaded without their dependencies: of nvidia-pytriton only the server is used, not its Python code."""
BUILT: Final = ("PyTurboJPEG>=1.7,<2",)
"""Pure Python, published as source only; the wheel is built here. Version 2 needs a newer libjpeg-turbo."""
GLIBC: Final = range(39, 4, -1)
"""pip matches ``manylinux_2_N`` exactly; the server needs glibc 2.35."""
TURBOJPEG: Final = "libturbojpeg.so.0"
"""Debian's libturbojpeg0, the fast JPEG decoder."""
SIDE: Final = 224
QUALITY: Final = 85


def requirements() -> list[str]:
    """What this package and its server require by ``setup.cfg``, without what is fetched in another way."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = config["options"]["install_requires"] + config["options.extras_require"]["server"]
    found = dict.fromkeys(line.partition(";")[0].strip() for line in listed.splitlines() if line.strip())
    other = {_name(one) for one in (*ALONE, *BUILT)}
    return [LIMITED.get(_name(one), one) for one in found if _name(one) not in other] + list(ADDED)


def _name(requirement: str) -> str:
    return requirement.partition(">")[0].partition("[")[0].strip()


def run_module(*arguments: str | Path) -> None:
    """Run ``python -m``. Exits if it fails; the module has printed why."""
    if subprocess.run([sys.executable, "-m", *arguments], check=False, stdout=sys.stderr).returncode:
        raise SystemExit(f"gpu_kit: python -m {arguments[0]} {arguments[1]} failed: see above")


def fetch_wheels(directory: Path, python: str) -> None:
    """Let pip fetch wheels for Linux on x86-64 and this version of Python."""
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in GLIBC]
    platforms += ["--platform=manylinux2014_x86_64", "--platform=manylinux1_x86_64"]
    target = ("--only-binary=:all:", f"--python-version={python}", "--implementation=cp", *platforms)
    for names in (("onnxruntime-gpu", *requirements()), ("--no-deps", *ALONE)):
        run_module("pip", "download", "--quiet", "--dest", directory, *target, *names)
    run_module("pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", directory, *BUILT)


def copy_tree(target: Path) -> None:
    """Copy the packages, without results, and write the commit to ``COMMIT``."""
    for name in TREE:
        left_out = shutil.ignore_patterns("__pycache__", "results")
        shutil.copytree(ROOT / name, target / name, ignore=left_out, dirs_exist_ok=True)
    commit = output("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
    (target / "COMMIT").write_text(f"{commit or 'unknown'}\n")


def copy_turbojpeg(target: Path) -> bool:
    """Copy the fast JPEG decoder; False if it is not installed here."""
    known = {line.split()[0]: line.rpartition("=> ")[2] for line in (output("ldconfig", "-p") or "").splitlines()[1:]}
    target.mkdir(parents=True, exist_ok=True)
    if TURBOJPEG in known:
        shutil.copyfile(known[TURBOJPEG], target / TURBOJPEG)
    return TURBOJPEG in known


def copy_libpython(target: Path, version: str) -> bool:
    """Copy the shared library of a Python of this version, which Triton's stub links; False if there is none here.

    Its compiled modules are copied too. The Python of Debian and Ubuntu has many of them built in, so a library of
    another build would not find them there as files.
    """
    asked = "import sysconfig; print(*map(sysconfig.get_config_var, ('LIBDIR', 'DESTSHARED')))"
    name = f"libpython{version}.so.1.0"
    for python in (f"python{version}", *sorted(Path.home().glob(f".pyenv/versions/{version}*/bin/python"))):
        folders = (output(str(python), "-c", asked) or "").split()
        if len(folders) == 2 and (library := Path(folders[0], name)).is_file():
            target.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(library, target / name)
            tests = shutil.ignore_patterns("_test*", "xxlimited*", "_xxtestfuzz*", "_ctypes_test*")
            shutil.copytree(folders[1], target / "lib-dynload", ignore=tests, dirs_exist_ok=True)
            return True
    return False


def write_photos(target: Path) -> None:
    """Write two folders of small JPEG files: ``224``, squares of the model's input size, and ``256``, thumbnails."""
    write_thumbnails(target / "256")
    squares = target / "224"
    squares.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as originals:
        for path in write_originals(Path(originals)):
            with Image.open(path) as photo:
                square = ImageOps.fit(photo.convert("RGB"), (SIDE, SIDE), Image.Resampling.LANCZOS)
                square.save(squares / f"{path.stem}.jpg", quality=QUALITY)


def write_checksums(directory: Path) -> int:
    """Write the SHA-256 of every file to ``SHA256SUMS``, for ``run.py`` to check; return the total size."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(directory)}\n" for path in paths]
    (directory / "SHA256SUMS").write_text("".join(lines))
    return sum(path.stat().st_size for path in paths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--python", default="3.12", help="version on the machine with the card (default: %(default)s)")
    parser.add_argument("--model", default="ViT-B-32")
    parser.add_argument("--pretrained", default="random:0")
    arguments = parser.parse_args()
    bundle: Path = arguments.output
    bundle.mkdir(parents=True, exist_ok=True)
    fetch_wheels(bundle / "wheels", arguments.python)
    for precision in ("fp32", "fp16"):
        weights = ("--model", arguments.model, "--pretrained", arguments.pretrained, "--precision", precision)
        run_module("preprocess_ensemble.export.command", *weights, "--repository", bundle / "exports" / precision)
    write_photos(bundle / "photos")
    copy_tree(bundle / "tree")
    missing = [] if copy_turbojpeg(bundle / "libraries") else [TURBOJPEG]
    if not copy_libpython(bundle / "libpython", arguments.python):
        missing.append(f"libpython{arguments.python}.so.1.0")
    shutil.copyfile(ROOT / "benchmarks" / "gpu" / "run.py", bundle / "run.py")
    if missing:
        found_in = "(apt-get install libturbojpeg0)"
        print(f"not installed here, so not in the bundle: {', '.join(missing)} {found_in}", file=sys.stderr)
    print(f"{bundle}: {write_checksums(bundle) / 1e6:.0f} MB; on the other machine: python3 {bundle.name}/run.py")
