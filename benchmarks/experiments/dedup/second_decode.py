"""What one decode for both the perceptual hash and the model's input would save of a first search, and change."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.fixtures.bare_encoder import preprocessing
from clip_client.dedup.features.image_features import extract_features
from clip_client.dedup.features.perceptual_hash import perceptual_hash
from preprocess_ensemble.imaging.decode import decode, is_decoded_for

if TYPE_CHECKING:
    from PIL import Image

_HASH_SIDE: Final = 128
"""As a search makes the picture that it hashes."""


def compare_decodes(photos: Iterable[Path], repository: Path) -> dict[str, Any]:
    """Hash the photos that a search decodes twice once more, from the picture that is decoded for the model.

    Return how many there are, how many hashes change and by how many bits at most, and the milliseconds of processor
    time that the decode for the hash takes per photo (median; None without photos).
    """
    needed = preprocessing(repository).decode_at_least
    twice = [found for photo in photos if (found := _compare(photo.read_bytes(), needed)) is not None]
    return {
        "decoded_twice": len(twice),
        "hashes_changed": sum(bits > 0 for bits, _ in twice),
        "most_bits": max((bits for bits, _ in twice), default=0),
        "hash_decode_ms": 1e3 * statistics.median(seconds for _, seconds in twice) if twice else None,
    }


def _compare(data: bytes, needed: tuple[int, int]) -> tuple[int, float] | None:
    """Return the bits that change and the seconds of the decode for the hash; None if one decode serves both."""
    serves_both = True
    hash_needs = (0, 0)

    def look(_: bytes, picture: Image.Image, at_least: tuple[int, int]) -> None:
        nonlocal serves_both, hash_needs
        serves_both, hash_needs = is_decoded_for(picture, at_least, needed), at_least

    features = extract_features(data, on_decoded=look)
    if serves_both:
        return None
    started = time.thread_time()
    decode(data, at_least=hash_needs)
    seconds = time.thread_time() - started
    larger = decode(data, at_least=needed)
    larger.thumbnail((_HASH_SIDE, _HASH_SIDE))
    return (features.perceptual_hash ^ perceptual_hash(larger.convert("RGB"))).bit_count(), seconds
