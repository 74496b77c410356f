"""Environments of their own, below ``build/``, for what cannot share ours; made once, by pip."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from preprocess_ensemble.errors import ReportedError

BUILD: Final = Path("build")

INFINITY: Final = (
    "infinity-emb[torch,server,vision]==0.0.77",
    "transformers<4.49",
    "optimum<1.25",
    "click<8.2",
    "aiohttp",
)
"""infinity imports optimum's BetterTransformer, which refuses transformers 4.49 and newer, and a typer of its time; it
reads images through aiohttp, which its extra ``server`` leaves out."""
OPENVINO: Final = ("--editable", ".[server]", "onnx", "onnxruntime-openvino", "rich")
"""onnxruntime-openvino and onnxruntime overwrite each other."""


class EnvironmentFailed(ReportedError):
    """pip could not make the environment; the message says which one, and pip has said why."""


def infinity_python() -> Path:
    """The Python of an environment with infinity in it."""
    return _python("infinity", INFINITY)


def openvino_python() -> Path:
    """The Python of an environment with this package, Triton and ONNX Runtime's OpenVINO build."""
    return _python("openvino", OPENVINO)


def _python(name: str, requirements: tuple[str, ...]) -> Path:
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
