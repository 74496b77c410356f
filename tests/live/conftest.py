"""A real tritonserver, started once, with a small CLIP whose weights are random."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preprocess_ensemble.export.exporter import export_model
from preprocess_ensemble.testing.server import QUIET, Server, serving
from preprocess_ensemble.testing.tiny_model import TINY_CLIP
from tests.fixtures.installed_wheel import InstalledWheel, build_distributions, install_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def tiny_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model repository with the small CLIP."""
    repository = tmp_path_factory.mktemp("repository") / "triton_models"
    export_model(model=str(TINY_CLIP), pretrained="random:0", repository=repository)
    return repository


@pytest.fixture(scope="session")
def server(tiny_repository: Path) -> Iterator[Server]:
    """One clip-serve for all tests that do not damage it.

    It sends no canary, which would be one more image in the server's counts and in a test's batch.
    """
    with serving(tiny_repository, *QUIET, http=True) as running:
        yield running


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source distribution of this tree."""
    pytest.importorskip("build", reason="the package build is not installed")
    return build_distributions(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def installed(distributions: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> InstalledWheel:
    """An environment with the wheel in it."""
    return install_wheel(distributions[0], tmp_path_factory.mktemp("environment") / "venv")
