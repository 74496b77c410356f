"""Repositories that a test may change."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def image_only(tiny_repository: Path, tmp_path: Path) -> Path:
    """One with the image tower of the small CLIP."""
    return Path(shutil.copytree(tiny_repository, tmp_path / "image_only"))


@pytest.fixture
def pair(tiny_pair_repository: Path, tmp_path: Path) -> Path:
    """One with both towers."""
    return Path(shutil.copytree(tiny_pair_repository, tmp_path / "pair"))
