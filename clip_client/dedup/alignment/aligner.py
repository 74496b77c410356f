"""The keypoints of photos, from the store, and for new photos from their files."""

from __future__ import annotations

import hashlib
import io
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from clip_client.dedup.alignment.align import align
from clip_client.dedup.alignment.keypoints import (
    ALGORITHM,
    PICTURE_SIDE,
    Keypoints,
    extract_keypoints,
    opencv_for_many,
)
from clip_client.dedup.alignment.resolution import doubt_about
from clip_client.dedup.features.preview import raw_preview
from clip_client.dedup.files.file_types import is_raw
from clip_client.dedup.files.reading import PLAIN_READER
from clip_client.dedup.types import ALTERED, FailedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray
    from PIL import Image

    from clip_client.dedup.aligned import Alignment, Transform
    from clip_client.dedup.files.reading import PhotoReader, ReadFile
    from clip_client.dedup.store.store import Store

_AT_ONCE: Final = 64
"""Photos whose keypoints are written to the store together: 6 MB."""
_REMEMBERED: Final = 64
"""Photos whose keypoints stay in memory: about 1 MB each, with the small picture and the unit vectors."""
_DOUBTS: Final = "doubts-3"
"""Version of :func:`doubt_about`, and its name in a store, in which keys are the hashes of two contents."""
_SMALLER: Final = 0.97
"""Ratio of the sides below which the kept photo is the smaller one: programs round sizes."""
_UNREAD: Final = "one of the two files could not be read again"
_GONE: Final = "Its file cannot be read any more."


class Aligner:
    """Aligns photos by their contents; a context manager.

    ``paths`` maps the SHA-256 of each content to a file that holds it. Keypoints come from ``store``, or from the file
    if they are not there.
    """

    def __init__(self, paths: Mapping[str, str], store: Store, reader: PhotoReader = PLAIN_READER) -> None:
        self._paths = paths
        self._read = reader.read
        self._table = store.keypoints(ALGORITHM)
        self._doubts = store.keypoints(_DOUBTS)
        self._keypoints = lru_cache(_REMEMBERED)(self._load)
        self._pool = ThreadPoolExecutor(reader.threads, thread_name_prefix="clip_client verify")
        self._opencv = opencv_for_many()
        self.reasons: dict[str, str] = {}
        """Content -> why it cannot be verified."""

    def __enter__(self) -> Aligner:
        self._opencv.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._opencv.__exit__(None, None, None)

    def extract(self, contents: Sequence[str], on_progress: Callable[[int, int], None]) -> int:
        """Extract the keypoints of the ``contents`` that have none in the store; return how many. Raises StoreError."""
        known = self._table.known()
        new = [sha256 for sha256 in contents if sha256 not in known]
        done = 0
        on_progress(done, len(new))
        extracted = self._pool.map(self._extract, new)
        pairs = zip(new, extracted, strict=True)
        while some := list(islice(pairs, _AT_ONCE)):
            self._table.put((sha256, made.to_bytes()) for sha256, made in some if made is not None)
            done += len(some)
            on_progress(done, len(new))
        return len(new)

    def align(self, kept: str, duplicates: Sequence[str], *, is_original: bool = False) -> list[Alignment | None]:
        """Return how each content lies on ``kept``; None if they do not show the same, or cannot be verified.

        Unless ``kept`` is known to be as a camera wrote it (``is_original``), its file and that of each proved copy are
        read, once per store, to tell whether ``kept`` is itself made from that copy.
        """
        onto = self._keypoints(kept)
        # The database serves one thread at a time.
        photos = [self._keypoints(sha256) for sha256 in duplicates]
        if onto is None:
            return [None] * len(photos)
        found = list(self._pool.map(lambda photo: None if photo is None else align(photo, onto), photos))
        copies = {
            sha256: one.transform
            for sha256, one in zip(duplicates, found, strict=True)
            if one is not None and one.tier != ALTERED and not (one.lost or one.doubts) and one.kept_scale > _SMALLER
        }
        doubts = {} if is_original else self._doubts_about(kept, copies)
        return [
            replace(one, doubts=(doubts[sha256],)) if one is not None and doubts.get(sha256) else one
            for sha256, one in zip(duplicates, found, strict=True)
        ]

    def _doubts_about(self, kept: str, copies: Mapping[str, Transform]) -> dict[str, str]:
        """Return for each of the ``copies``, contents with their transforms, a sign that ``kept`` was made from it."""
        pairs = {sha256: hashlib.sha256(f"{kept} {sha256}".encode()).hexdigest() for sha256 in copies}
        known = {sha256: self._doubts.get(pair) for sha256, pair in pairs.items()}
        new = [sha256 for sha256, found in known.items() if found is None]
        luma = _whole_luma(self._paths[kept], kept, self._read) if new else None

        def compared(sha256: str) -> str:
            other = None if luma is None else _whole_luma(self._paths[sha256], sha256, self._read)
            return _UNREAD if luma is None or other is None else doubt_about(luma, other, copies[sha256])

        found = dict(zip(new, self._pool.map(compared, new), strict=True))
        # A file that cannot be read now may be readable in the next search.
        self._doubts.put((pairs[sha256], doubt.encode()) for sha256, doubt in found.items() if doubt != _UNREAD)
        return {sha256: doubt.decode() for sha256, doubt in known.items() if doubt is not None} | found

    def _load(self, sha256: str) -> Keypoints | None:
        data = self._table.get(sha256)
        found: Keypoints | None = None
        if data is not None:
            with suppress(ValueError):  # a damaged cache
                found = Keypoints.from_bytes(data)
        if found is None:
            found = self._extract(sha256)
        if found is None or found.reason:
            self.reasons[sha256] = _GONE if found is None else found.reason
            return None
        return found

    def _extract(self, sha256: str) -> Keypoints | None:
        return keypoints_of(self._paths[sha256], sha256, self._read)


def keypoints_of(path: str, sha256: str, read: ReadFile) -> Keypoints | None:
    """Return the keypoints of a photo, of a RAW file those of its preview; None if the file has changed or gone."""
    from preprocess_ensemble.imaging.decode import SCALE_INFO, DecodeError, decode

    data = _image_file(path, sha256, read)
    if data is None:
        return None
    try:
        image = decode(data, at_least=(PICTURE_SIDE, PICTURE_SIDE))
    except DecodeError:
        return None
    scaled = image.info.get(SCALE_INFO)
    full_size = image.size if scaled is None else scaled.size
    return extract_keypoints(_as_shown(image, data), full_size)


def _whole_luma(path: str, sha256: str, read: ReadFile) -> NDArray[np.uint8] | None:
    """Return the upright luma (H, W) at full size; None if the file has changed or gone."""
    from preprocess_ensemble.imaging.decode import DecodeError, decode

    data = _image_file(path, sha256, read)
    if data is None:
        return None
    try:
        return np.asarray(decode(data, luma=True))
    except DecodeError:
        return None


def _image_file(path: str, sha256: str, read: ReadFile) -> bytes | None:
    """Return the encoded bytes of a photo, of a RAW file those of its preview; None if the file has changed or gone."""
    found = read(path)
    if isinstance(found, FailedFile) or hashlib.sha256(found[1]).hexdigest() != sha256:
        return None
    return (is_raw(path) and raw_preview(found[1])) or found[1]


def _as_shown(image: Image.Image, data: bytes) -> Image.Image:
    """Return a decoded picture in sRGB, whatever the colour profile of its file is, so that colours can be compared."""
    from PIL import ImageCms

    from preprocess_ensemble.imaging.formats import open_image

    with suppress(Exception):  # a damaged profile counts as none, as in most viewers
        with open_image(data) as file:
            profile = file.info.get("icc_profile") or image.info.get("icc_profile")
        if profile:
            image.thumbnail((2 * PICTURE_SIDE, 2 * PICTURE_SIDE))
            own = ImageCms.ImageCmsProfile(io.BytesIO(profile))
            shown = ImageCms.profileToProfile(image, own, ImageCms.createProfile("sRGB"), outputMode="RGB")
            if shown is not None:
                return shown
    return image.convert("RGB")
