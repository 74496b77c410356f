"""Names that would run, break or turn around what is beside them are shown as text."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.fixtures.albums import member, report, write
from tests.fixtures.reviews import of_report, review_of
from tests.unit.review.albums import applied

if TYPE_CHECKING:
    from pathlib import Path

HOSTILE = (
    b"<img src=x onerror=alert(1)>.jpg",
    b"\"'><script>alert(1)<!--.jpg",
    b"line\nbreak\r\x1b[2J.jpg",
    "right\u202eto left\u2066.jpg".encode(),
    b"caf\xe9 \xff.jpg",
    b"{{ 7 * 7 }}.jpg",
)


def test_hostile_names_are_text_on_every_page(tmp_path: Path) -> None:
    paths = [write(tmp_path / "album" / os.fsdecode(name), b"copy") for name in HOSTILE]
    found = report(tuple(map(member, paths)))
    with review_of(tmp_path / "album", store=tmp_path / "store", search=of_report(found)) as review:
        review.post("/groups/1/choice", {"what": "keep", "keep": 0, "move": [1, 2, 3, 4, 5]})
        applied(review)
        for page in ("/", "/groups/1", "/plan", "/history"):
            text = review.get(page).text
            assert "<img src=x" not in text
            assert "<script>alert" not in text
            assert "\u202e" not in text
            assert "\x1b" not in text
            assert "49.jpg" not in text
        text = review.get("/groups/1").text
        assert "caf\\xe9 \\xff.jpg" in text
        assert "line\\nbreak" in text
    assert len(os.listdir(tmp_path / "album")) == 2  # the kept photo and the quarantine
