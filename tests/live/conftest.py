"""A real tritonserver, started once, with a small CLIP whose weights are random."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from preprocess_ensemble.export.exporter import export_model
from preprocess_ensemble.testing.server import QUIET, Server, serving
from preprocess_ensemble.testing.tiny_model import TINY_CLIP

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
