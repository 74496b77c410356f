from pathlib import Path

import pytest

from tests.fixtures.albums import write


@pytest.fixture
def search(tmp_path: Path) -> list[str]:
    """A search that finds two files of the same bytes."""
    for name in ("1.dng", "2.dng"):
        write(tmp_path / "photos" / name, b"a RAW file")
    return ["dedup", str(tmp_path / "photos"), "--without-model", "--store", str(tmp_path / "store")]
