"""How large is each installation, and how long does it take beside downloads?

Each extra is installed from the wheel of this tree into a fresh environment of its own without pip. All files are
downloaded into a folder first; then pip installs from that folder alone, and only this is timed. The size is that of
the environment's site-packages as ``du`` counts it, with the compiled bytecode; 1 MB is 1,000,000 bytes.

``make demo`` runs twice, each time in a fresh clone of the last commit. The first run has empty caches and downloads
what it needs. The second one gets the same packages from a folder, and the weights that the first run found: it is the
work beside downloads, from ``make demo`` to the printed groups. Its size is that of ``.venv``.
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
from benchmarks.harness.results import show
from preprocess_ensemble.errors import ReportedError

ROOT: Final = Path(__file__).parents[3]
EXTRAS: Final[Mapping[str, str]] = {
    "": "the Python client",
    "cli": "`clip-client embed`, `similar`, `health`, `profile`, `doctor`",
    "cli,dedup": "and `clip-client dedup`, `undo`, `purge`, `decide`, `rules`, `tune`",
    "cli,dedup,review": "and `clip-client review`",
    "cli,local": "the model in your own process",
    "laptop": "`cli`, `dedup`, `local`, `phone`, `raw` and `review`: all that a photographer needs",
    "laptop,photos": "and libraries of Apple Photos",
    "server,local": "`clip-serve` and `tritonserver` on a CPU (Linux x86-64, Python 3.10 to 3.12)",
    "ray": "`cli` and `dedup` with `--engine ray`",
    "export,local": "PyTorch and open_clip, for models that `clip-export` cannot write without them",
}
"""Extras as in ``pip install 'clip-triton[EXTRAS]'`` -> what they bring."""
PYTHON: Final = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
"""The interpreter that environments are made with."""
_MB: Final = 1e6


class InstallationFailed(ReportedError):
    """A command ended with an error; the message is the end of its output."""


def run_command(*command: str | Path, cwd: Path = ROOT, variables: Mapping[str, str] | None = None) -> float:
    """Run a command and return its seconds. Raises InstallationFailed."""
    started = time.monotonic()
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(variables or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise InstallationFailed(f"{' '.join(map(str, command))}:\n{done.stdout[-4000:]}")
    return time.monotonic() - started


def offline(wheels: Path) -> dict[str, str]:
    """Return variables that make every pip install from this folder alone, without a cache."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_NO_CACHE_DIR": "1"}


def disk_bytes(directory: Path) -> int:
    """Bytes that the files below a directory take on the disk; links are not followed."""
    return sum(path.lstat().st_blocks * 512 for path in directory.rglob("*"))


def install_extras(wheel: Path, extras: str, scratch: Path) -> dict[str, float]:
    """Install the wheel with these extras; return megabytes and seconds."""
    requirement = f"{wheel}[{extras}]" if extras else str(wheel)
    wheels, environment = scratch / "wheels", scratch / "venv"
    run_command(sys.executable, "-m", "pip", "download", "--dest", wheels, requirement, "setuptools", "wheel")
    venv.EnvBuilder(symlinks=True).create(environment)
    pip = (sys.executable, "-m", "pip", "--python", environment / "bin" / "python")
    seconds = run_command(*pip, "install", requirement, variables=offline(wheels))
    (site_packages,) = environment.glob("lib/python*/site-packages")
    found = {"installed_mb": disk_bytes(site_packages) / _MB, "downloaded_mb": disk_bytes(wheels) / _MB}
    for directory in (wheels, environment):
        shutil.rmtree(directory)
    return {**found, "seconds": seconds}


def run_demo(scratch: Path) -> dict[str, float]:
    """Run ``make demo`` with and without downloads, in fresh clones; return megabytes and seconds."""
    clones = [scratch / "first", scratch / "second"]
    for clone in clones:
        run_command("git", "clone", "--quiet", ROOT, clone)
    # Caches and settings below an empty home; PIP_* variables that name an index stay.
    home = {"HOME": str(scratch), "XDG_CACHE_HOME": str(scratch / "cache"), "HF_HOME": str(scratch / "cache" / "hub")}
    with_downloads = run_command("make", "demo", f"PYTHON={PYTHON}", cwd=clones[0], variables=home)
    pip = clones[0] / ".venv" / "bin" / "python", "-m", "pip"
    # Not the setuptools and pip of a new environment: the build of this package needs newer ones.
    listed = (*pip, "list", "--format=freeze", "--exclude-editable", "--exclude=setuptools", "--exclude=pip")
    frozen = subprocess.check_output(listed, text=True)
    pinned = scratch / "pinned.txt"
    pinned.write_text(frozen, encoding="utf-8")
    wheels = scratch / "wheels"
    download = (*pip, "download", "--dest", wheels, "--no-deps", "--requirement", pinned, "setuptools", "wheel")
    run_command(*download, variables=home)  # from pip's cache below that home
    size = disk_bytes(clones[0] / ".venv")
    shutil.rmtree(clones[0])
    variables = {**home, **offline(wheels), "HF_HUB_OFFLINE": "1"}
    seconds = run_command("make", "demo", f"PYTHON={PYTHON}", cwd=clones[1], variables=variables)
    return {
        "installed_mb": size / _MB,
        "downloaded_mb": disk_bytes(wheels) / _MB,
        "seconds": seconds,
        "seconds_with_downloads": with_downloads,
    }


@experiment(
    option("--extras", nargs="*", default=list(EXTRAS), choices=EXTRAS, help="as in pip install 'clip-triton[EXTRAS]'"),
    option("--no-demo", dest="demo", action="store_false", help="leave out make demo"),
)
def measure(run: Run) -> dict[str, Any]:
    """Install each of the extras, and run ``make demo``."""
    saved = run.checkpoint(total=len(run.options.extras) + run.options.demo)
    packages = run.scratch / "packages"
    run_command(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", packages, ROOT)
    (wheel,) = packages.glob("clip_triton-*.whl")
    extras = {
        name: saved.cell(f"extras {name or 'none'}", partial(install_extras, wheel, name, run.scratch))
        for name in run.options.extras
    }
    rows = {name or "no extra": figures for name, figures in extras.items()}
    summary: dict[str, Any] = {"extras": extras}
    if run.options.demo:
        rows["make demo"] = summary["demo"] = saved.cell("demo", partial(run_demo, run.scratch))
    show(
        "Installations",
        ("installation", "MB installed", "MB downloaded", "s beside downloads"),
        [
            (name, *(f"{figures[key]:.0f}" for key in ("installed_mb", "downloaded_mb", "seconds")))
            for name, figures in rows.items()
        ],
        width=100,
    )
    return {"summary": summary}
