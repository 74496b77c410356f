"""The wheel on Pythons without a server: installed in each documented way, tested, and used once.

Debian's testing and unstable releases have these Pythons. A compiler, PyTorch and Triton are not installed there.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from benchmarks.fixtures.sample_photos import write_with_copies
from tests.fixtures.packaging.containers import Engine, new_engine, require_tools
from tests.paths import ROOT

pytestmark = pytest.mark.timeout(3600)

SUITES: Final = {"3.13": "trixie", "3.14": "sid"}
"""Python -> the release of Debian that has it."""
TOOLS: Final = """
    cryptography httpx hypothesis imagehash jsonschema psutil pytest pytest-asyncio pytest-timeout pytest-xdist trustme
"""
TREE: Final = ("tests", "benchmarks", "docs", "setup.cfg")


@pytest.fixture
def engine() -> Iterator[Engine]:
    require_tools("CLIP_TEST_PYTHONS")
    with new_engine() as engine:
        yield engine


@pytest.fixture
def context(tmp_path: Path, distributions: tuple[Path, Path]) -> Path:
    """The wheel, the tests without the code that they test, and photos with copies."""
    folder = tmp_path / "context"
    for name in TREE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)
    (folder / "dist").mkdir()
    shutil.copy(distributions[0], folder / "dist")
    (folder / "tools.txt").write_text("\n".join(TOOLS.split()), encoding="ascii")
    write_with_copies(folder / "photos")
    return folder


@pytest.mark.parametrize("python", SUITES)
def test_a_laptop_with_a_later_python(
    python: str, engine: Engine, context: Path, request: pytest.FixtureRequest
) -> None:
    assert request.config.cache is not None
    base = f"localhost/python:{python}"
    engine.import_base(SUITES[python], request.config.cache.mkdir("base"), base)
    file = ROOT / "tests" / "fixtures" / "packaging" / "python.Dockerfile"
    engine.run_dockerfile(file, context, f"laptop:{python}", BASE=base)
