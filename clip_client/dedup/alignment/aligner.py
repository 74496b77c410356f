"""The keypoints of photos, from the store, and for new photos from their files."""

from __future__ import annotations

import hashlib
import io
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from clip_client.dedup.alignment.align import align
from clip_client.dedup.alignment.full_size_check import FileFacts, FullPhoto, check_at_full_size
from clip_client.dedup.alignment.keypoints import (
    ALGORITHM,
    PICTURE_SIDE,
    Keypoints,
    extract_keypoints,
    opencv_for_many,
)
from clip_client.dedup.alignment.proofs import loses_nothing
from clip_client.dedup.features.preview import raw_preview
from clip_client.dedup.files.file_types import is_raw
from clip_client.dedup.files.reading import PLAIN_READER, read_file
from clip_client.dedup.types import FailedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import Any

    from PIL import Image

    from clip_client.dedup.aligned import Alignment
    from clip_client.dedup.files.reading import PhotoReader, ReadFile
    from clip_client.dedup.store.store import Store

_AT_ONCE: Final = 64
"""Photos whose keypoints are written to the store together: 6 MB."""
_REMEMBERED: Final = 64
"""Photos whose keypoints stay in memory: about 1 MB each, with the small picture and the unit vectors."""
_AT_FULL_SIZE: Final = 2
"""Photos that stay in memory at full size: 300 MB for 100 megapixels."""
_CHECKS: Final = "full-size-2"
"""Version of :func:`check_at_full_size`, and its name in a store, in which keys are the hashes of two contents."""
_CORRECTED: Final = ("tier", "doubts", "region", "region_share")
"""Fields of an alignment that the check at full size sets."""
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
        self._checks = store.keypoints(_CHECKS)
        self._keypoints = lru_cache(_REMEMBERED)(self._load)
        self._full_size = lru_cache(_AT_FULL_SIZE)(self._decode)
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

    def align(
        self, kept: str, duplicates: Sequence[str], *, made_from_kept: Collection[str] = ()
    ) -> list[Alignment | None]:
        """Return how each content lies on ``kept``; None if they do not show the same, or cannot be verified.

        What could move by its alignment is checked at full size, once per store: the files are read. ``made_from_kept``
        are the duplicates that were certainly made from ``kept``, such as copies of a camera's own file.
        """
        onto = self._keypoints(kept)
        # The database serves one thread at a time.
        photos = [self._keypoints(sha256) for sha256 in duplicates]
        if onto is None:
            return [None] * len(photos)
        found = list(self._pool.map(lambda photo: None if photo is None else align(photo, onto), photos))
        return [
            self._checked(kept, sha256, one, is_source=sha256 in made_from_kept)
            if one is not None and loses_nothing(one) and one.kept_scale > _SMALLER
            else one
            for sha256, one in zip(duplicates, found, strict=True)
        ]

    def _checked(self, kept: str, duplicate: str, alignment: Alignment, *, is_source: bool) -> Alignment:
        pair = hashlib.sha256(f"{kept} {duplicate} {is_source}".encode()).hexdigest()
        if (known := self._checks.get(pair)) is not None:
            return _corrected(alignment, json.loads(known))
        # One pair at a time, its tiles side by side: a picture of 100 megapixels takes 300 MB.
        whole, copy = self._full_size(kept), self._full_size(duplicate)
        if whole is None or copy is None:
            self._full_size.cache_clear()  # what cannot be read now may be readable later
            return replace(alignment, doubts=(_UNREAD,))
        checked = check_at_full_size(
            *in_common_colours(whole, copy), alignment, is_source=is_source, each=self._pool.map
        )
        self._checks.put([(pair, json.dumps({name: getattr(checked, name) for name in _CORRECTED}).encode())])
        return checked

    def _decode(self, sha256: str) -> FullPhoto | None:
        data = _image_file(self._paths[sha256], sha256, self._read)
        return None if data is None else full_photo(data)

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


def prove_files(kept: str, duplicate: str) -> Alignment | None:
    """Align two files by their paths; return how ``duplicate`` lies on ``kept`` if that holds all that it shows.

    That is proved at full size, as in a search, but without what a search knows of cameras. None if it is not proved,
    if a file cannot be read or aligned, such as one without texture, and for RAW files without a preview. Files of the
    same bytes or pixels need no such proof.
    """
    photos = []
    for path in (kept, duplicate):
        found = read_file(path)
        if isinstance(found, FailedFile):
            return None
        data = _picture_in(path, found[1])
        points, photo = keypoints_in(data), full_photo(data)
        if points is None or photo is None:
            return None
        photos.append((points, photo))
    (onto, whole), (points, copy) = photos
    alignment = align(points, onto)
    if alignment is None or not loses_nothing(alignment) or alignment.kept_scale <= _SMALLER:
        return None
    checked = check_at_full_size(*in_common_colours(whole, copy), alignment)
    return checked if loses_nothing(checked) else None


def keypoints_of(path: str, sha256: str, read: ReadFile) -> Keypoints | None:
    """Return the keypoints of a photo, of a RAW file those of its preview; None if the file has changed or gone."""
    data = _image_file(path, sha256, read)
    return None if data is None else keypoints_in(data)


def keypoints_in(data: bytes) -> Keypoints | None:
    """Return the keypoints of an encoded photo; None if it cannot be decoded."""
    from preprocess_ensemble.imaging.decode import SCALE_INFO, DecodeError, decode

    try:
        image = decode(data, at_least=(PICTURE_SIDE, PICTURE_SIDE))
    except DecodeError:
        return None
    scaled = image.info.get(SCALE_INFO)
    full_size = image.size if scaled is None else scaled.size
    return extract_keypoints(_as_shown(image, data), full_size)


def full_photo(data: bytes) -> FullPhoto | None:
    """Decode an encoded photo at full size, in the colours of its file; None if it cannot be decoded."""
    from preprocess_ensemble.imaging.decode import DecodeError, decode

    try:
        image = decode(data)
    except DecodeError:
        return None
    return FullPhoto(pixels=np.asarray(image.convert("RGB")), facts=FileFacts.read(data))


def in_common_colours(kept: FullPhoto, duplicate: FullPhoto) -> tuple[FullPhoto, FullPhoto]:
    """Return both in sRGB if their colour profiles differ, so that colours can be compared."""
    if kept.facts.profile == duplicate.facts.profile:
        return kept, duplicate
    return _in_srgb(kept), _in_srgb(duplicate)


def _in_srgb(photo: FullPhoto) -> FullPhoto:
    from PIL import Image

    image = _converted(Image.fromarray(photo.pixels), photo.facts.profile)
    return photo if image is None else replace(photo, pixels=np.asarray(image))


def _corrected(alignment: Alignment, known: Mapping[str, Any]) -> Alignment:
    region = known["region"]
    return replace(
        alignment,
        tier=known["tier"],
        doubts=tuple(known["doubts"]),
        region=None if region is None else tuple(region),
        region_share=known["region_share"],
    )


def _image_file(path: str, sha256: str, read: ReadFile) -> bytes | None:
    """Return the encoded bytes of a photo, of a RAW file those of its preview; None if the file has changed or gone."""
    found = read(path)
    if isinstance(found, FailedFile) or hashlib.sha256(found[1]).hexdigest() != sha256:
        return None
    return _picture_in(path, found[1])


def _picture_in(path: str, data: bytes) -> bytes:
    return (is_raw(path) and raw_preview(data)) or data


def _as_shown(image: Image.Image, data: bytes) -> Image.Image:
    """Return a decoded picture in sRGB, whatever the colour profile of its file is, so that colours can be compared."""
    from preprocess_ensemble.imaging.formats import open_image

    profile = image.info.get("icc_profile")
    with suppress(Exception), open_image(data) as file:
        profile = file.info.get("icc_profile") or profile
    if profile:
        image.thumbnail((2 * PICTURE_SIDE, 2 * PICTURE_SIDE))
    return _converted(image, profile or b"") or image.convert("RGB")


def _converted(image: Image.Image, profile: bytes) -> Image.Image | None:
    """Return a picture in sRGB; None without a profile, or with a damaged one, which counts as none in most viewers."""
    from PIL import ImageCms

    if not profile:
        return None
    with suppress(Exception):
        own = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        return ImageCms.profileToProfile(image, own, ImageCms.createProfile("sRGB"), outputMode="RGB")
    return None
