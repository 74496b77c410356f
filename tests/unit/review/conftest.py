"""A review of two groups: exact copies, and photos that only look alike."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.crashes import kills
from tests.fixtures.reviews import Review, of_report, review_of
from tests.unit.review.albums import found_in

__all__ = ("kills",)


@pytest.fixture
def album(tmp_path: Path) -> Path:
    return tmp_path / "album"


@pytest.fixture
def review(album: Path, tmp_path: Path) -> Iterator[Review]:
    with review_of(album, store=tmp_path / "store", search=of_report(found_in(album))) as running:
        yield running
