"""Collect the features and vectors of a search's files: from the store, and for new content from files and server."""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, Final

import numpy as np
from anyio import to_thread
from numpy.typing import NDArray

from clip_client._encoding import EncodedImage
from clip_client._files import FailedFile
from clip_client._model import ModelInfo
from clip_client._results import EmbeddedItem, Embedder
from clip_client._storage.sqlite import StoreError
from clip_client.dedup.features.image_features import (
    BYTES_ONLY,
    FeatureTable,
    ModelInput,
    bytes_only_features,
    cached_features,
    extract_features,
)
from clip_client.dedup.features.preview import NEEDS_RAWPY, DecodedPhoto, can_read_raw, picture_file
from clip_client.dedup.files.file_types import is_raw
from clip_client.dedup.files.reading import ReadFile, hash_file, is_unchanged, read_file
from clip_client.dedup.photo import ImageFeatures
from clip_client.dedup.store.store import Store
from clip_client.dedup.types import OnProgress, PhotoFile, SearchStats
from preprocess_ensemble.cores import usable_cores

KeepPicture = Callable[[str, DecodedPhoto], None]
ReadOutcome = tuple[PhotoFile, str] | FailedFile

_FILES_AT_ONCE: Final = 32
_LARGEST_BYTES: Final = 64 * 2**20
"""Size above which a file is only hashed, in pieces, because servers refuse it (``DecodeLimits.max_bytes``)."""
_SAVE_EVERY_S: Final = 5.0
"""Longest time between two saves: the work that an interrupted search can lose."""
_FINDING: Final = "finding known photos"
_DAMAGED: Final = frozenset({"TRUNCATED", "CORRUPT"})


# Without a repr: asyncio.run asks for the repr of its result, which would be huge.
@dataclass(kw_only=True, repr=False)
class CollectedFeatures:
    copies: dict[str, list[PhotoFile]] = field(default_factory=dict)
    features: FeatureTable
    vectors_of: Callable[[Sequence[str]], NDArray[np.float32]]
    """Contents -> their vectors, (N, D), NaN for a content without one."""
    refused: dict[str, tuple[str, str]] = field(default_factory=dict)
    """SHA-256 -> code and message, for contents that cannot be decoded or that the server refused."""
    failed: list[FailedFile] = field(default_factory=list)
    stats: SearchStats = field(default_factory=SearchStats)
    read: ReadFile = read_file
    threads: int = field(default_factory=usable_cores)

    contents: list[str] = field(init=False)
    """The contents that can be compared, by their first path; undecodable images only if they have copies."""

    def __post_init__(self) -> None:
        for files in self.copies.values():
            files.sort(key=lambda file: os.fsencode(file.path))
        codes = {sha256: self.refused.get(sha256, ("", ""))[0] for sha256 in self.copies}
        comparable = [
            sha256
            for sha256, code in codes.items()
            if code in ("", BYTES_ONLY) or (len(self.copies[sha256]) > 1 and code != "NOT_AN_IMAGE")
        ]
        self.contents = sorted(comparable, key=lambda sha256: os.fsencode(self.copies[sha256][0].path))

    @property
    def undecodable(self) -> list[FailedFile]:
        return [
            FailedFile(path=file.path, code=refusal[0], message=refusal[1])
            for sha256, files in self.copies.items()
            if (refusal := self.refused.get(sha256)) and refusal[0] != BYTES_ONLY
            for file in files
        ]

    @property
    def undecodable_copies(self) -> int:
        codes = ((self.refused.get(sha256, ("", ""))[0], len(self.copies[sha256])) for sha256 in self.contents)
        return sum(files for code, files in codes if code not in ("", BYTES_ONLY))

    @property
    def bytes_only(self) -> list[str]:
        found = (self.copies.get(sha256, ()) for sha256, (code, _) in self.refused.items() if code == BYTES_ONLY)
        return sorted((file.path for files in found for file in files), key=os.fsencode)

    @property
    def are_pictures(self) -> NDArray[np.bool_]:
        return np.array([sha256 not in self.refused for sha256 in self.contents], dtype=bool)

    def column(self, name: str) -> NDArray[Any]:
        return self.features.column(name, self.contents)


async def collect_features(
    embedder: Embedder | None,
    files: Sequence[PhotoFile],
    store: Store,
    on_progress: OnProgress,
    *,
    keep_picture: KeepPicture | None = None,
) -> CollectedFeatures:
    """Collect the features and vectors of ``files``: from ``store`` if it has them, else from the files and the server.

    ``keep_picture`` is called, in many threads, with each decoded picture except those of RAW files. Raises StoreError,
    and what ``embedder.embed_stream`` raises if the server fails.
    """
    model = None if embedder is None else await embedder.model()
    on_progress(_FINDING, 0, None)
    collector = _Collector(model, store, len(files), on_progress, keep_picture)
    known = await to_thread.run_sync(collector.load_known, files)
    sources = collector.sources(files, known)
    # Without a model, the sources yield nothing.
    items: AsyncGenerator[Any] = sources if embedder is None else embedder.embed_stream(sources, ordered=False)
    try:
        async with aclosing(sources), aclosing(items):
            async for item in items:
                collector.record_vector(item)
    finally:
        collector.save()
    collected = await to_thread.run_sync(collector.finish)
    on_progress(collector.what, len(files), len(files))
    return collected


class _Collector:
    def __init__(
        self,
        model: ModelInfo | None,
        store: Store,
        total: int,
        on_progress: OnProgress,
        keep_picture: KeepPicture | None,
    ) -> None:
        self._model_input = None if model is None else ModelInput.of(model)
        self._keep_picture = keep_picture
        self._index = store.files
        self._features = cached_features(store)
        self._vectors = None if model is None else store.vectors(model.vector_id, model.dimension)
        self._dimension = 1 if model is None else model.dimension
        self._tables = [self._features, *filter(None, [self._vectors])]
        self._copies: dict[str, list[PhotoFile]] = {}
        self._failed: list[FailedFile] = []
        self._refused: dict[str, tuple[str, str]] = {}
        self._work: Counter[str] = Counter()
        self._with_features: set[str] = set()
        self._with_outcome: set[str] = set()
        self._in_store: set[bytes] = set()
        """The contents in the store; empty except while files without a known hash are read."""
        self._moved: list[tuple[PhotoFile, str]] = []
        """Files with new names and known contents, which are looked up in the store together because that is faster."""
        self._extracting = Lock()
        self._extracted: dict[tuple[str, bool], tuple[ImageFeatures, EncodedImage | None] | None] = {}
        """(content, whether it is read as a RAW file, which may give another picture) -> features that are not recorded
        yet, and the image to send; None while a thread extracts them."""
        self._sent: list[tuple[str, PhotoFile]] = []  # in the order of the indexes of the answers
        self._unsaved: list[tuple[PhotoFile, str]] = []
        self._saved_at = time.monotonic()
        self._total, self._done = total, 0
        self._on_progress = on_progress
        self.what = _FINDING

    def load_known(self, files: Sequence[PhotoFile]) -> dict[str, str]:
        known = self._index.known(files)
        self._load(set(known.values()))
        return known

    def _load(self, contents: Collection[str]) -> None:
        """Look up contents in the store. Refusals do not count if a package that was missing is installed by now."""
        from preprocess_ensemble.imaging.formats import outdated_refusals

        names, outdated = list(contents), outdated_refusals()
        # Compare beginnings: an earlier version may have stored another remedy.
        begins = (*outdated, NEEDS_RAWPY.partition(":")[0]) if can_read_raw() else tuple(outdated)
        keys = [bytes.fromhex(name) for name in names]
        # Read whole rows of features: damaged rows count as missing and are made again.
        columns_of = (None, self._with_features), (["code", "message"], self._with_outcome)
        for table, (columns, held) in zip(self._tables, columns_of, strict=False):
            for positions, rows in table.find(keys, columns):
                texts = (rows.column(name).to_pylist() for name in ("code", "message"))
                for position, code, message in zip(positions.tolist(), *texts, strict=True):
                    # If an earlier server found a file damaged that decodes here, ask the server again.
                    is_doubted = columns is not None and code in _DAMAGED and names[position] not in self._refused
                    if not (message or "").startswith(begins) and not is_doubted:
                        held.add(names[position])
                        if code:
                            self._refused[names[position]] = code, message

    def finish(self) -> CollectedFeatures:
        """Merge the store's small files, so that later searches open few files; read the collected features from it."""
        for table in self._tables:
            with suppress(StoreError):  # the disk may have no room for the copy
                table.compact()
        return CollectedFeatures(
            copies=self._copies,
            features=FeatureTable.read(self._features, list(self._copies)),
            vectors_of=self._vectors_of,
            refused=self._refused,
            failed=self._failed,
            stats=SearchStats(**self._work),
        )

    def _vectors_of(self, contents: Sequence[str]) -> NDArray[np.float32]:
        vectors = np.full((len(contents), self._dimension), np.nan, dtype=np.float32)
        if self._vectors is not None:
            for positions, rows in self._vectors.find([bytes.fromhex(one) for one in contents], ["vector"]):
                vectors[positions] = rows.column("vector").combine_chunks().flatten().to_numpy().reshape(len(rows), -1)
        return vectors

    def _has_moved(self, sha256: str) -> bool:
        is_loaded = sha256 in self._with_features or sha256 in self._with_outcome
        return not is_loaded and bytes.fromhex(sha256) in self._in_store

    async def sources(self, files: Sequence[PhotoFile], known: Mapping[str, str]) -> AsyncGenerator[str | bytes, None]:
        unknown, without_vector = self._add_known(files, known)
        for path in without_vector:
            yield await self._source(path)
        if unknown:
            self._in_store = await to_thread.run_sync(lambda: set().union(*(table.keys() for table in self._tables)))
        with ThreadPoolExecutor(max(2, usable_cores()), thread_name_prefix="clip_client features") as pool:
            while unknown:
                for start in range(0, len(unknown), _FILES_AT_ONCE):
                    read = pool.map(self._read_one, unknown[start : start + _FILES_AT_ONCE])
                    for outcome in await to_thread.run_sync(list, read):
                        if (source := self._record_file(outcome)) is not None:
                            yield source if isinstance(source, EncodedImage) else await self._source(source)
                moved, self._moved, self._in_store = self._moved, [], set()
                await to_thread.run_sync(self._load, {sha256 for _, sha256 in moved})
                unknown = [file for file, sha256 in moved if sha256 not in self._with_features]
                for file, sha256 in moved:
                    if sha256 in self._with_features and self._add_copy(sha256, file):
                        yield await self._source(file.path)

    def _add_known(self, files: Sequence[PhotoFile], known: Mapping[str, str]) -> tuple[list[PhotoFile], list[str]]:
        unknown, without_vector = [], []
        for file in files:
            sha256 = known.get(file.path)
            if sha256 is None or sha256 not in self._with_features:
                unknown.append(file)
            elif self._add_copy(sha256, file):
                without_vector.append(file.path)
        # Report known photos first and alone: they take no time, and would make the rate of the others look higher.
        self._on_progress(self.what, self._total, self._total)
        if unknown or without_vector:
            with_model = "reading and embedding" if unknown else "embedding"
            self.what = "reading" if self._vectors is None else with_model
            self._on_progress(self.what, self._done, self._total)
        return unknown, without_vector

    async def _source(self, path: str) -> str | bytes:
        if is_raw(path):
            read = await to_thread.run_sync(read_file, path)
            if not isinstance(read, FailedFile):
                return await to_thread.run_sync(picture_file, path, read[1])
        return path

    def save(self, every_s: float = 0) -> None:
        if time.monotonic() - self._saved_at < every_s:
            return
        self._index.remember(self._unsaved)
        self._unsaved = []
        for table in self._tables:
            table.flush()
        self._saved_at = time.monotonic()

    def _count_done(self) -> None:
        # Count a file when it is done, not when it is read: files are read ahead at the speed of the disk.
        self._done += 1
        self._on_progress(self.what, self._done, self._total)

    def _add_copy(self, sha256: str, file: PhotoFile) -> bool:
        """Add a file to its content; return whether the content has to be embedded from this file."""
        copies = self._copies.setdefault(sha256, [])
        copies.append(file)
        # Skip undecodable files: without a hash they are never candidates.
        if len(copies) > 1 or self._vectors is None or sha256 in self._with_outcome or sha256 in self._refused:
            self._count_done()
            return False
        self._sent.append((sha256, file))
        return True

    def _read_one(self, file: PhotoFile) -> ReadOutcome:
        as_raw = is_raw(file.path)
        if file.size_bytes > _LARGEST_BYTES:
            hashed = hash_file(file.path)
            if isinstance(hashed, FailedFile):
                return hashed
            message = f"The file has {hashed[0].size_bytes:,} bytes; the limit is {_LARGEST_BYTES:,}: save it smaller."
            features = bytes_only_features() if as_raw else ImageFeatures(code="TOO_LARGE", message=message)
            self._extracted[hashed[1], as_raw] = features, None
            return hashed
        read = read_file(file.path)
        if isinstance(read, FailedFile):
            return read
        found, data = read
        sha256 = hashlib.sha256(data).hexdigest()
        with self._extracting:
            is_known = sha256 in self._with_features or self._has_moved(sha256)
            is_known = is_known or (sha256, as_raw) in self._extracted
            if not is_known:
                self._extracted[sha256, as_raw] = None
        if not is_known:
            model_input = None if sha256 in self._with_outcome else self._model_input
            keep = None if as_raw or self._keep_picture is None else partial(self._keep_picture, sha256)
            self._extracted[sha256, as_raw] = extract_features(data, model_input, keep, is_raw=as_raw)
        return found, sha256

    def _record_file(self, outcome: ReadOutcome) -> str | EncodedImage | None:
        if isinstance(outcome, FailedFile):
            self._count_done()
            self._failed.append(outcome)
            return None
        file, sha256 = outcome
        # Take the features for the kind of name (RAW or not) of the first copy, whichever thread extracted them.
        is_new = sha256 not in self._with_features
        extracted = self._extracted.pop((sha256, is_raw(file.path)), None) if is_new else None
        features, image = extracted or (None, None)
        self._work["files_read"] += 1
        if features is not None:
            self._work["decoded"] += 1
            self._features.add({"sha256": bytes.fromhex(sha256), **features.to_row()})
            self._with_features.add(sha256)
            if features.code:
                self._refused.setdefault(sha256, (features.code, features.message))
        self._unsaved.append((file, sha256))
        self.save(_SAVE_EVERY_S)
        if self._has_moved(sha256):
            self._moved.append((file, sha256))
            return None
        return (image or file.path) if self._add_copy(sha256, file) else None

    def record_vector(self, item: EmbeddedItem) -> None:
        sha256, file = self._sent[item.index]
        code, message = ("", "") if item.error is None else (item.error.code, item.error.message)
        if not code and not is_unchanged(file):
            code, message = "UNREADABLE", "It was changed while it was read."
        self._count_done()
        self._work["embedded"] += 1
        if code == "UNREADABLE":
            # The file changed or disappeared after it was hashed. This search compares its copies without a vector.
            self._failed.append(FailedFile(path=file.path, code=code, message=message))
            self._copies[sha256].remove(file)
            if not self._copies[sha256]:
                del self._copies[sha256]
            return
        assert self._vectors is not None, "an embedded image has a model"
        if code:
            self._refused[sha256] = code, message
        vector = None if code else item.vector
        self._vectors.add({"sha256": bytes.fromhex(sha256), "vector": vector, "code": code, "message": message})
        self.save(_SAVE_EVERY_S)
