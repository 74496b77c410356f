"""A Triton with several models and with texts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from benchmarks.fixtures.server import Server, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="package")
def two_models(tiny_pair_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Triton with the model clip, which has both towers, and the model copies, a small SSCD."""
    folder = tmp_path_factory.mktemp("two_models")
    repository, file = folder / "triton_models", folder / "sscd_disc_mixup.torchscript.pt"
    shutil.copytree(tiny_pair_repository, repository)
    export = ["preprocess_ensemble.export.command", "--model", str(file), "--name", "copies"]
    for command in (["tests.fixtures.models.sscd", str(file)], [*export, "--repository", str(repository)]):
        subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True)
    with serving(repository) as server:
        yield server
