"""Results of a search: the pictures nearest to a query, each listed once, with its files, and a page of them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import IO, Any, Final

from clip_client.dedup.pages.html import report_environment
from clip_client.dedup.pages.previews import Picture, fit
from clip_client.dedup.types import is_random
from clip_client.search.filters import taken_text
from preprocess_ensemble.cores import usable_cores

_SIDE: Final = 320
"""Longest side of a 4:3 picture on the page, in pixels: about 15 kB of JPEG."""
_UNKNOWN: Final = (4, 3)


@dataclass(frozen=True, kw_only=True)
class FoundPicture:
    path: str
    """The best copy of the picture if that fits the filter; else the nearest of its files that fit."""
    score: float
    copies: tuple[str, ...] = ()
    """Other unchanged files that a search for duplicates proved to show the same picture."""
    content: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def taken(self) -> str:
        return taken_text(self.facts.get("taken_ms"))

    def to_mapping(self) -> dict[str, Any]:
        names = ("width", "height", "format", "camera", "latitude", "longitude")
        facts = {name: self.facts.get(name) or None for name in names}
        return {
            "path": self.path,
            "score": round(self.score, 6),
            "taken": self.taken.replace(" ", "T") or None,
            **facts,
            "sha256": self.content or None,
            "copies": list(self.copies),
        }


@dataclass(frozen=True, kw_only=True)
class FoundPictures:
    pictures: tuple[FoundPicture, ...]
    compared: int
    compared_in_words: str = ""
    """Text such as ``"148 different files"``: files with the same bytes count once, unlike in ``dedup``."""
    left_out: tuple[str, ...] = ()
    """Sentences that say how many files the filters left out, such as ``"13 different files left out by --since"``."""
    gone: int = 0
    """Number of pictures nearer than the last shown picture whose files are missing or have changed."""
    model_id: str = ""
    truncated: tuple[str, ...] = ()

    @property
    def is_random(self) -> bool:
        return is_random(self.model_id)


def write_page(
    query: str, found: FoundPictures, file: IO[bytes], *, thumbnail: Callable[[str, int], bytes | None]
) -> None:
    """Write a page in UTF-8; ``thumbnail`` is that of :func:`~clip_client.dedup.pages.html.write_page`."""
    with ThreadPoolExecutor(usable_cores()) as pool:
        drawn = list(pool.map(lambda picture: _drawn(picture, thumbnail), found.pictures))
    template = report_environment(picture.path for picture in found.pictures).get_template("search.html.j2")
    results = list(zip(found.pictures, drawn, strict=True))
    file.writelines(piece.encode() for piece in template.generate(query=query, found=found, results=results))


def _drawn(picture: FoundPicture, thumbnail: Callable[[str, int], bytes | None]) -> Picture | None:
    size = picture.facts.get("width") or _UNKNOWN[0] * _SIDE, picture.facts.get("height") or _UNKNOWN[1] * _SIDE
    width, height = fit(*size, _SIDE)
    jpeg = thumbnail(picture.path, max(width, height))
    if jpeg is None:
        return None
    return Picture("data:image/jpeg;base64," + base64.b64encode(jpeg).decode("ascii"), width, height, is_wide=False)
