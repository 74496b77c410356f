"""A type checker in another folder finds the package that ``pip install -e .`` installs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from typing import TYPE_CHECKING

from tests.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_a_type_checker_follows_an_editable_installation(tmp_path: Path) -> None:
    tree, wheels, elsewhere = (tmp_path / name for name in ("tree", "wheels", "elsewhere"))
    for path in (tree, wheels, elsewhere):
        path.mkdir()
    for name in ("clip_client", "preprocess_ensemble"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("LICENSE", "README.md", "pyproject.toml", "setup.cfg"):
        shutil.copyfile(ROOT / name, tree / name)
    build = f"from setuptools import build_meta; build_meta.build_editable({str(wheels)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=tree, check=True, capture_output=True)
    (wheel,) = wheels.iterdir()
    environment = tmp_path / "environment"
    venv.create(environment)
    shutil.unpack_archive(wheel, next(environment.glob("lib/python*/site-packages")), "zip")

    (elsewhere / "script.py").write_text("from clip_client import SyncClipClient\nclip = SyncClipClient().open()\n")
    python = environment / "bin" / "python"
    # Whether the package is found and is typed shows without reading it, which takes seconds.
    options = ["--config-file=", "--follow-imports=skip", "--cache-dir", str(tmp_path / "cache"), "script.py"]
    command = [sys.executable, "-m", "mypy", "--python-executable", str(python), *options]
    checked = subprocess.run(command, cwd=elsewhere, check=False, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
