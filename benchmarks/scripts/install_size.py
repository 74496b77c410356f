"""How large is each installation?

Each extra is installed from the wheel of this tree into a fresh environment without pip. The size is that of
site-packages as ``du`` counts it, with the compiled bytecode; 1 MB is 1,000,000 bytes.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.harness.experiment import Run, experiment, option

ROOT: Final = Path(__file__).parents[2]
EXTRAS: Final[Mapping[str, str]] = {
    "": "the Python client",
    "cli": "`clip-client embed`, `health`, `doctor`",
    "cli,dedup": "and `clip-client dedup`, `undo`, `purge`, `decide`, `rules`, `search`, `similar`",
    "cli,dedup,review": "and `clip-client review`",
    "cli,local": "the model in your own process",
    "laptop": "`cli`, `dedup`, `local`, `phone`, `raw` and `review`: all that a photographer needs",
    "laptop,photos": "and libraries of Apple Photos",
    "server,local": "`clip-serve` and `tritonserver` on a CPU (Linux x86-64, Python 3.11 or 3.12)",
    "gateway": "`clip-gateway`",
    "ray": "`cli` and `dedup` with `--engine ray`",
    "export,local": "PyTorch and open_clip, for models that `clip-export` cannot write without them",
}
"""Extras as in ``pip install '.[EXTRAS]'`` -> what they bring."""

_LGPL: Final = "LGPL: textual-image, FFmpeg in OpenCV"
LICENCES: Final[Mapping[str, str]] = {
    "cli": "LGPL: textual-image",
    "cli,dedup": _LGPL,
    "cli,dedup,review": _LGPL,
    "cli,local": "LGPL: textual-image",
    "laptop": f"GPL: x265 in pillow-heif, pillow-jxl-plugin; {_LGPL}, LibRaw in rawpy",
    "laptop,photos": "those of `laptop`",
    "ray": _LGPL,
    "export,local": "NVIDIA's own: CUDA",
}
"""Extras -> what is not under a permissive licence (Apache, BSD, MIT, MPL and the like), read from the packages."""


def pip(*arguments: str | Path) -> None:
    """Run pip; exit with the end of its output if it fails."""
    done = subprocess.run((sys.executable, "-m", "pip", *arguments), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"pip {' '.join(map(str, arguments))}:\n{(done.stdout + done.stderr)[-4000:]}")


def install(wheel: Path, extras: str, environment: Path) -> dict[str, float]:
    venv.EnvBuilder(symlinks=True, clear=True).create(environment)
    requirement = f"{wheel}[{extras}]" if extras else str(wheel)
    pip("--python", environment / "bin" / "python", "install", "--no-cache-dir", requirement)
    (site_packages,) = environment.glob("lib/python*/site-packages")
    return {"installed_mb": sum(path.lstat().st_blocks * 512 for path in site_packages.rglob("*")) / 1e6}


@experiment(option("--extras", nargs="*", default=list(EXTRAS), choices=EXTRAS, help="as in pip install '.[EXTRAS]'"))
def measure(run: Run) -> dict[str, Any]:
    pip("wheel", "--no-deps", "--wheel-dir", run.scratch / "packages", ROOT)
    (wheel,) = (run.scratch / "packages").glob("clip_triton-*.whl")
    extras = {
        name: run.saved.cell(f"extras {name or 'none'}", partial(install, wheel, name, run.scratch / "venv"))
        for name in run.options.extras
    }
    return {"summary": {"extras": extras}}
