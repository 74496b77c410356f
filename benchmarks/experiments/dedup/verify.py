"""How long does it take to prove that two photos show the same?

Milliseconds of one core per photo, from its decoded picture to its keypoints, and per pair, from keypoints to the
result. The pairs are copies of the sample photos (re-encoded, cropped, brightened, altered), and different photos. A
pair that is compared also decodes both small pictures; a search does so once for each photo that it still remembers.
The bytes are those that a store keeps.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Final

from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from benchmarks.fixtures.pictures import reencoded
from benchmarks.harness.experiment import Run, experiment, rounds
from benchmarks.harness.results import show
from clip_client.dedup.alignment.align import align
from clip_client.dedup.alignment.keypoints import Keypoints, extract_keypoints, opencv_for_many
from preprocess_ensemble.testing.sample_photos import write_originals

SIDE: Final = 1024
"""Pixels of the longer side of a decoded picture: a search decodes JPEG files at a fraction of their size."""


def _lettered(picture: Image.Image) -> Image.Image:
    lettered = picture.copy()
    size = max(10, picture.height // 24)
    place = (picture.width - size * 10, picture.height - size * 2)
    ImageDraw.Draw(lettered).text(place, "2024-05-01 12:00", fill=(255, 160, 0), font_size=size)
    return lettered


KINDS: Final[dict[str, Callable[[Image.Image], Image.Image]]] = {
    "re-encoded": lambda picture: ImageOps.scale(picture, 0.5, Image.Resampling.LANCZOS),
    "cropped": lambda picture: picture.crop((round(picture.width * 0.1), 0, *picture.size)),
    "mirrored": ImageOps.mirror,
    "brighter": lambda picture: ImageEnhance.Brightness(picture).enhance(1.25),
    "altered": _lettered,
}
"""Kind of pair -> what is done to the copy before it is encoded again."""
QUALITY: Final = 80


@experiment(rounds(5, "times that each photo and pair is measured"))
def measure(run: Run) -> dict[str, Any]:
    """Measure the photos, then the pairs; of the rounds, the median counts."""
    pictures = []
    for path in write_originals(run.scratch / "originals"):
        with Image.open(path) as photo:
            picture = photo.convert("RGB")
        scale = SIDE / max(picture.size)
        pictures.append(picture.resize((round(picture.width * scale), round(picture.height * scale))))
    stored = [_keypoints(picture).to_bytes() for picture in pictures]
    with opencv_for_many():
        rows = {"photo": [_median_ms(run, _photo, picture) for picture in pictures]}
        for kind, change in KINDS.items():
            copies = [_keypoints(reencoded(change(picture), QUALITY)).to_bytes() for picture in pictures]
            rows[f"pair: {kind}"] = [_median_ms(run, _pair, *pair) for pair in zip(copies, stored, strict=True)]
        others = zip(stored, [*stored[1:], stored[0]], strict=True)
        rows["pair: another photo"] = [_median_ms(run, _pair, *pair) for pair in others]
    show(
        f"Milliseconds of one core, {len(pictures)} photos",
        ("", "median", "90 %"),
        [(name, f"{statistics.median(times):.1f}", f"{_ninth(times):.1f}") for name, times in rows.items()],
    )
    kilobytes = statistics.median(len(data) for data in stored) / 1000
    print(f"stored per photo: {kilobytes:.0f} kB (median)")
    return {
        "photos": len(pictures),
        "stored_kb": kilobytes,
        "ms": {name: {"p50": statistics.median(times), "p90": _ninth(times)} for name, times in rows.items()},
    }


def _keypoints(picture: Image.Image) -> Keypoints:
    keypoints = extract_keypoints(picture, picture.size)
    keypoints.positions  # noqa: B018  # finds them
    return keypoints


def _photo(picture: Image.Image) -> float:
    started = time.thread_time()
    _keypoints(picture)
    return time.thread_time() - started


def _pair(one: bytes, other: bytes) -> float:
    """Return the seconds for a pair, without those for reading the bytes."""
    duplicate, kept = Keypoints.from_bytes(one), Keypoints.from_bytes(other)
    started = time.thread_time()
    align(duplicate, kept)
    return time.thread_time() - started


def _median_ms(run: Run, timed: Callable[..., float], *arguments: object) -> float:
    return 1000 * statistics.median(timed(*arguments) for _ in run.rounds)


def _ninth(times: list[float]) -> float:
    return statistics.quantiles(times, n=10)[-1]
