"""The small pictures of a report page: in it or, for a large report, in a folder beside it, which the next one uses."""

from __future__ import annotations

import base64
import itertools
import math
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from clip_client.dedup.group import Member
from clip_client.dedup.report import DuplicateReport
from clip_client.dedup.types import PREVIEW_NAME, PREVIEWS_MARK, OnProgress
from preprocess_ensemble.cores import usable_cores

Thumbnail = Callable[[str, int], bytes | None]

_MOST_IN_PAGE: Final = 100
_MOST_OF_MEDIUM_SIZE: Final = 5_000
_LARGE, _MEDIUM, _SMALL = 480, 320, 240
"""Longest side of a 4:3 picture, in pixels: about 26, 15 and 9 kB of JPEG. Other shapes have the same area."""

_MARK: Final = "Previews of a report page, which clip-client leaves out of a search.\n"
_WIDEST: Final = 3.5
_HIGHEST: Final = 1.3
"""Limits for panoramas and strips, as multiples of the longest side of a 4:3 picture."""

_WIDE: Final = 1.3
"""Width, as a multiple of the side, above which a picture does not fit beside others; 2:1 fits."""


@dataclass(frozen=True)
class Picture:
    """A preview, and the size at which the page shows it, in CSS pixels."""

    source: str
    width: int
    height: int
    is_wide: bool


@dataclass(frozen=True, kw_only=True)
class Previews:
    side: int
    sources: Mapping[str, str]

    @property
    def are_large(self) -> bool:
        return self.side == _LARGE

    def picture(self, member: Member, *, is_pair: bool) -> Picture | None:
        if (source := self.sources.get(member.sha256)) is None:
            return None
        side = self.side if is_pair else min(self.side, _MEDIUM)
        width, height = fit(member.photo.width, member.photo.height, side)
        return Picture(source, width, height, is_wide=width > _WIDE * side)


def previews_folder(page: Path) -> Path:
    ends = itertools.chain(["-files"], (f"-files-{number}" for number in itertools.count(2)))
    folders = (page.with_name(page.stem + end) for end in ends)
    return next(one for one in folders if not os.path.lexists(one) or (one / PREVIEWS_MARK).exists())


def fit(width: int, height: int, side: int) -> tuple[int, int]:
    """Scale a size (pixels) down to the area of a 4:3 picture with ``side`` as its longest side; never up."""
    area = math.sqrt(0.75 * side * side / (width * height))
    scale = min(1.0, area, _WIDEST * side / width, _HIGHEST * side / height)
    return max(1, round(width * scale)), max(1, round(height * scale))


def draw_previews(
    report: DuplicateReport, thumbnail: Thumbnail, folder: Path | None, on_progress: OnProgress | None = None
) -> Previews:
    """Draw each different picture of the report once, on all processors.

    More than 100 pictures are written to ``folder``, from which others are removed; fewer become data URIs, and so do
    all if ``folder`` is None. Raises OSError if the folder cannot be written.
    """
    same: defaultdict[str, list[Member]] = defaultdict(list)
    for member in (member for group in report.groups_by_space for member in group.members if member.photo.width):
        same[member.sha256].append(member)
    side = _LARGE if len(same) <= _MOST_IN_PAGE else _MEDIUM if len(same) <= _MOST_OF_MEDIUM_SIZE else _SMALL
    beside_page = None if side == _LARGE else folder
    if beside_page is not None:
        beside_page.mkdir(exist_ok=True)
        (beside_page / PREVIEWS_MARK).write_text(_MARK)
    sources = {}
    pool = ThreadPoolExecutor(usable_cores())
    urls = pool.map(lambda members: _source(members, side, thumbnail, beside_page), same.values())
    try:
        for done, (sha256, url) in enumerate(zip(same, urls, strict=True), start=1):
            if url is not None:
                sources[sha256] = url
            if on_progress is not None:
                on_progress("drawing", done, len(same))
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C, thousands may still wait
    if folder is not None:
        _remove_others(folder, {PREVIEWS_MARK, *map(os.path.basename, sources.values())} if beside_page else set())
    return Previews(side=side, sources=sources)


def _source(members: Sequence[Member], side: int, thumbnail: Thumbnail, folder: Path | None) -> str | None:
    photo = members[0].photo
    name = f"{photo.sha256[:32]}-{side}.jpg"
    if folder is None or not (folder / name).exists():
        longest = max(fit(photo.width, photo.height, side))
        drawn = (thumbnail(member.path, longest) for member in members)
        jpeg = next((one for one in drawn if one is not None), None)
        if jpeg is None:
            return None
        if folder is None:
            return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode("ascii")
        part = folder / f"{name}.part"
        part.write_bytes(jpeg)
        os.replace(part, folder / name)  # a killed run must not leave half a picture under this name
    return f"{quote(folder.name)}/{name}"


def _remove_others(folder: Path, wanted: set[str]) -> None:
    if (folder / PREVIEWS_MARK).exists():
        for name in os.listdir(folder):
            if name not in wanted and (PREVIEW_NAME.fullmatch(name) or name == PREVIEWS_MARK):
                (folder / name).unlink()
        if not os.listdir(folder):
            folder.rmdir()
