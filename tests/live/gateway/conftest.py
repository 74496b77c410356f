"""A Triton with several models and with texts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from benchmarks.fixtures.server import TINY_CLIP, Server, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="package")
def two_models(tiny_pair_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Triton with the model clip, which has both towers, and the model second, which has that of images."""
    repository = tmp_path_factory.mktemp("two_models") / "triton_models"
    shutil.copytree(tiny_pair_repository, repository)
    command = f"{sys.executable} -m preprocess_ensemble.export.command --model {TINY_CLIP} --towers image"
    options = f"--pretrained random:1 --name second --repository {repository}"
    subprocess.run([*command.split(), *options.split()], check=True, capture_output=True)
    with serving(repository) as server:
        yield server
