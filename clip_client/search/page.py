"""Writes the results of a search as an HTML page that needs no network and no other file."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, Any, Final

from clip_client.dedup.reporting.html import report_environment
from clip_client.dedup.reporting.previews import Picture, fit
from preprocess_ensemble.cores import usable_cores

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clip_client.search.pictures import FoundPicture

_SIDE: Final = 320
"""Longest side of a 4:3 picture, in pixels: about 15 kB of JPEG."""
_UNKNOWN: Final = (4, 3)
"""Shape of a photo of unknown size."""


def write_page(
    about: Mapping[str, Any],
    pictures: Sequence[FoundPicture],
    file: IO[bytes],
    *,
    thumbnail: Callable[[str, int], bytes | None],
) -> None:
    """Write a page for ``pictures`` to ``file``, in UTF-8; ``about`` is what ``search --json`` prints.

    ``thumbnail`` is as for :func:`~clip_client.dedup.reporting.html.write_page`.
    """
    with ThreadPoolExecutor(usable_cores()) as pool:
        drawn = list(pool.map(lambda picture: _drawn(picture, thumbnail), pictures))
    template = report_environment(picture.path for picture in pictures).get_template("search.html.j2")
    pieces = template.generate(about=about, results=list(zip(pictures, drawn, strict=True)))
    file.writelines(piece.encode() for piece in pieces)


def _drawn(picture: FoundPicture, thumbnail: Callable[[str, int], bytes | None]) -> Picture | None:
    """Return the preview of a picture; None if its file cannot be opened."""
    size = picture.facts.get("width") or _UNKNOWN[0] * _SIDE, picture.facts.get("height") or _UNKNOWN[1] * _SIDE
    width, height = fit(*size, _SIDE)
    jpeg = thumbnail(picture.path, max(width, height))
    if jpeg is None:
        return None
    source = "data:image/jpeg;base64," + base64.b64encode(jpeg).decode("ascii")
    return Picture(source, width, height, is_wide=False)
