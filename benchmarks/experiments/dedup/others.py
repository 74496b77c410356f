"""Do copies that other people made move, and only for their own source? Fetches public repositories of web sites.

Each site kept photos beside the smaller or lighter files that its own tools made of them, so the names tell which file
is a copy of which. The JPEG files of a site are searched as one folder, without a model. A move is a loss if the kept
file is of another source, or if a source moves for its copy. A move between files with equal pixels is no loss.
"""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np
from PIL import Image

from benchmarks.experiments.dedup.accuracy import moves_in
from benchmarks.harness.experiment import Run, experiment

_JPEG: Final = frozenset({".jpg", ".jpeg"})
_LARGEST: Final = 4 << 20
"""Bytes from which a file is left out: a few originals would take most of the time."""
_SIZED: Final = re.compile(r"-(\d+)x(\d+)(?=\.jpe?g$)")
_WORDPRESS: Final = ((300, 300), (768, math.inf), (1024, 1024))
"""Boxes, in pixels, to which WordPress reduces whole photos; to other sizes, which a theme wants, it cuts them."""


@dataclass(frozen=True)
class Site:
    """A repository on GitHub at a commit, and the tool that made its copies."""

    name: str
    commit: str
    tool: str
    prepare: Callable[[Path, Path], dict[str, str]]
    """Writes the JPEG files of a checkout into a folder, and returns copy -> source, by names."""


def _written(checkout: Path, folder: Path) -> dict[PurePosixPath, str]:
    """Write all JPEG files of the commit into ``folder``; return path in the repository -> new name."""
    names = {}
    for line in _git(checkout, "ls-tree", "-r", "-l", "HEAD").decode().splitlines():
        (*_, blob, size), path = line.split("\t")[0].split(), PurePosixPath(line.split("\t")[1])
        if path.suffix.lower() in _JPEG and size.isdigit() and int(size) < _LARGEST:
            names[path] = str(path).replace("/", "_")
            (folder / names[path]).write_bytes(_git(checkout, "cat-file", "blob", blob))
    return names


def sized(checkout: Path, folder: Path) -> dict[str, str]:
    """WordPress: ``photo-300x200.jpg`` is a copy of ``photo.jpg``, if nothing was cut off."""
    names = _written(checkout, folder)
    pairs = {}
    for path, name in names.items():
        size, source = _SIZED.search(path.name), path.with_name(_SIZED.sub("", path.name))
        if size and source in names:
            with Image.open(folder / names[source]) as image:
                width, height = image.size
            if _is_whole(width, height, int(size[1]), int(size[2])):
                pairs[name] = names[source]
    return pairs


def _is_whole(width: int, height: int, to_width: int, to_height: int) -> bool:
    """Return whether a photo was reduced without a cut: into one of WordPress's boxes, or to exactly its own shape."""
    scale = max(to_width / width, to_height / height)
    boxes = (min(box_width / width, box_height / height) for box_width, box_height in _WORDPRESS)
    return (width - to_width / scale < 1 and height - to_height / scale < 1) or any(
        abs(width * fit - to_width) <= 1 and abs(height * fit - to_height) <= 1 for fit in boxes
    )


def resized(checkout: Path, folder: Path) -> dict[str, str]:
    """``thumbnails/photo.jpg`` is a copy of ``resized/photo.jpg``, and both of ``photo.jpg`` or ``photo.JPG``."""
    names = _written(checkout, folder)
    pairs = {}
    for path, name in names.items():
        if path.parent.name in {"resized", "thumbnails"}:
            above = path.parent.parent
            sources = above / path.name, (above / path.name).with_suffix(".JPG"), above / "resized" / path.name
            if source := next((one for one in sources if one in names and one != path), None):
                pairs[name] = names[source]
    return pairs


def versions(checkout: Path, folder: Path) -> dict[str, str]:
    """A commit replaced ``photo.jpg`` by a lighter file of the same name."""
    pairs = {}
    log = _git(checkout, "log", "-m", "--first-parent", "--diff-filter=M", "--raw", "--no-abbrev", "--format=")
    for line in log.decode().splitlines():
        (_, _, *blobs, _), path = line.split("\t")[0].split(), PurePosixPath(line.split("\t")[1])
        if path.suffix.lower() in _JPEG:
            source, copy = (f"{blob[:8]}_{path.name}" for blob in blobs)
            for name, blob in zip((source, copy), blobs, strict=True):
                (folder / name).write_bytes(_git(checkout, "cat-file", "blob", blob))
            pairs[copy] = source
    return pairs


SITES: Final = (
    Site("KineChristensen/wp-content", "93396544bd69", "WordPress", sized),
    Site("alfredk/BCIT-wpd-wp-content", "09c7796a83dd", "WordPress", sized),
    Site("findsorguk/findsorguk", "2d179b126b9e", "the site's own PHP", resized),
    Site("ThatConference/that-website", "582ade4659fe", "compressjpeg.com", versions),
    Site("Asing1001/universiade-ticket", "576d0bbc82f3", "ImgBot, without loss", versions),
)


def _git(checkout: Path, *words: str) -> bytes:
    return subprocess.run(["git", "-C", checkout, *words], check=True, capture_output=True).stdout


def judged(folder: Path, pairs: dict[str, str]) -> dict[str, Any]:
    """Search ``folder``; count the copies of ``pairs`` that move, and list the losses."""
    moves = {moved.name: kept.name for moved, kept in moves_in(folder)[0].items()}

    def has_equal_pixels(*names: str) -> bool:
        with Image.open(folder / names[0]) as first, Image.open(folder / names[1]) as second:
            return np.array_equal(np.asarray(first), np.asarray(second))

    def is_loss(moved: str, kept: str) -> bool:
        if has_equal_pixels(moved, kept):
            return False
        return moved not in pairs or not has_equal_pixels(pairs[moved], pairs.get(kept, kept))

    return {
        "files": len(list(folder.iterdir())),
        "copies": len(pairs),
        "moved": sum(
            copy in moves or (source in moves and has_equal_pixels(copy, source)) for copy, source in pairs.items()
        ),
        "losses": [move for move in moves.items() if is_loss(*move)],
    }


@experiment()
def measure(run: Run) -> dict[str, Any]:
    sites = {}
    for site in SITES:
        checkout, folder = run.scratch / site.name.replace("/", "+"), run.scratch / site.commit
        folder.mkdir()
        url = f"https://github.com/{site.name}"
        subprocess.run(["git", "clone", "--quiet", "--bare", url, checkout], check=True)
        _git(checkout, "update-ref", "--no-deref", "HEAD", site.commit)
        sites[site.name] = {"tool": site.tool, "commit": site.commit, **judged(folder, site.prepare(checkout, folder))}
        print(site.name, sites[site.name], flush=True)
    return {"sites": sites}
