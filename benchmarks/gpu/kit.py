"""What does the experiment gpu need on a machine without a network? Gathers it in parts that fit small limits.

The kit is one folder: parts of an archive with the wheels that a Python with PyTorch lacks, photos and this source
tree; their checksums; and ``run.py``, which joins, unpacks and runs them (``docs/gpu.md``). Weights are not in it:
random ones are made there.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from PIL import Image, ImageOps

from benchmarks.fixtures.sample_photos import sample_pictures, write_thumbnails
from benchmarks.harness.results import output

ROOT: Final = Path(__file__).parents[2]
TREE: Final = ("benchmarks", "clip_client", "preprocess_ensemble")
WHEELS: Final = (
    "onnxruntime-gpu open_clip_torch ftfy wcwidth grpcio protobuf<7 tritonclient python-rapidjson platformdirs".split()
)
"""Packages that an environment for PyTorch lacks, or may have in a version that tritonclient refuses."""
GLIBC: Final = range(39, 4, -1)
"""pip matches ``manylinux_2_N`` exactly."""
SIDE: Final = 224
QUALITY: Final = 85


def unpack_wheels(names: Sequence[str], python: str, target: Path) -> None:
    """Let pip fetch wheels for Linux on x86-64 and this version of Python, and unpack them; exit if pip fails."""
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in GLIBC]
    platforms += ["--platform=manylinux2014_x86_64", "--platform=manylinux1_x86_64"]
    options = ("--only-binary=:all:", f"--python-version={python}", "--implementation=cp", *platforms)
    with tempfile.TemporaryDirectory() as wheels:
        download = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", wheels)
        if subprocess.run([*download, *options, *names], check=False, stdout=sys.stderr).returncode:
            raise SystemExit("gpu_kit: pip download failed: see above")
        for wheel in Path(wheels).iterdir():
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(target)


def copy_tree(target: Path) -> None:
    """Copy the packages, without results, and write the commit to ``COMMIT``."""
    for name in TREE:
        left_out = shutil.ignore_patterns("__pycache__", "results")
        shutil.copytree(ROOT / name, target / name, ignore=left_out, dirs_exist_ok=True)
    commit = output("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
    (target / "COMMIT").write_text(f"{commit or 'unknown'}\n")


def write_photos(target: Path) -> None:
    """Write two folders of small JPEG files: ``224``, squares of the model's input size, and ``256``, thumbnails."""
    write_thumbnails(target / "256")
    squares = target / "224"
    squares.mkdir(parents=True, exist_ok=True)
    for stem, photo in sample_pictures().items():
        square = ImageOps.fit(photo, (SIDE, SIDE), Image.Resampling.LANCZOS)
        square.save(squares / f"{stem}.jpg", quality=QUALITY)


def write_parts(content: Path, kit: Path, part_bytes: int) -> list[Path]:
    """Pack ``content`` and cut the archive into parts, with their SHA-256 in ``SHA256SUMS``; return the parts."""
    kit.mkdir(parents=True, exist_ok=True)
    for old in kit.glob("part-*"):
        old.unlink()
    parts: list[Path] = []
    sums = ""
    with tempfile.TemporaryFile() as packed:
        with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=6) as archive:
            archive.add(content, arcname=".")
        packed.seek(0)
        while data := packed.read(part_bytes):
            parts.append(kit / f"part-{len(parts) + 1:02}")
            parts[-1].write_bytes(data)
            sums += f"{hashlib.sha256(data).hexdigest()}  {parts[-1].name}\n"
    (kit / "SHA256SUMS").write_text(sums)
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu_kit", description=__doc__)
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--python", default="3.12", help="version on the machine with the card (default: %(default)s)")
    parser.add_argument("--parts", type=float, default=50, metavar="MIB", help="most of a part (default: %(default)s)")
    parser.add_argument("--wheels", nargs="*", default=WHEELS, help="default: %(default)s")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.wheels:
            unpack_wheels(arguments.wheels, arguments.python, Path(folder))
        copy_tree(Path(folder))
        write_photos(Path(folder, "photos"))
        parts = write_parts(Path(folder), arguments.output, int(arguments.parts * 2**20))
    shutil.copyfile(Path(__file__).with_name("run.py"), arguments.output / "run.py")
    mib = sum(part.stat().st_size for part in parts) / 2**20
    print(f"{arguments.output}: {len(parts)} parts, {mib:.1f} MiB; there: python3 {arguments.output.name}/run.py")
