"""The distributions of this tree, built once, and an environment with the wheel in it."""

from pathlib import Path

import pytest
from filelock import FileLock

from tests.fixtures.packaging.installed_wheel import build_distributions, install_wheel


@pytest.fixture(scope="session")
def distributions(shared_folder: Path) -> tuple[Path, Path]:
    pytest.importorskip("build", reason="the package build is not installed")
    folder = shared_folder / "dist"
    with FileLock(shared_folder / "dist.lock"):
        if not folder.exists():
            build_distributions(folder)
    (wheel,) = folder.glob("*.whl")
    (source,) = folder.glob("*.tar.gz")
    return wheel, source


@pytest.fixture(scope="session")
def installed(distributions: tuple[Path, Path], shared_folder: Path) -> Path:
    """The programs of an environment with the wheel in it, which no test changes."""
    folder = shared_folder / "environment"
    with FileLock(shared_folder / "environment.lock"):
        if not folder.exists():
            install_wheel(distributions[0], folder)
    return folder / "bin"
