"""Environments of their own, below ``build/``, for what cannot share ours; made once, by pip."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks.fixtures.repositories import BUILD
from preprocess_ensemble.errors import ReportedError

REQUIREMENTS: Final = {
    # infinity imports optimum's BetterTransformer, which refuses transformers 4.49 and newer, and a typer of its time;
    # it reads images through aiohttp, which its extra ``server`` leaves out.
    "infinity": (
        "infinity-emb[torch,server,vision]==0.0.77",
        "transformers<4.49",
        "optimum<1.25",
        "click<8.2",
        "aiohttp",
    ),
    # Its licence is for non-commercial use (CC BY-NC-ND 4.0); the wheel has the weights of its network.
    "fastdup": ("fastdup==2.54",),
}
"""Environment -> arguments of ``pip install``."""


class EnvironmentFailed(ReportedError):
    """pip could not make the environment; the message says which one, and pip has said why."""


def venv_python(name: str) -> Path:
    """The Python of the environment ``name``, which is made if necessary. Raises EnvironmentFailed."""
    requirements = REQUIREMENTS[name]
    directory = BUILD / name
    python = directory / "bin" / "python"
    stamp = directory / ".installed"
    if stamp.exists() and stamp.read_text() == repr(requirements):
        return python
    print(f"making {directory}: this takes minutes, once", file=sys.stderr)
    # Pip must not reach the terminal's standard output: that is where results go.
    for command in (
        (sys.executable, "-m", "venv", str(directory)),
        (str(python), "-m", "pip", "install", "--quiet", *requirements),
    ):
        if subprocess.run(command, check=False, stdout=sys.stderr).returncode:
            raise EnvironmentFailed(f"{directory} cannot be made: {' '.join(command)} failed")
    stamp.write_text(repr(requirements))
    return python
