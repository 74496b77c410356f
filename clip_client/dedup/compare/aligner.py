"""Compares photos by their contents, each pair once per store: first the proof, then, without one, a description."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import lru_cache
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from PIL import ImageCms

from clip_client.dedup.aligned import MADE_LATER, UNPROVED, UNTOLD, Alignment
from clip_client.dedup.compare.neighbours import near_by_vectors
from clip_client.dedup.describe.align import LIKE_A_COPY, align, copy_transform
from clip_client.dedup.describe.changes import at_full_size, size_in_words, turn_in_words
from clip_client.dedup.describe.geometry import Affine, frame_affine
from clip_client.dedup.describe.keypoints import ALGORITHM, PICTURE_SIDE, Keypoints, extract_keypoints, opencv_for_many
from clip_client.dedup.features.preview import DecodedPhoto, picture_file
from clip_client.dedup.files.file_types import is_raw
from clip_client.dedup.files.reading import ReadFile, read_content, read_file
from clip_client.dedup.photo import Photo
from clip_client.dedup.proof.gate import PhotoFile
from clip_client.dedup.proof.prove import DUPLICATE, EITHER, NEITHER, prove_file
from clip_client.dedup.store.cache import Spool
from clip_client.dedup.store.store import Store
from clip_client.dedup.types import RE_ENCODED, Indices, OnProgress, SearchStats
from preprocess_ensemble.imaging.decode import SCALE_INFO, DecodeError, decode, suffices_for
from preprocess_ensemble.imaging.formats import open_image
from preprocess_ensemble.imaging.quiet import quiet_libraries

if TYPE_CHECKING:
    from PIL import Image

_AT_ONCE: Final = 64
"""Photos whose keypoints are found and written to the store together: 6 MB."""
_REMEMBERED: Final = 64
"""Photos whose keypoints stay in memory: about 1 MB each, with the small picture and the unit vectors."""
_AT_FULL_SIZE: Final = 2
"""Photos that stay in memory at full size: 300 MB for 100 megapixels."""
_OUTCOMES: Final = f"{ALGORITHM}-align-3-proof-5"
"""Version of what :meth:`Aligner.align` computes; change the last number with :mod:`clip_client.dedup.proof`."""
_THUMBNAILS: Final = f"{ALGORITHM}-thumbnail"
"""Version of the thumbnails, which are also in the keypoints, but those are 45 times as large."""
VERSIONS: Final = ALGORITHM, _OUTCOMES, _THUMBNAILS
_NEEDED: Final = PICTURE_SIDE, PICTURE_SIDE
"""The least size (height, width) of a scaled decode."""
_LEAST_PIXELS: Final = 2**20
"""Least number of pixels of a photo whose small picture is kept; a smaller photo is decoded again in less time."""
_UNREAD: Final = "one of the two files could not be read again"
_GONE: Final = "Its file cannot be read any more."


class Aligner:
    """Aligns photos by their contents; a context manager.

    ``photos`` maps each content (SHA-256) to one of its files. Keypoints come from ``store``, else from ``pictures``,
    which :func:`keep_small_picture` filled, else from the file.
    """

    def __init__(
        self,
        photos: Mapping[str, Photo],
        store: Store,
        pictures: Mapping[str, bytes] = MappingProxyType({}),
        read: ReadFile = read_file,
        threads: int = 1,
    ) -> None:
        self._photos = photos
        self._read = read
        self._pictures = pictures
        self._table, self._outcomes, self._thumbnails = store.cache.blob_tables(*VERSIONS)
        self._keypoints = lru_cache(_REMEMBERED)(self._load)
        self._full_size = lru_cache(_AT_FULL_SIZE)(self._open)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="clip_client verify")
        self._opencv = opencv_for_many()
        self.reasons: dict[str, str] = {}
        self.work = SearchStats()

    def __enter__(self) -> Aligner:
        self._opencv.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._opencv.__exit__(None, None, None)

    def prepare(self, pairs: Sequence[tuple[str, str]], on_progress: OnProgress) -> None:
        unknown = [pair for pair in pairs if _key(*pair) not in self._outcomes]
        self.prepare_pictures(dict.fromkeys(chain.from_iterable(unknown)), on_progress)
        needed = list(dict.fromkeys(chain.from_iterable(pair for pair in unknown if self._needs_keypoints(*pair))))
        for start in range(0, len(needed), _AT_ONCE):
            with self._known(needed[start : start + _AT_ONCE]) as known:
                list(self._pool.map(Keypoints.keypoints, known.values()))

    def prepare_pictures(self, contents: Iterable[str], on_progress: OnProgress) -> None:
        new = [sha256 for sha256 in contents if sha256 not in self._table]
        for start in range(0, len(new), _AT_ONCE):
            on_progress("extracting keypoints", start, len(new))
            some = new[start : start + _AT_ONCE]
            made = zip(some, self._pool.map(self._make, some), strict=True)
            self._table.put((sha256, one.to_bytes()) for sha256, one in made if one is not None)
        on_progress("extracting keypoints", len(new), len(new))
        self.work += SearchStats(keypoints=len(new))

    def near_by_thumbnails(self, contents: Sequence[str], on_progress: OnProgress) -> Iterator[tuple[Indices, Indices]]:
        """Yield positions in ``contents``, and of the nearest others that they may be copies of. Raises StoreError."""
        known = {sha256: data for sha256 in contents if (data := self._thumbnails.get(sha256)) is not None}
        if new := [sha256 for sha256 in contents if sha256 not in known]:
            self.prepare_pictures(new, on_progress)
            made = {sha256: one.thumbnail.tobytes() for sha256 in new if (one := self._keypoints(sha256)) is not None}
            self._thumbnails.put(made.items())
            known |= made
        unknown = np.full(256, np.nan, np.float32).tobytes()
        thumbnails = np.frombuffer(b"".join(known.get(sha256, unknown) for sha256 in contents), np.float32)
        yield from near_by_vectors(thumbnails.reshape(-1, 256) / 16, LIKE_A_COPY)  # unit vectors

    def align(self, kept: str, duplicates: Sequence[str]) -> list[Alignment | None]:
        """Return how each content lies on ``kept``; None if they show different scenes or cannot be verified."""
        stored = {sha256: self._outcomes.get(_key(kept, sha256)) for sha256 in duplicates}
        found = {sha256: self._outcome(data) for sha256, data in stored.items() if data is not None}
        new = [sha256 for sha256 in duplicates if sha256 not in found]
        if new:
            self.work += SearchStats(aligned=len(new))
            made = self._align(kept, new)
            found |= {sha256: made[kept, sha256] for sha256 in new}
            final = ((pair, one) for pair, one in made.items() if self._is_final(*pair, one))
            self._outcomes.put((_key(*pair), self._row(*pair, one)) for pair, one in final)
        return [found[sha256] for sha256 in duplicates]

    def _align(self, kept: str, duplicates: Sequence[str]) -> dict[tuple[str, str], Alignment | None]:
        """Return (kept, duplicate) -> how the duplicate lies on the kept one; also the reverse if it needs no proof."""
        found: dict[tuple[str, str], Alignment | None] = dict.fromkeys((kept, sha256) for sha256 in duplicates)
        with self._known([kept, *duplicates]) as known:  # here, because the database serves one thread at a time
            present = [sha256 for sha256 in duplicates if kept in known and sha256 in known]
            doubts = dict.fromkeys(present, UNPROVED)
            for sha256 in present:
                to_kept = copy_transform(known[sha256], known[kept])
                if to_kept is not None:
                    # One pair at a time: a picture of 100 megapixels takes 300 MB.
                    full_size = at_full_size(known[sha256], known[kept], to_kept)
                    doubts[sha256] = self._doubt(kept, sha256, is_turned=bool(turn_in_words(full_size)))
                    if not doubts[sha256]:
                        found[kept, sha256] = _proved(full_size)
            others = [sha256 for sha256 in present if found[kept, sha256] is None]
            described = self._pool.map(lambda sha256: align(known[sha256], known[kept]), others)
            for sha256, (there, back) in zip(others, described, strict=True):
                own = (doubts[sha256],)
                found[kept, sha256] = there if there is None or there.tier != RE_ENCODED else replace(there, doubts=own)
                if back is not None and copy_transform(known[kept], known[sha256]) is None:
                    found[sha256, kept] = back
        return found

    def _doubt(self, kept: str, duplicate: str, *, is_turned: bool) -> str:
        """Return why ``kept`` is not proved to be a source that shows all of ``duplicate``; empty if it is."""
        files = list(self._pool.map(self._full_size, (kept, duplicate)))
        if files[0] is None or files[1] is None:
            self._full_size.cache_clear()  # what cannot be read now may be readable later
            return _UNREAD
        proof = prove_file(files[0], files[1])
        if not proof.holds:
            return UNPROVED
        if proof.source == NEITHER or (proof.source == EITHER and is_turned):
            return UNTOLD  # if turned, one of the two lies on its side
        return MADE_LATER if proof.source == DUPLICATE else ""

    def _row(self, kept: str, duplicate: str, found: Alignment | None) -> bytes:
        reasons = {sha256: self.reasons[sha256] for sha256 in (kept, duplicate) if sha256 in self.reasons}
        return json.dumps({"reasons": reasons} if found is None else asdict(found)).encode()

    def _outcome(self, data: bytes) -> Alignment | None:
        row = json.loads(data)
        if "reasons" in row:
            self.reasons.update(row["reasons"])
            return None
        values: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in row.items()}
        return Alignment(**values)

    def _is_final(self, kept: str, duplicate: str, found: Alignment | None) -> bool:
        if found is None:
            return _GONE not in {self.reasons.get(kept), self.reasons.get(duplicate)}
        return _UNREAD not in found.doubts

    def _needs_keypoints(self, first: str, second: str) -> bool:
        one, other = self._keypoints(first), self._keypoints(second)
        return one is not None and other is not None and frame_affine(one, other) is None

    @contextmanager
    def _known(self, contents: Sequence[str]) -> Iterator[dict[str, Keypoints]]:
        known = {sha256: photo for sha256 in contents if (photo := self._keypoints(sha256)) is not None}
        without = {sha256: photo for sha256, photo in known.items() if photo.found is None}
        yield known
        self._table.put((sha256, photo.to_bytes()) for sha256, photo in without.items() if photo.found is not None)

    def _open(self, sha256: str) -> PhotoFile | None:
        data = self._image_file(sha256)
        return None if data is None else PhotoFile(data)

    def _load(self, sha256: str) -> Keypoints | None:
        found: Keypoints | None = None
        if (data := self._table.get(sha256)) is not None:
            with suppress(ValueError):  # a damaged cache
                found = Keypoints.from_bytes(data)
        found = found or self._make(sha256)
        if found is None or found.reason:
            self.reasons[sha256] = _GONE if found is None else found.reason
            return None
        return found

    def _make(self, sha256: str) -> Keypoints | None:
        if sha256 in self._pictures and not is_raw(self._photos[sha256].path):
            return Keypoints.from_bytes(self._pictures[sha256])
        data = self._image_file(sha256)
        return None if data is None else keypoints_in(data)

    def _image_file(self, sha256: str) -> bytes | None:
        path = self._photos[sha256].path
        data = read_content(path, sha256, self._read)
        return None if data is None else picture_file(path, data)


def _proved(full_size: Affine) -> Alignment:
    return Alignment(
        tier=RE_ENCODED,
        changes=tuple(filter(None, (turn_in_words(full_size), size_in_words(full_size)))),
        transform=tuple(full_size.ravel().tolist()),
    )


def _key(kept: str, duplicate: str) -> str:
    return hashlib.sha256(f"{kept} {duplicate}".encode()).hexdigest()[:32]


def keep_small_picture(spool: Spool, sha256: str, decoded: DecodedPhoto) -> None:
    data, picture, at_least = decoded
    if suffices_for(picture, at_least, _NEEDED):
        made = _keypoints_of_picture(picture, data)
        if made.width * made.height >= _LEAST_PIXELS:
            spool.put(sha256, made.to_bytes())


def keypoints_in(data: bytes) -> Keypoints | None:
    with suppress(DecodeError):
        return _keypoints_of_picture(decode(data, at_least=_NEEDED), data)
    return None


def _keypoints_of_picture(picture: Image.Image, data: bytes) -> Keypoints:
    scaled = picture.info.get(SCALE_INFO)
    return extract_keypoints(_as_shown(picture, data), picture.size if scaled is None else scaled.size)


def _as_shown(image: Image.Image, data: bytes) -> Image.Image:
    """Return a decoded picture in sRGB, whatever the colour profile of its file is, so that colours can be compared."""
    profile = image.info.get("icc_profile") or b""
    with suppress(Exception), quiet_libraries(), open_image(data) as file:
        profile = file.info.get("icc_profile") or profile
    if profile:
        image = image.copy()
        image.thumbnail((2 * PICTURE_SIDE, 2 * PICTURE_SIDE))
        with suppress(Exception):  # a damaged profile counts as none, as it does in most viewers
            own = ImageCms.ImageCmsProfile(io.BytesIO(profile))
            return ImageCms.profileToProfile(image, own, ImageCms.createProfile("sRGB"), outputMode="RGB") or image
    return image.convert("RGB")
