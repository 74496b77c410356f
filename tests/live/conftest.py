"""A real tritonserver, started once, with a small CLIP whose weights are random."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.fixtures.server import QUIET, Server, serving
from tests.fixtures.models.exports import export


@pytest.fixture(scope="session")
def server(tiny_repository: Path) -> Iterator[Server]:
    """One clip-serve for all tests that do not damage it.

    It sends no canary, which would be one more image in the server's counts and in a test's batch.
    """
    with serving(tiny_repository, *QUIET, http=True, health=True) as running:
        yield running


@pytest.fixture(scope="session")
def pair_server(tiny_pair_repository: Path) -> Iterator[Server]:
    """One for all tests of texts that do not damage it."""
    with serving(tiny_pair_repository, *QUIET, http=True) as running:
        yield running


@pytest.fixture(scope="session")
def two_models_repository(tiny_pair_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model ``clip`` with both towers, and the image tower of ``second``."""
    folder = shutil.copytree(tiny_pair_repository, tmp_path_factory.mktemp("two") / "triton_models")
    export(folder, weights="random:1", name="second", text=False)
    return folder


@pytest.fixture(scope="module")
def two_models(two_models_repository: Path) -> Iterator[Server]:
    with serving(two_models_repository, *QUIET) as running:
        yield running


@pytest.fixture
def album(photos: Path, tmp_path: Path) -> Path:
    """Three photos, a copy under a name that is not UTF-8, and a file that is not a photo."""
    folder = tmp_path / "album"
    folder.mkdir()
    for name in ("coffee.jpg", "rocket.jpg", "cell.jpg"):
        shutil.copyfile(photos / name, folder / name)
    os.utime(folder / "coffee.jpg", (1_500_000_000, 1_500_000_000))  # so it is older by more than a second
    shutil.copyfile(photos / "coffee.jpg", folder / os.fsdecode(b"caf\xe9.jpg"))
    (folder / "text.jpg").write_text("This is no image.")
    return folder
