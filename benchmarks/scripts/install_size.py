"""How large is each installation, and how long does it take beside downloads?

Each extra is installed from the wheel of this tree into a fresh environment without pip. All files are downloaded into
a folder first; then pip installs from that folder alone, and only this is timed. The size is that of site-packages as
``du`` counts it, with the compiled bytecode; 1 MB is 1,000,000 bytes. ``make demo`` runs twice, in fresh clones of the
last commit: with downloads, and then from their folder, with the weights that the first run found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.harness.experiment import Run, experiment, option

ROOT: Final = Path(__file__).parents[2]
EXTRAS: Final[Mapping[str, str]] = {
    "": "the Python client",
    "cli": "`clip-client embed`, `health`, `profile`, `doctor`",
    "cli,dedup": "and `clip-client dedup`, `undo`, `purge`, `decide`, `rules`, `tune`, `search`, `similar`",
    "cli,dedup,review": "and `clip-client review`",
    "cli,local": "the model in your own process",
    "laptop": "`cli`, `dedup`, `local`, `phone`, `raw` and `review`: all that a photographer needs",
    "laptop,photos": "and libraries of Apple Photos",
    "server,local": "`clip-serve` and `tritonserver` on a CPU (Linux x86-64, Python 3.11 or 3.12)",
    "cli,dedup,qdrant": "and `clip-client index` and `search` with Qdrant",
    "gateway": "`clip-gateway`",
    "ray": "`cli` and `dedup` with `--engine ray`",
    "export,local": "PyTorch and open_clip, for models that `clip-export` cannot write without them",
}
"""Extras as in ``pip install 'clip-triton[EXTRAS]'`` -> what they bring."""
PYTHON: Final = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")


def run_command(*command: str | Path, cwd: Path = ROOT, variables: Mapping[str, str] | None = None) -> float:
    """Run a command and return its seconds; exits with the end of its output if it fails."""
    started, environment = time.monotonic(), {**os.environ, **(variables or {})}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}:\n{(done.stdout + done.stderr)[-4000:]}")
    return time.monotonic() - started


def offline(wheels: Path) -> dict[str, str]:
    """Variables that make every pip install from this folder alone, without a cache."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_NO_CACHE_DIR": "1"}


def disk_mb(directory: Path) -> float:
    """What the files below a directory take on the disk; links are not followed."""
    return sum(path.lstat().st_blocks * 512 for path in directory.rglob("*")) / 1e6


def install_extras(wheel: Path, extras: str, scratch: Path) -> dict[str, float]:
    """Install the wheel with these extras; return megabytes and seconds."""
    requirement = f"{wheel}[{extras}]" if extras else str(wheel)
    wheels, environment = scratch / "wheels", scratch / "venv"
    run_command(sys.executable, "-m", "pip", "download", "--dest", wheels, requirement, "setuptools", "wheel")
    venv.EnvBuilder(symlinks=True, clear=True).create(environment)
    pip = (sys.executable, "-m", "pip", "--python", environment / "bin" / "python")
    seconds = run_command(*pip, "install", requirement, variables=offline(wheels))
    (site_packages,) = environment.glob("lib/python*/site-packages")
    found = {"installed_mb": disk_mb(site_packages), "downloaded_mb": disk_mb(wheels), "seconds": seconds}
    shutil.rmtree(wheels)
    return found


def run_demo(scratch: Path) -> dict[str, float]:
    """Run ``make demo`` with and without downloads, in fresh clones; return megabytes and seconds."""
    first, second, wheels, pinned = (scratch / name for name in ("first", "second", "wheels", "pinned.txt"))
    for clone in (first, second):
        run_command("git", "clone", "--quiet", ROOT, clone)
    # Caches and settings below an empty home; PIP_* variables that name an index stay.
    home = {"HOME": str(scratch), "XDG_CACHE_HOME": str(scratch / "cache"), "HF_HOME": str(scratch / "cache" / "hub")}
    with_downloads = run_command("make", "demo", f"PYTHON={PYTHON}", cwd=first, variables=home)
    pip = first / ".venv" / "bin" / "python", "-m", "pip"
    # Not the setuptools and pip of a new environment: the build of this package needs newer ones.
    listed = (*pip, "list", "--format=freeze", "--exclude-editable", "--exclude=setuptools", "--exclude=pip")
    pinned.write_text(subprocess.check_output(listed, text=True), encoding="utf-8")
    download = (*pip, "download", "--dest", wheels)  # from pip's cache below that home
    run_command(*download, "--no-deps", "--requirement", pinned, variables=home)
    run_command(*download, "setuptools", "setuptools-scm", "wheel", variables=home)  # for the builds
    size = disk_mb(first / ".venv")
    shutil.rmtree(first)
    variables = {**home, **offline(wheels), "HF_HUB_OFFLINE": "1"}
    seconds = run_command("make", "demo", f"PYTHON={PYTHON}", cwd=second, variables=variables)
    figures = {"installed_mb": size, "downloaded_mb": disk_mb(wheels), "seconds": seconds}
    return {**figures, "seconds_with_downloads": with_downloads}


@experiment(
    option("--extras", nargs="*", default=list(EXTRAS), choices=EXTRAS, help="as in pip install 'clip-triton[EXTRAS]'"),
    option("--no-demo", dest="demo", action="store_false", help="leave out make demo"),
)
def measure(run: Run) -> dict[str, Any]:
    """Install each of the extras, and run ``make demo``."""
    saved = run.checkpoint(total=len(run.options.extras) + run.options.demo)
    run_command(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", run.scratch / "packages", ROOT)
    (wheel,) = (run.scratch / "packages").glob("clip_triton-*.whl")
    extras = {
        name: saved.cell(f"extras {name or 'none'}", partial(install_extras, wheel, name, run.scratch))
        for name in run.options.extras
    }
    demo = {"demo": saved.cell("demo", partial(run_demo, run.scratch))} if run.options.demo else {}
    return {"summary": {"extras": extras, **demo}}
